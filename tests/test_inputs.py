"""Distributed datasets: what replicas get of them, and what they train to."""

import warnings

import numpy as np
import pytest

from tests.data import kinds
from tests.pool import PerRank
from tests.training.facts import assert_as_alone
from tests.training.facts import facts_of

SIZES = ((10, 4), (9, 4), (3, 4), (1, 2))


def numbers(batch):
    """The rows in a batch of `kinds`, a plain part on the backend."""
    import keras

    x, y = batch
    assert keras.ops.is_tensor(x)
    assert keras.ops.is_tensor(y)
    x, y = map(keras.ops.convert_to_numpy, (x, y))
    assert x.shape == (len(y), 2)
    assert np.array_equal(x, np.repeat(y[:, None], 2, 1))
    return [int(i) for i in y]


def passes(dataset, count=2):
    return [[numbers(batch) for batch in dataset] for _ in range(count)]


def in_batches(rows, size):
    rows = list(rows)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def quietly(work):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return work()


def split(kind):
    """What a replica gets of global batches, in two passes of each case."""
    import keras_mwms

    distribute = keras_mwms.experimental_distribute_dataset
    return quietly(
        lambda: [
            passes(distribute(getattr(kinds, kind)(rows, size)))
            for rows, size in SIZES
        ]
    )


@pytest.mark.parametrize("kind", [*kinds.ALL, "numpy_rows"])
def test_a_loop_gets_its_rows_of_each_global_batch(cluster, alone, kind):
    from keras_mwms.data import slices

    whole = alone(split, kind)
    of_replicas = cluster(3).run(split, kind)
    for case, (rows, size) in enumerate(SIZES):
        steps = in_batches(range(rows), size)
        # A generator gives its batches once.
        second = [] if kind == "generator" else steps
        assert whole[case] == [steps, second]
        for rank in range(3):
            mine = [b[slices.slice_of(len(b), 3, rank)] for b in steps]
            assert of_replicas[rank][case] == [mine, mine if second else []]


def own(kind, rows):
    """Batches of two of so many rows, which the replica makes for itself."""
    import keras_mwms

    contexts = []

    def make(context):
        contexts.append(context)
        return getattr(kinds, kind)(rows, 2)

    def loop():
        dataset = keras_mwms.distribute_datasets_from_function(make)
        return passes(dataset)

    got = quietly(loop)
    (context,) = contexts
    return got, (context.input_pipeline_id, context.num_input_pipelines)


@pytest.mark.parametrize("kind", kinds.ALL)
def test_own_batches_are_used_as_they_are(cluster, alone, kind):
    # Keras itself refuses some kinds of data that have no batch.
    counts = [5, 2, 1 if kind in ("grain", "adapter") else 0]
    expected = []
    for rows in counts:
        mine = in_batches(range(rows), 2)
        mine += [[]] * (3 - len(mine))
        expected.append([mine, [] if kind == "generator" else mine])
    got = cluster(3).run(own, kind, PerRank(counts))
    assert got == [(expected[rank], (rank, 3)) for rank in range(3)]
    assert alone(own, kind, 5) == (expected[0], (0, 1))


# The rows of each step; and which of its three parts each replica has.
STEPS = [([0, 1], [2], [3, 4]), ([5, 6], [7], []), ([8], [], [])]
HAS = {1: [(0, 1, 2)], 2: [(0, 1), (2,)], 3: [(0,), (1,), (2,)]}


def uneven(context):
    """This replica's parts; a single one has all."""
    mine = HAS[context.num_replicas_in_sync][context.input_pipeline_id]
    return of_rows([[row for i in mine for row in step[i]] for step in STEPS])


def of_rows(steps):
    import keras

    x = np.sin(np.arange(18.0, dtype="float32").reshape(9, 2))
    batches = [(x[r], x[r].sum(1, keepdims=True)) for r in steps if r]

    class Data(keras.utils.PyDataset):
        def __len__(self):
            return len(batches)

        def __getitem__(self, index):
            return batches[index]

    return Data()


def a_model():
    import keras

    import keras_mwms

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
    return keras_mwms.distribute(model)


def trained():
    """By `fit`, and by a loop in which a replica may have no rows."""
    import keras_mwms

    dataset = keras_mwms.distribute_datasets_from_function(uneven)
    validation = keras_mwms.experimental_distribute_dataset(
        of_rows([[0, 1, 2], [3, 4]])
    )
    model = a_model()
    history = model.fit(
        dataset, epochs=2, validation_data=validation, verbose=0
    )
    scores = model.evaluate(dataset, verbose=0)
    predicted = model.predict(dataset, verbose=0)
    by_fit = facts_of(
        model, history=history.history, scores=scores, predicted=predicted
    )
    model = a_model()
    for _ in range(2):
        for x, y in dataset:
            model.train_on_batch(x, y)
    return by_fit, facts_of(model)


@pytest.mark.parametrize("replicas", [2, 3])
def test_models_train_with_it(cluster, alone, replicas):
    got = quietly(lambda: cluster(replicas).run(trained))
    by_fit, by_loop = alone(trained)
    assert by_fit["predicted"].shape == (9, 1)
    assert_as_alone([facts for facts, _ in got], by_fit)
    assert_as_alone([facts for _, facts in got], by_loop)


def endless():
    x = np.zeros((2, 2), "float32")
    while True:
        yield x, x[:, 0]


def interleaved():
    """Passes at the same time; data without an end; and without a model."""
    import keras

    import keras_mwms

    distribute = keras_mwms.distribute_datasets_from_function
    rank = keras_mwms.rank()
    first = distribute(lambda _: kinds.generator(7, 4 - rank))
    second = distribute(lambda _: kinds.adapter(9, 2 + rank))
    whole = keras_mwms.experimental_distribute_dataset(kinds.rows_xy(40))
    pairs = [
        [numbers(batch) for batch in batches]
        for batches in zip(second, first, second, whole, strict=False)
    ]
    without_end = keras_mwms.experimental_distribute_dataset(endless())
    assert without_end.element_spec
    batches = iter(without_end)
    rows = [numbers(next(batches)) for _ in range(3)]
    rows += [numbers(next(iter(without_end)))]
    model = a_model()
    with pytest.raises(ValueError, match="have no end"):
        model.fit(without_end, verbose=0)
    with pytest.raises(ValueError, match="Received: y of type ndarray"):
        model.fit(whole, kinds.rows_xy(40)[1], verbose=0)
    with pytest.raises(ValueError, match="Received: class_weight"):
        model.fit(whole, class_weight={0: 1.0}, verbose=0)
    plain = keras.Sequential([keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    with pytest.raises(RuntimeError, match=r"Call keras_mwms\.distribute"):
        plain.fit(whole, verbose=0)
    return pairs, rows


def test_iterators_at_once_and_data_without_end(cluster):
    of_replicas = quietly(lambda: cluster(2).run(interleaved))
    for rank, (pairs, rows) in enumerate(of_replicas):
        first = in_batches(range(7), 4 - rank)
        second = in_batches(range(9), 2 + rank)
        whole = [list(range(16 * rank, 16 * rank + 16))]
        whole += [list(range(32 + 4 * rank, 36 + 4 * rank))]
        for step, pair in enumerate(pairs):
            assert pair == [
                of[step] if step < len(of) else []
                for of in (second, first, second, whole)
            ]
        assert len(pairs) == 2
        assert rows == [[0], [0], [0], [0]]


def typed(kind):
    """The spec, and on TensorFlow what a function of that signature sums."""
    import keras

    import keras_mwms

    rows = 3 if keras_mwms.rank() == 0 else 1
    data = getattr(kinds, kind)
    found = []
    for dataset in (
        keras_mwms.distribute_datasets_from_function(lambda _: data(rows, 2)),
        keras_mwms.experimental_distribute_dataset(data(5, 4)),
    ):
        spec = keras.tree.map_structure(
            lambda leaf: (
                tuple(leaf.shape),
                keras.backend.standardize_dtype(leaf.dtype),
            ),
            dataset.element_spec,
        )
        is_there = keras.backend.backend() == "tensorflow"
        found.append((spec, in_graphs(dataset, kind) if is_there else []))
    return found


def in_graphs(dataset, kind):
    import tensorflow as tf

    import keras_mwms

    @tf.function(input_signature=[dataset.element_spec])
    def total(batch):
        return tf.reduce_sum(batch[1])

    @tf.function
    def step(iterator):
        return tf.reduce_sum(next(iterator)[1])

    @tf.function
    def loop(dataset):
        for _ in dataset:
            pass

    sums = [float(total(batch)) for batch in dataset]
    if kind != "generator":
        iterator = iter(dataset)
        assert [float(step(iterator)) for _ in sums] == sums
        with pytest.raises(tf.errors.OutOfRangeError):
            step(iterator)
    if keras_mwms.world_size() > 1:
        with pytest.raises(RuntimeError, match="outside of tf"):
            loop(dataset)
    return sums


@pytest.mark.parametrize(
    "kind", ["generator", "py_dataset", kinds.ALL[3], kinds.ALL[5]]
)
def test_element_spec(cluster, alone, backend, kind):
    spec = (((None, 2), "float32"), ((None,), "float32"))
    runs = [alone(typed, kind), *quietly(lambda: cluster(2).run(typed, kind))]
    expected = [[[1, 2], [6, 4]], [[1, 2], [1, 4]], [[0, 0], [5, 0]]]
    for run, sums in zip(runs, expected, strict=True):
        if backend != "tensorflow":
            sums = [[], []]
        assert run == [(spec, sums[0]), (spec, sums[1])]


def numpy_rows(seed):
    import keras_mwms

    np.random.seed(seed)
    make = keras_mwms.experimental_make_numpy_dataset
    rows = make(kinds.rows_xy(10))
    shuffled = rows.shuffle(10).batch(4)
    model = a_model()
    model.fit(rows.batch(4), epochs=2, verbose=0)
    of_structure = make({"a": [1.0, 2.0, 3.0], "b": np.zeros((3, 1))})
    (batch,) = of_structure.batch(2, drop_remainder=True)
    shapes = {name: tuple(array.shape) for name, array in batch.items()}
    dataset = keras_mwms.experimental_distribute_dataset(shuffled)
    return passes(dataset), shapes, facts_of(model)


def test_rows_of_arrays(cluster, alone, backend):
    whole, shapes, facts = alone(numpy_rows, 8)
    assert shapes == {"a": (2,), "b": (2, 1)}
    of_replicas = cluster(2).run(numpy_rows, PerRank([8, 9]))
    assert_as_alone([facts for _, _, facts in of_replicas], facts)
    (first, _, _), (second, _, _) = of_replicas
    joined = [
        [a + b for a, b in zip(*two, strict=True)]
        for two in zip(first, second, strict=True)
    ]
    for one in joined:
        assert sorted(row for rows in one for row in rows) == list(range(10))
        assert list(map(len, one)) == [4, 4, 2]
    assert joined[0] != joined[1]
    if backend != "tensorflow":
        # The chief's seed is that of all.
        assert joined == whole


def test_mistakes_are_told():
    import keras_mwms

    context = keras_mwms.InputContext(3, 1, 3)
    assert context.get_per_replica_batch_size(12) == 4
    with pytest.raises(ValueError, match="Received: global_batch_size=13"):
        context.get_per_replica_batch_size(13)
    with pytest.raises(TypeError, match="Received: 'data' of type str"):
        keras_mwms.distribute_datasets_from_function("data")
    distribute = keras_mwms.experimental_distribute_dataset
    dataset = distribute(kinds.rows_xy(3))
    with pytest.raises(TypeError, match="distributed already"):
        distribute(dataset)
    with pytest.raises(TypeError, match="distributed already"):
        keras_mwms.distribute_datasets_from_function(lambda _: dataset)
    with pytest.raises(ValueError, match="an empty generator"):
        _ = distribute(kinds.generator(0, 1)).element_spec


@pytest.mark.needs("tensorflow")
def test_what_is_not_batched_is_refused():
    import tensorflow as tf

    import keras_mwms

    with pytest.raises(ValueError, match="is not batched"):
        keras_mwms.experimental_distribute_dataset(tf.data.Dataset.range(3))


@pytest.mark.backend("torch", "jax")
@pytest.mark.parametrize(
    ("arrays", "size", "words"),
    [
        ((np.zeros(3), np.zeros(2)), 1, "same number of rows"),
        (np.zeros(3), 0, "batch_size=0"),
    ],
)
def test_rows_that_cannot_be_batched(arrays, size, words):
    import keras_mwms

    with pytest.raises(ValueError, match=words):
        keras_mwms.experimental_make_numpy_dataset(arrays).batch(size)
