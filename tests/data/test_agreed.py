"""Exchanges of a step: none where all know the steps, else one, ahead."""

import threading

import pytest

from tests.data import kinds
from tests.data.test_uneven import compiled

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
    few, many = exchanges(kind, 2), exchanges(kind, 6)
    return (many - few) / 4


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
def test_one_exchange_a_step_elsewhere(cluster, kind):
    assert cluster(2).run(exchanges_a_step, kind) == [1, 1]


def steps_ahead(count):
    """Whether each step's successor was agreed on while the step ran."""
    import numpy as np

    from keras_mwms import world
    from keras_mwms.data.agreed import AgreedSteps
    from keras_mwms.data.source import Part

    ring = world.join().ring
    taken = []
    parts = (Part((np.array([i]),), 1) for i in range(count + ring.rank))
    steps = AgreedSteps(
        ring, "test.ahead", parts, lambda: len(taken) + 1 < count
    )
    ahead = []
    with Calls(ring) as calls:
        for step, _ in steps:
            taken.append(int(step[0][0]))
            last = len(taken) == count
            # This step has not ended, and asks for nothing.
            ahead.append(calls.have_ended(len(taken) + (not last)))
            if last:
                break
    return taken, ahead, calls.begun


def test_a_step_is_agreed_on_one_ahead(cluster):
    count = 5
    for taken, ahead, begun in cluster(2).run(steps_ahead, count):
        assert taken == list(range(count))
        assert all(ahead)
        # No more than one ahead, and none beyond the limit.
        assert begun == count
