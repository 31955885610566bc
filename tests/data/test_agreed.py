"""Exchanges of a step: none where all know the steps, else few, ahead."""

import math
import threading

import pytest

from keras_mwms.data.ahead import MOST_PARTS
from tests.data import kinds
from tests.data.test_uneven import compiled
from tests.pool import PerRank

ROWS, BATCH = 4, 2
WAIT = 30


class Calls:
    """Counts a ring's exchanges of host values, and passes them on."""

    def __init__(self, ring):
        self.ring = ring
        self.changed = threading.Condition()
        self.begun = self.ended = 0

    def __enter__(self):
        exchange = self.ring._gather

        def counted(*args):
            with self.changed:
                self.begun += 1
                self.changed.notify_all()
            result = exchange(*args)
            with self.changed:
                self.ended += 1
                self.changed.notify_all()
            return result

        self.ring._gather = counted
        return self

    def __exit__(self, *_):
        del self.ring._gather

    def have_ended(self, number):
        """Waits for it, and says whether it was so in time."""
        with self.changed:
            return self.changed.wait_for(lambda: self.ended >= number, WAIT)


def arrays(rows, size):
    return kinds.rows_xy(rows)[0]


def repeated(rows, size):
    return kinds.tf_data(rows, size).repeat()


def own_pipeline(rows, size):
    """Each replica's own data, in batches of one size."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(kinds.rows_xy(2 * rows))
    return data.batch(size, drop_remainder=True)


def own_endless_pipeline(rows, size):
    return own_pipeline(rows, size).repeat()


KINDS = {
    "arrays": arrays,
    "py_dataset": kinds.py_dataset,
    "own_py_dataset": kinds.py_dataset,
    "loader": kinds.loader,
    "tf_data": kinds.tf_data,
    "repeated": repeated,
    "own_pipeline": own_pipeline,
    "own_endless_pipeline": own_endless_pipeline,
    "generator": kinds.generator,
    "unknown": kinds.unknown,
}


def exchanges(kind, steps):
    """How many exchanges a `fit` has that takes so many steps."""
    from keras_mwms import world

    policy = "OFF" if kind.startswith("own") else "DATA"
    ring = world.join().ring
    model = compiled(policy)
    told = {}
    if kind in ("repeated", "own_endless_pipeline"):
        told["steps_per_epoch"] = steps
    if kind == "arrays":
        told |= {"y": kinds.rows_xy(steps * BATCH)[1], "batch_size": BATCH}

    def fit():
        data = KINDS[kind](steps * BATCH, BATCH)
        model.fit(data, verbose=0, shuffle=False, **told)

    # What is settled once.
    fit()
    with Calls(ring) as calls:
        fit()
    return calls.begun


def exchanges_a_step(kind):
    few, many = exchanges(kind, 2), exchanges(kind, 42)
    return (many - few) / 40


def _needs(kind, module):
    return pytest.param(kind, marks=pytest.mark.needs(module))


@pytest.mark.parametrize(
    "kind",
    [
        "arrays",
        "py_dataset",
        _needs("loader", "torch"),
        _needs("tf_data", "tensorflow"),
        _needs("repeated", "tensorflow"),
        _needs("own_pipeline", "tensorflow"),
    ],
)
def test_nothing_is_agreed_where_all_know_the_steps(cluster, kind):
    assert cluster(2).run(exchanges_a_step, kind) == [0, 0]


@pytest.mark.parametrize(
    "kind",
    [
        "generator",
        "own_py_dataset",
        _needs("own_endless_pipeline", "tensorflow"),
        _needs("unknown", "tensorflow"),
    ],
)
def test_one_exchange_a_step_at_most_elsewhere(cluster, kind):
    for number in cluster(2).run(exchanges_a_step, kind):
        assert 0 < number <= 1


def steps_over(parts, count):
    """Agreed steps of these parts, of which so many will be taken."""
    from keras_mwms import world
    from keras_mwms.data.agreed import AgreedSteps
    from keras_mwms.data.ahead import Reader

    ring = world.join().ring
    reader = Reader(parts, count, "reader")
    return ring, AgreedSteps(ring, "test.ahead", reader, count)


def part_of(i):
    import numpy as np

    from keras_mwms.data.source import Part

    return Part((np.array([i]),), 1)


def steps_ahead(count):
    """Whether each step's successor was agreed on while the step ran.

    Each part is there once the step before it runs, and no earlier.
    """
    taken = []
    begun = [threading.Event() for _ in range(count + 1)]
    begun[0].set()
    read = []

    def parts():
        for i in range(count + 2):
            assert begun[i].wait(WAIT)
            read.append(i)
            yield part_of(i)

    ring, steps = steps_over(parts(), count)
    ahead = []
    with Calls(ring) as calls:
        for step, _ in steps:
            taken.append(int(step[0][0]))
            begun[len(taken)].set()
            last = len(taken) == count
            # This step has not ended, and asks for nothing.
            ahead.append(calls.have_ended(len(taken) + (not last)))
            if last:
                break
    return taken, ahead, calls.begun, read


def test_a_step_is_agreed_on_one_ahead(cluster):
    count = 5
    for taken, ahead, begun, read in cluster(2).run(steps_ahead, count):
        assert taken == read == list(range(count))
        assert all(ahead)
        # None beyond the limit.
        assert begun == count


def more_than_said():
    """Steps beyond their number, of which the second replica has fewer."""
    from keras_mwms import world

    number = 5 - 2 * world.join().ring.rank
    _, steps = steps_over((part_of(i) for i in range(number)), 3)
    return [(int(step[0][0]), rows.tolist()) for step, rows in steps]


def test_more_steps_are_taken_than_were_said(cluster):
    chief, other = cluster(2).run(more_than_said)
    rows = [[1, 1]] * 3 + [[1, 0]] * 2
    assert chief == list(zip(range(5), rows, strict=True))
    # A row of its own stands in.
    assert other == list(zip([0, 1, 2, 2, 2], rows, strict=True))


def stopped_early():
    """What is ready where nothing was read before all was stopped."""
    from keras_mwms.data.ahead import Reader

    reader = Reader(iter([part_of(1)]), 1, "reader")
    reader.stop()
    return reader.unused(), [item.is_last for item in reader.ready()]


def test_a_stopped_reader_keeps_nobody_waiting(cluster):
    assert cluster(1).run(stopped_early) == [([], [True])]


def steps_at_once(count, fails_at):
    """Steps of parts that are there long before they are taken."""
    changed = threading.Condition()
    read = []

    def parts():
        for i in range(count):
            if i == fails_at:
                raise KeyError(i)
            with changed:
                read.append(i)
                changed.notify_all()
            yield part_of(i)

    end = count if fails_at is None else fails_at
    ring, steps = steps_over(parts(), None)
    taken, error, most = [], None, 0
    with Calls(ring) as calls:
        try:
            for step, rows in steps:
                taken.append((int(step[0][0]), rows.tolist()))
                number = min(len(taken) + MOST_PARTS, end)
                with changed:
                    assert changed.wait_for(
                        lambda n=number: len(read) >= n, WAIT
                    )
                most = max(most, len(read) - len(taken))
        except (KeyError, RuntimeError) as raised:
            error = type(raised).__name__, str(raised)
    return taken, error, calls.begun, most


def test_many_steps_are_agreed_on_at_once(cluster):
    count = 30
    for taken, error, begun, most in cluster(2).run(steps_at_once, count, None):
        assert taken == [(i, [1, 1]) for i in range(count)]
        assert error is None
        # Eight in each but for the first two, which may come too early.
        assert begun <= 2 + math.ceil(count / (MOST_PARTS - 1))
        assert most == MOST_PARTS


def test_steps_before_a_failure_are_taken(cluster):
    count, fails_at = 30, 12
    here, there = cluster(2).run(
        steps_at_once, count, PerRank([None, fails_at])
    )
    for taken, *_ in (here, there):
        assert [step for step, _ in taken] == list(range(fails_at))
    assert there[1] == ("KeyError", str(fails_at))
    assert here[1][0] == "RuntimeError"
    assert "a failure on rank 1" in here[1][1]


def broken_off(policy):
    """Rows of passes over one generator, each broken off but the last."""
    from keras_mwms import data
    from keras_mwms import world

    ring = world.join().ring
    batches = kinds.batches(2 * 20, 2)
    # A generator of one function, as users have them.
    generator = (batch for batch in batches)
    passes = []
    for limit in (3, 1, None):
        adapter = data.shard(
            ring, generator, policy=data.policy_of(policy), steps=100
        )
        passes.append(kinds.rows_of_pass(adapter, ring.rank, limit))
    return passes


@pytest.mark.parametrize("policy", ["DATA", "OFF"])
def test_a_generator_goes_on_where_it_was_stopped(cluster, policy):
    for rank, passes in enumerate(cluster(2).run(broken_off, policy)):
        numbers = [row for steps in passes for rows in steps for row in rows]
        every = {"DATA": 2, "OFF": 1}[policy]
        first = rank if policy == "DATA" else 0
        assert numbers == list(range(first, 40, every))
        assert list(map(len, passes)) == [3, 1, 16]


def used_otherwise():
    from keras_mwms import data
    from keras_mwms import world

    ring = world.join().ring
    generator = (batch for batch in kinds.batches(40, 2))
    for policy in ("DATA", "OFF"):
        adapter = data.shard(
            ring, generator, policy=data.policy_of(policy), steps=100
        )
        kinds.rows_of_pass(adapter, ring.rank, 1)


def test_a_stopped_generator_is_not_used_in_another_way(cluster):
    for outcome in cluster(2).run_outcomes(used_otherwise):
        assert outcome.error_type == "ValueError", outcome
        assert "Received: Own after Sliced" in outcome.error_text


def threads_left():
    """Threads and generators that passes leave behind."""
    import gc
    import weakref

    from keras_mwms import world

    world.join()
    before = threading.active_count()
    generators = []
    for _ in range(3):
        generator = (batch for batch in kinds.batches(40, 2))
        generators.append(weakref.ref(generator))
        model = compiled("DATA")
        model.fit(generator, steps_per_epoch=2, verbose=0)
        del model, generator
        gc.collect()
    return threading.active_count() - before, [g() for g in generators]


def test_a_pass_leaves_nothing_behind(cluster):
    for threads, generators in cluster(2).run(threads_left):
        assert threads <= 1
        assert generators == [None] * 3
