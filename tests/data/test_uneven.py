"""Replicas whose data have unlike numbers of batches, or no end.

All take the same number of steps, each row is used once, and the steps are
those of one process that is fed the same global batches.
"""

import itertools
import threading
import warnings
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any

import pytest

from tests.data import kinds
from tests.pool import PerRank
from tests.training.facts import assert_as_alone
from tests.training.facts import assert_same

REPLICAS = 3
UNEQUAL = ((2, 2, 2), (1,), (3, 1))
STARTS = {
    "jax": "get_jax_iterator",
    "tensorflow": "get_tf_dataset",
    "torch": "get_torch_dataloader",
}
LONG = ((2,) * 7, (1,) * 4, (3,))


@dataclass(frozen=True)
class Case:
    """Batches of so many rows on each replica, and how they are used."""

    kind: str
    sizes: tuple[tuple[int, ...], ...] = UNEQUAL
    fit: dict[str, Any] = field(default_factory=dict)
    executed: int = 1


CASES = {
    "generators": Case("generator"),
    "generators_validated": Case("generator", fit={"validate": True}),
    "py_datasets": Case("py_dataset", fit={"epochs": 2}),
    "an_empty_one": Case("py_dataset", ((), (2, 1), (1,)), {"epochs": 2}),
    "steps_beyond": Case("generator", fit={"steps_per_epoch": 5}),
    "steps_within": Case(
        "generator", LONG, {"steps_per_epoch": 2, "epochs": 3}
    ),
    "steps_across_passes": Case(
        "py_dataset", fit={"steps_per_epoch": 2, "epochs": 3}
    ),
}
EXECUTIONS = {
    "executions": Case("generator", LONG, executed=3),
    "executions_with_steps": Case(
        "generator", LONG, {"steps_per_epoch": 7}, executed=3
    ),
    "executions_of_known": Case("py_dataset", LONG, executed=3),
}


def numbered(sizes):
    """Row numbers of every batch, each replica's after those before it."""
    numbers = itertools.count()
    return [
        [list(itertools.islice(numbers, size)) for size in of_replica]
        for of_replica in sizes
    ]


def joined(of_replicas):
    """The global batches that replicas' own batches make up."""
    return [
        [row for batch in step for row in batch]
        for step in itertools.zip_longest(*of_replicas, fillvalue=[])
    ]


def batch_of(rows):
    x, y = kinds.rows_xy(max(rows, default=0) + 1)
    return x[rows], y[rows]


def generator(batches):
    return (batch_of(rows) for rows in batches)


def py_dataset(batches):
    data = kinds.py_dataset(0, 1)
    data.batches = [batch_of(rows) for rows in batches]
    return data


DATA = {"generator": generator, "py_dataset": py_dataset}


def compiled(policy="OFF", **options):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse", **options)
    return keras_mwms.distribute(model, auto_shard_policy=policy)


def fitted(data, policy="OFF", executed=1, **options):
    """What `fit` leaves, and how often it said that data ran out."""
    from tests.training.facts import facts_of

    told = {"steps_per_execution": executed} if executed > 1 else {}
    model = compiled(policy, **told)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(data, verbose=0, shuffle=False, **options)
    ran_out = [w for w in caught if "ran out of data" in str(w.message)]
    facts = facts_of(model, history=history.history)
    return facts | {"iterations": int(model.optimizer.iterations)}, len(ran_out)


def fitted_cases(cases, batches):
    """One replica's results of all cases, given its batches of each."""
    results = []
    for case, own in zip(cases, batches, strict=True):
        options = dict(case.fit)
        if options.pop("validate", False):
            options["validation_data"] = DATA[case.kind](own)
        data = DATA[case.kind](own)
        results.append(fitted(data, executed=case.executed, **options))
    return results


def as_one(cluster, cases, batches):
    """The results of one process that is fed these global batches.

    Where TensorFlow does not know the end of the data, Keras counts a step
    that it has no batch for. So a `PyDataset` is the measure, but for what
    Keras says of data that ran out.
    """
    known = [replace(case, kind="py_dataset") for case in cases]
    run = cluster(1).run
    (results,) = run(fitted_cases, [*known, *cases], [*batches, *batches])
    facts = [facts for facts, _ in results[: len(cases)]]
    ran_out = [number for _, number in results[len(cases) :]]
    return list(zip(facts, ran_out, strict=True))


def compare(cluster, cases):
    """Each case's results of every replica, and those of one process."""
    numbers = [numbered(case.sizes) for case in cases]
    per_rank = PerRank(list(zip(*numbers, strict=True)))
    replicas = cluster(REPLICAS).run(fitted_cases, cases, per_rank)
    expected = as_one(cluster, cases, list(map(joined, numbers)))
    return list(zip(zip(*replicas, strict=True), expected, strict=True))


def assert_alike(replicas, expected):
    facts, ran_out = zip(*replicas, strict=True)
    assert_as_alone(facts, expected[0])
    # Keras warns as in one process.
    assert set(ran_out) == {expected[1]}


@pytest.fixture(scope="module")
def of_cases(cluster):
    results = compare(cluster, list(CASES.values()))
    return dict(zip(CASES, results, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_one_process(of_cases, name):
    replicas, expected = of_cases[name]
    assert_alike(replicas, expected)


def test_a_warning_where_keras_warns(of_cases):
    warned = {name: alone[1] for name, (_, alone) in of_cases.items()}
    assert warned["steps_beyond"] == 1
    assert warned["steps_within"] == warned["py_datasets"] == 0


@pytest.mark.backend("tensorflow", "jax")
def test_several_steps_an_execution(cluster):
    for name, (replicas, expected) in zip(
        EXECUTIONS, compare(cluster, list(EXECUTIONS.values())), strict=True
    ):
        assert expected[0]["iterations"] == 7, name
        assert_alike(replicas, expected)


def a03(rows, size):
    x, y = kinds.rows_xy(rows)
    options = {"batch_size": size, "shuffle": False}
    steps = kinds.recorded(x, y=y, **options)
    return steps, fitted(x, None, y=y, epochs=2, batch_size=size)


def test_a03_workers_have_a_different_number_of_batches(cluster):
    rows, size = 5, 2
    replicas = cluster(REPLICAS).run(a03, rows, size)
    steps, results = zip(*replicas, strict=True)
    assert joined(steps) == [[0, 1], [2, 3], [4]]
    ((_, expected),) = cluster(1).run(a03, rows, size)
    assert_alike(results, expected)
    assert expected[0]["iterations"] == 6


def a03_files(folder, counts, size):
    steps = kinds.recorded(
        kinds.tf_records(folder, counts, size), policy=policy_of("FILE")
    )
    data = kinds.tf_records(folder, counts, size)
    return steps, fitted(data, "FILE", epochs=2)


def policy_of(name):
    from keras_mwms.data import policy_of

    return policy_of(name)


@pytest.mark.needs("tensorflow")
def test_a03_files_of_unlike_length(cluster, tmp_path_factory):
    counts = (3, 0, 5, 1, 7, 2, 4)
    folders = [str(tmp_path_factory.mktemp("files")) for _ in range(REPLICAS)]
    replicas = cluster(REPLICAS).run(a03_files, PerRank(folders), counts, 4)
    steps, results = zip(*replicas, strict=True)
    # Every replica takes as many steps, and each row is used once.
    assert len({len(of_replica) for of_replica in steps}) == 1
    batches = joined(steps)
    assert sorted(itertools.chain(*batches)) == list(range(sum(counts)))
    case = Case("py_dataset", fit={"epochs": 2})
    (((expected, _),),) = cluster(1).run(fitted_cases, [case], [batches])
    assert_as_alone([facts for facts, _ in results], expected)
    assert expected["iterations"] == 2 * len(batches)


def structured(kind, rows):
    """Own rows of each step, of elements that are no plain arrays."""
    import keras
    import numpy as np
    import tensorflow as tf

    from keras_mwms import data
    from keras_mwms import world

    def element(i):
        row = {"i": i, "pair": (tf.stack([i, i]),)}
        if kind == "text":
            row["text"] = tf.strings.as_string(i)
        if kind == "ragged":
            row["ragged"] = tf.range(i % 3)
        return row

    dataset = tf.data.Dataset.range(100).take(rows).map(element)
    batched = dataset.ragged_batch if kind == "ragged" else dataset.batch
    ring = world.join().ring
    adapter = data.shard(ring, batched(3), policy=policy_of("OFF"))
    steps = []
    backend = keras.backend.backend()
    try:
        for batch in getattr(adapter, STARTS[backend])():
            own = int(np.asarray(batch.rows)[ring.rank])
            row = batch.data
            steps.append([int(i) for i in np.asarray(row["i"])[:own]])
            assert sorted(row) == sorted({"i", "pair", kind} - {"dict"})
            assert row["pair"][0].shape[1] == 2
            if kind == "text":
                texts = [bytes(t) for t in np.asarray(row["text"]).tolist()]
                assert texts == [str(int(i)).encode() for i in row["i"]]
            if kind == "ragged" and backend == "tensorflow":
                lengths = row["ragged"].row_lengths().numpy()
                assert (lengths == np.asarray(row["i"]) % 3).all()
    except tf.errors.OutOfRangeError:
        pass
    return steps


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("kind", ["dict", "text", "ragged"])
def test_a_replica_without_a_row_gets_another_ones(cluster, backend, kind):
    if (backend, kind) == ("torch", "text"):
        pytest.skip("PyTorch has no tensors of text")
    steps = cluster(2).run(structured, kind, PerRank([4, 0]))
    assert steps == [[[0, 1], [2], [3]], [[], [], []]]


def unlike(lengths, policy):
    fitted(generator(numbered((lengths,))[0]), policy)


def test_slices_of_unlike_numbers_of_batches(cluster):
    outcomes = cluster(REPLICAS).run_outcomes(
        unlike, PerRank([(2, 2, 2), (2, 2, 2, 2), (2, 2, 2)]), "DATA"
    )
    for outcome in outcomes:
        assert outcome.error_type == "ValueError", outcome
        assert "Received, in rank order: a batch of no more batch, 2 rows" in (
            outcome.error_text
        )


class BrokenError(Exception):
    pass


def failing(at):
    """A generator that raises, on the replicas that say where."""

    def batches():
        for i in range(6):
            if i == at:
                raise BrokenError(f"batch {i}")
            yield batch_of([i])

    fitted(batches())


@pytest.mark.parametrize("at", [0, 3])
def test_a_generator_that_raises_on_one_replica(cluster, at):
    outcomes = cluster(REPLICAS).run_outcomes(
        failing, PerRank([None, at, None])
    )
    first, broken, last = outcomes
    assert (broken.error_type, broken.error_text) == (
        "BrokenError",
        f"batch {at}",
    )
    for other in (first, last):
        assert other.error_type == "RuntimeError", other
        assert "a failure on rank 1" in other.error_text
    # Exchanges still pair.
    for facts, _ in cluster(REPLICAS).run(fitted_cases, CASES_AFTER, ROWS)[0]:
        assert facts["iterations"] == 3


CASES_AFTER = [CASES["generators"]]
ROWS = PerRank([[own] for own in numbered(UNEQUAL)])


def stopped(own, gate_opens_after):
    """Fits an endless generator, is stopped, and goes on with other data.

    Returns:
        How many batches were used, and the results of what came then.
    """
    import keras

    gate = threading.Event()
    read = []

    def endless():
        for i in itertools.count():
            if i == 4:
                # The batch that nobody takes: it is asked for ahead.
                gate.wait(60)
            read.append(i)
            yield batch_of([i])

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                self.model.stop_training = True

    data = endless()
    model = compiled()
    model.fit(
        data, steps_per_epoch=100, epochs=2, verbose=0, callbacks=[Stop()]
    )
    iterations = int(model.optimizer.iterations)
    before = list(read)
    opener = threading.Timer(gate_opens_after, gate.set)
    opener.start()
    # The task of the stopped training is still in the generator.
    model.fit(data, steps_per_epoch=2, verbose=0)
    opener.join()
    again = int(model.optimizer.iterations) - iterations
    return before, iterations, again, fitted_cases(CASES_AFTER, own)


def test_another_fit_after_an_endless_one_was_stopped(cluster):
    replicas = cluster(REPLICAS).run(stopped, ROWS, 0.2)
    (expected,) = as_one(cluster, CASES_AFTER, [joined(numbered(UNEQUAL))])
    for before, iterations, again, _ in replicas:
        assert before == [0, 1, 2, 3]
        assert (iterations, again) == (4, 2)
    assert_alike([each[-1][0] for each in replicas], expected)


def first_differs(offset):
    def batches():
        for i in range(3):
            yield batch_of([offset + i, offset + i + 1, offset + i + 2])

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled("DATA").fit(batches(), verbose=0)
    return sum("first batch is not the same" in str(w.message) for w in caught)


def test_a_first_batch_that_differs(cluster):
    pool = cluster(REPLICAS)
    assert pool.run(first_differs, PerRank([0, 0, 1])) == [1, 0, 0]
    assert pool.run(first_differs, 0) == [0, 0, 0]


def endless_here(is_endless):
    def endless():
        while True:
            yield batch_of([1])

    fitted(endless() if is_endless else generator([[1], [2]]))


def test_one_replica_has_data_without_an_end(cluster):
    outcomes = cluster(2).run_outcomes(endless_here, PerRank([False, True]))
    for outcome in outcomes:
        assert outcome.error_type == "ValueError", outcome
        assert "pass steps_per_epoch" in outcome.error_text


def no_data():
    fitted(py_dataset([]))


def test_no_replica_has_data(cluster):
    for outcome in cluster(2).run_outcomes(no_data):
        assert outcome.error_type == "ValueError", outcome
        assert "data of 0 batches on every replica" in outcome.error_text


def transported():
    """Rows of every kind, sent as bytes."""
    import numpy as np
    import tensorflow as tf

    from keras_mwms.data import transport

    row = (
        {
            "number": np.array([[1.5]], "float16"),
            "text": np.array(["a"], object),
            "bytes": tf.constant([b"b"]),
            "none": None,
        },
        [tf.ragged.constant([[[1, 2], [3]]]), tf.sparse.eye(1, 3)],
    )
    got = transport.unpacked(transport.packed(row))
    assert got[0]["number"].dtype == "float16"
    assert got[0]["number"] == 1.5
    assert got[0]["text"].tolist() == ["a"]
    assert got[0]["bytes"].tolist() == [b"b"]
    assert got[0]["none"] is None
    ragged, sparse = got[1]
    assert ragged.to_list() == [[[1, 2], [3]]]
    assert isinstance(sparse, tf.SparseTensor)
    assert tf.sparse.to_dense(sparse).numpy().tolist() == [[1, 0, 0]]


@pytest.mark.needs("tensorflow")
def test_rows_of_every_kind_are_sent(cluster):
    cluster(1).run(transported)


def test_facts_of_cases_differ(of_cases):
    """The cases are no twins: a row left out would be seen."""
    with pytest.raises(AssertionError):
        assert_same(
            of_cases["generators"][1][0], of_cases["an_empty_one"][1][0]
        )
