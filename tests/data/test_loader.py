"""PyTorch's `DataLoader`: the rows of one process, each loaded once."""

import numpy as np
import pytest

from tests.data import kinds
from tests.data import pipelines
from tests.data.test_kinds import flat
from tests.data.test_kinds import joined
from tests.training.facts import assert_as_alone

pytestmark = pytest.mark.needs("torch")

ROWS, SIZE = 22, 4


def rows_as(form="tuple"):
    """A map-style data set which keeps the numbers of the rows it loads."""
    import torch

    class Rows(torch.utils.data.Dataset):
        def __init__(self):
            self.loaded = []

        def __len__(self):
            return ROWS

        def __getitem__(self, row):
            self.loaded.append(int(row))
            x = torch.full((2,), float(row))
            y = torch.tensor(float(row))
            return {"tuple": (x, y), "dict": {"a": x, "b": x + 1}}[form]

    return Rows()


def samplings(case, torch, data):
    utils = torch.utils.data
    return {
        "plain": {"batch_size": SIZE},
        "shuffled": {"batch_size": SIZE, "shuffle": True},
        "dropped": {"batch_size": SIZE, "drop_last": True, "shuffle": True},
        "seeded": {
            "batch_size": SIZE,
            "shuffle": True,
            "generator": torch.Generator().manual_seed(4),
        },
        "weighted": {
            "batch_size": SIZE,
            "sampler": utils.WeightedRandomSampler(range(1, ROWS + 1), 30),
        },
        "batches": {"batch_sampler": [[3, 4, 5], [0], [9, 8], [21, 20, 1, 2]]},
        "collated": {
            "batch_size": SIZE,
            "collate_fn": lambda rows: [
                torch.stack(part) for part in zip(*rows, strict=True)
            ],
        },
        "workers": {"batch_size": SIZE, "shuffle": True, "num_workers": 2},
    }[case]


CASES = (
    "plain",
    "shuffled",
    "dropped",
    "seeded",
    "weighted",
    "batches",
    "collated",
    "workers",
)


def recorded():
    """For each case what this replica's steps have and what it loads."""
    import torch

    from keras_mwms import data
    from keras_mwms import world

    ring = world.join().ring
    results = {}
    for case in CASES:
        torch.manual_seed(3 + ring.rank)
        rows = rows_as()
        loader = torch.utils.data.DataLoader(
            rows, **samplings(case, torch, rows)
        )
        adapter = data.shard(ring, loader)
        passes = [kinds.rows_of_pass(adapter, ring.rank) for _ in range(2)]
        told = adapter.num_batches, adapter.partial_batch_size
        results[case] = passes, rows.loaded, told
    return results


def test_only_own_rows_are_loaded(cluster, alone):
    of_replicas = cluster(3).run(recorded)
    expected = alone(recorded)
    for case, (passes, _, as_told) in expected.items():
        for i, steps in enumerate(passes):
            parts = [each[case][0][i] for each in of_replicas]
            assert joined(parts) == steps, case
        for replica in of_replicas:
            own, loaded, told = replica[case]
            assert told == as_told, case
            assert told[0] == len(own[0]), case
            if case == "workers":
                # Others have loaded them.
                assert not loaded
                continue
            # A row more in each step for which there is none.
            needed = [max(len(part), 1) for steps in own for part in steps]
            assert len(loaded) == sum(needed), case
    # Of 22 rows, in batches of 4.
    assert expected["plain"][2] == expected["workers"][2] == (6, 2)
    assert expected["dropped"][2] == (5, None)
    passes = {case: result[0] for case, result in expected.items()}
    assert passes["plain"][0] == passes["collated"][0]
    assert passes["batches"][0] == [[3, 4, 5], [0], [9, 8], [21, 20, 1, 2]]
    assert sum(map(len, passes["dropped"][0])) == 20
    assert sum(map(len, passes["weighted"][0])) == 30
    for case in ("shuffled", "seeded", "workers"):
        first, second = (flat(steps) for steps in passes[case])
        assert sorted(first) == sorted(second) == list(range(ROWS)), case
        assert first != second


def trained(distributes):
    """Weights after training on shuffled rows, with a validation."""
    import keras
    import torch

    import keras_mwms
    from tests.training.facts import facts_of

    facts = {}
    for workers in (0, 2):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse")
        if distributes:
            model = keras_mwms.distribute(model)
        loaders = [
            torch.utils.data.DataLoader(
                rows_as(), SIZE, shuffle=True, num_workers=workers
            )
            for _ in range(2)
        ]
        history = model.fit(
            loaders[0], validation_data=loaders[1], epochs=2, verbose=0
        )
        facts |= facts_of(model, **{f"history {workers}": history.history})
        # The global generator has gone on as in plain Keras.
        facts[f"drawn {workers}"] = torch.rand(2).numpy()
    return facts


@pytest.mark.backend("torch")
def test_shuffled_training_is_as_in_plain_keras(cluster, alone):
    replicas = cluster(3).run(trained, True)
    assert_as_alone(replicas, alone(trained, False), skip=("drawn",))
    expected = alone(trained, False)
    for name in ("drawn 0", "drawn 2"):
        np.testing.assert_array_equal(replicas[0][name], expected[name])


def of_other_forms():
    """Loaders whose rows cannot be chosen, and rows of other forms."""
    import keras
    import torch

    import keras_mwms

    utils = torch.utils.data

    class Stream(utils.IterableDataset):
        def __iter__(self):
            info = utils.get_worker_info()
            first, step = (info.id, info.num_workers) if info else (0, 1)
            for row in range(first, ROWS, step):
                yield torch.full((2,), float(row)), torch.tensor(float(row))

    class Ready(utils.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            if index > 2:
                raise IndexError(index)
            rows = torch.arange(index * 4.0, index * 4 + (4, 4, 1)[index])
            return torch.stack([rows, rows], 1), rows

    facts = {
        "stream": kinds.recorded(utils.DataLoader(Stream(), SIZE)),
        "of workers": kinds.recorded(
            utils.DataLoader(Stream(), SIZE, num_workers=2)
        ),
        "ready": kinds.recorded(utils.DataLoader(Ready(), batch_size=None)),
        "shuffled": kinds.recorded(
            utils.DataLoader(Ready(), batch_size=None, shuffle=True)
        ),
    }
    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    model = keras.Model({"a": a, "b": b}, keras.ops.sum(a - 2 * b, 1))
    model = keras_mwms.distribute(model)
    predicted = model.predict(
        utils.DataLoader(rows_as("dict"), SIZE), verbose=0
    )
    return facts, predicted


def test_other_loaders(cluster):
    of_replicas = cluster(3).run(of_other_forms)
    steps = {
        name: joined([facts[name] for facts, _ in of_replicas])
        for name in of_replicas[0][0]
    }
    in_order = [list(range(i, min(i + SIZE, ROWS))) for i in range(0, ROWS, 4)]
    assert steps["stream"] == in_order
    assert steps["of workers"][:2] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert sorted(flat(steps["of workers"])) == list(range(ROWS))
    assert steps["ready"] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert sorted(steps["shuffled"]) == steps["ready"]
    rows = np.arange(ROWS, dtype="float32")
    for _, predicted in of_replicas:
        np.testing.assert_allclose(predicted, 2 * (rows - 2 * (rows + 1)))


def drawn_by_workers():
    """What a loader's worker processes draw in two passes."""
    import torch

    from keras_mwms import data
    from keras_mwms import world

    class Noise(torch.utils.data.Dataset):
        def __len__(self):
            return ROWS

        def __getitem__(self, row):
            return torch.rand(2), torch.tensor(float(row))

    ring = world.join().ring
    torch.manual_seed(3)
    loader = torch.utils.data.DataLoader(Noise(), SIZE, num_workers=1)
    adapter = data.shard(ring, loader)
    return [
        [np.asarray(batch.data[0]) for batch in pipelines.batches_of(adapter)]
        for _ in range(2)
    ]


def test_workers_draw_anew_on_each_replica_and_in_each_pass(cluster):
    passes = [
        noise for each in cluster(2).run(drawn_by_workers) for noise in each
    ]
    numbers = np.concatenate([x.ravel() for noise in passes for x in noise])
    assert len(passes) == 4
    assert len(np.unique(numbers)) == len(numbers) == 2 * 2 * ROWS


def dealt_out():
    """A loader that deals out rows itself, rightly and wrongly."""
    import torch

    from keras_mwms import data
    from keras_mwms import world
    from keras_mwms.data import notes

    utils = torch.utils.data
    ring = world.join().ring
    notes._told.clear()

    def loader(num_replicas, wrapped):
        rows = rows_as()
        sampler = utils.DistributedSampler(
            rows, num_replicas, ring.rank, shuffle=False
        )
        if wrapped:
            batches = utils.BatchSampler(sampler, SIZE, drop_last=False)
            return utils.DataLoader(rows, batch_sampler=batches)
        return utils.DataLoader(rows, SIZE, sampler=sampler)

    steps = []
    for wrapped in (False, True):
        if ring.rank or wrapped:
            steps.append(kinds.recorded(loader(ring.size, wrapped)))
            continue
        with pytest.warns(UserWarning, match="DistributedSampler: each"):
            steps.append(kinds.recorded(loader(ring.size, wrapped)))
    with pytest.raises(ValueError, match="Received: num_replicas=4"):
        data.shard(ring, loader(4, False))
    return steps


def test_rows_dealt_out_by_a_sampler_are_used_as_given(cluster):
    for rank, replica in enumerate(cluster(2).run(dealt_out)):
        own = list(range(rank, ROWS, 2))
        for steps in replica:
            assert steps == [own[:4], own[4:8], own[8:]]
