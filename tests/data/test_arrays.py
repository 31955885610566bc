"""What each replica reads of arrays."""

import numpy as np
import pytest

ROWS, BATCH = 23, 5


def seat(rank, size):
    """A place in a ring that has nothing to tell the others.

    Only an order that is shuffled has to be agreed on.
    """
    from keras_mwms.collectives import AloneCollectives

    class Seat(AloneCollectives):
        pass

    ring = Seat()
    ring.rank, ring.size = rank, size
    return ring


def epoch_of(adapter, backend):
    """An epoch as Keras's trainer of that backend reads it."""
    start = {
        "jax": "get_jax_iterator",
        "tensorflow": "get_tf_dataset",
        "torch": "get_torch_dataloader",
    }[backend]
    return iter(getattr(adapter, start)())


def batches_of(adapter, backend):
    return list(epoch_of(adapter, backend))


def numpy_of(tensors):
    import keras

    return keras.tree.map_structure(
        lambda t: None if t is None else keras.ops.convert_to_numpy(t), tensors
    )


def x_of(data):
    import keras

    return numpy_of(keras.utils.unpack_x_y_sample_weight(data)[0])


def sharded(size, *args, **options):
    """The adapters of all replicas."""
    from keras_mwms.data.arrays import ShardedArrays

    return [
        ShardedArrays(seat(rank, size), *args, **options)
        for rank in range(size)
    ]


def epochs(adapters, backend):
    """By step, then by replica: `(plain data, share)`."""
    of_replicas = [
        [
            (numpy_of(b.data), share_of(b, rank))
            for b in batches_of(adapter, backend)
        ]
        for rank, adapter in enumerate(adapters)
    ]
    return list(zip(*of_replicas, strict=True))


def share_of(batch, rank):
    """A replica's rows by the rows of the global batch."""
    rows = np.asarray(batch.rows)
    return rows[rank] / rows.sum()


def x_and_y():
    x = np.arange(ROWS, dtype="float32")[:, None] * [1.0, 10.0]
    return x.astype("float32"), np.arange(ROWS, dtype="int64")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_step_is_the_global_batch_of_one_process(backend, size):
    x, y = x_and_y()
    (one,) = sharded(1, x, y, batch_size=BATCH)
    adapters = sharded(size, x, y, batch_size=BATCH)
    steps = epochs(adapters, backend)
    assert len(steps) == adapters[0].num_batches == one.num_batches == 5
    for replicas, ((whole,),) in zip(
        steps, ([e] for e in epochs([one], backend)), strict=True
    ):
        taken = [data for data, share in replicas if share]
        for part in (0, 1):
            joined = np.concatenate([data[part] for data in taken])
            np.testing.assert_array_equal(joined, whole[0][part])
        rows = len(whole[0][1])
        for data, share in replicas:
            assert share in (0, pytest.approx(len(data[1]) / rows))
        assert sum(share for _, share in replicas) == pytest.approx(1)


def test_a_replica_without_rows_has_a_filler(backend):
    from keras_mwms.data.batches import Shard
    from keras_mwms.data.batches import SparseShard
    from keras_mwms.data.batches import StaticShard

    x, y = x_and_y()
    adapters = sharded(3, x[:9], y[:9], batch_size=4)
    # 2, 2, 0 rows twice, then one row.
    shares = [
        [share for _, share in step] for step in epochs(adapters, backend)
    ]
    assert shares == [[0.5, 0.5, 0], [0.5, 0.5, 0], [1, 0, 0]]
    third = [y for (_, y), _ in (s[2] for s in epochs(adapters, backend))]
    assert [y.tolist() for y in third] == [[0], [4], [8]]

    def kind(rows, size):
        adapter = sharded(size, x[:rows], y[:rows], batch_size=4)[0]
        return type(batches_of(adapter, backend)[0])

    on_jax = backend == "jax"
    assert kind(9, 2) is (StaticShard if on_jax else SparseShard)
    assert kind(8, 2) is (StaticShard if on_jax else Shard)


@pytest.mark.parametrize(
    ("rows", "batch_size", "steps", "expected"),
    [
        (10, 4, None, (3, 4, True, 2)),
        (8, 4, None, (2, 4, False, None)),
        (33, None, None, (2, 32, True, 1)),
        (10, None, 5, (5, 2, False, None)),
    ],
)
def test_numbers_that_keras_asks_for(rows, batch_size, steps, expected):
    x = np.zeros((rows, 1))
    for adapter in sharded(2, x, batch_size=batch_size, steps=steps):
        assert expected == (
            adapter.num_batches,
            adapter.batch_size,
            adapter.has_partial_batch,
            adapter.partial_batch_size,
        )


def test_structures_and_dtypes_are_those_of_keras(backend):
    """Dictionaries, tuples, None, float64 and float32, lists of numbers."""
    from keras.src.trainers.data_adapters import array_data_adapter

    x, y = x_and_y()
    data = (
        {"a": x.astype("float64"), "b": (y.astype("int32"), x.tolist())},
        [y, x[:, :1]],
        None,
    )
    data[0]["b"] = (data[0]["b"][0], x)
    plain = array_data_adapter.ArrayDataAdapter(*data, batch_size=ROWS)
    (expected,) = (numpy_of(b) for b in batches_of(plain, backend))
    steps = epochs(sharded(2, *data, batch_size=ROWS), backend)
    import keras

    ((first, _), (second, _)) = steps[0]
    keras.tree.assert_same_structure(first, expected)
    for one, two, whole in zip(
        *map(keras.tree.flatten, (first, second, expected)), strict=True
    ):
        np.testing.assert_array_equal(np.concatenate([one, two]), whole)
        assert one.dtype == two.dtype == whole.dtype


def test_class_weights_become_weights_of_rows(backend):
    x, _ = x_and_y()
    y = np.arange(ROWS) % 2
    adapters = sharded(2, x, y, batch_size=4, class_weight={0: 0.5, 1: 3.0})
    for step in epochs(adapters, backend):
        for (_, labels, weights), _ in step:
            expected = np.where(labels == 0, 0.5, 3.0)
            np.testing.assert_array_equal(weights.ravel(), expected.ravel())


def test_pandas(backend):
    import pandas as pd

    x, y = x_and_y()
    frame = pd.DataFrame(x, columns=["a", "b"])
    adapters = sharded(2, frame, pd.Series(y), batch_size=BATCH)
    (first, _), (second, _) = epochs(adapters, backend)[0]
    np.testing.assert_array_equal(first[0], x[:3])
    np.testing.assert_array_equal(second[0], x[3:5])


def test_a_file_in_memory_is_read_by_its_owner_only(backend, tmp_path):
    path = tmp_path / "rows.bin"
    np.arange(2.0 * ROWS).astype("float32").tofile(path)

    class Recording(np.memmap):
        """Tells which rows were asked for."""

        def __getitem__(self, rows):
            if self.ndim == 2:
                seen.append(np.arange(ROWS)[rows].tolist())
            return super().__getitem__(rows)

    file = Recording(path, "float32", mode="r", shape=(ROWS, 2))
    for rank, own in enumerate(
        (
            [0, 1, 2, 5, 6, 7, 10, 11, 12, 15, 16, 17, 20, 21],
            [3, 4, 8, 9, 13, 14, 18, 19, 22],
        )
    ):
        adapter = sharded(2, file, batch_size=BATCH)[rank]
        seen = []
        got = [x_of(b.data) for b in batches_of(adapter, backend)]
        np.testing.assert_array_equal(
            np.concatenate(got), np.asarray(file)[own]
        )
        # The first row may be read for its dtype.
        assert {row for rows in seen for row in rows} - {0} == set(own) - {0}


def test_predict_takes_plain_batches(backend):
    x, _ = x_and_y()
    adapters = sharded(3, x, batch_size=4, with_share=False)
    first = [x_of(batches_of(a, backend)[0]) for a in adapters]
    assert [x[:, 0].tolist() for x in first] == [[0, 1], [2, 3], [0]]
    fed = adapters[0].fed_rows(steps=2)
    assert [rows.tolist() for rows in fed] == [[2, 2, 0], [2, 2, 0]]


def shuffled(shuffle, backend):
    """The rows of three epochs, with the ring that the world has."""
    import keras

    from keras_mwms import world
    from keras_mwms.data.arrays import ShardedArrays

    ring = world.join().ring
    keras.utils.set_random_seed(17 + ring.rank)
    rows = np.arange(ROWS)
    adapter = ShardedArrays(ring, rows, batch_size=BATCH, shuffle=shuffle)
    return [
        [
            x_of(b.data).tolist() if share_of(b, ring.rank) else []
            for b in batches_of(adapter, backend)
        ]
        for _ in range(3)
    ]


@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_a_shuffled_epoch_is_that_of_one_process(cluster, backend, shuffle):
    """Though the replicas have seeds of their own."""
    (expected,) = cluster(1).run(shuffled, shuffle, backend)
    first, second = cluster(2).run(shuffled, shuffle, backend)
    joined = [
        [one + two for one, two in zip(*epoch, strict=True)]
        for epoch in zip(first, second, strict=True)
    ]
    assert joined == expected
    for epoch in joined:
        assert sorted(np.concatenate(epoch)) == list(range(ROWS))
        assert epoch[0] != list(range(BATCH))
    # On TensorFlow, Keras itself repeats the order of a global seed.
    assert (joined[0] == joined[1]) == (backend == "tensorflow")


@pytest.mark.parametrize(
    "arrays",
    [(np.zeros((3, 1)), np.zeros((4, 1))), (np.zeros(()),)],
    ids=["unlike lengths", "no rows"],
)
def test_keras_says_what_is_wrong_with_arrays(arrays):
    with pytest.raises((ValueError, IndexError, TypeError)):
        sharded(2, *arrays, batch_size=2)
