"""Generators and Grain: batches that come one by one, with or without end."""

import numpy as np
import pytest

from tests.data import kinds
from tests.data.test_kinds import flat
from tests.data.test_kinds import joined
from tests.data.test_py_dataset import is_shared
from tests.training.facts import assert_as_alone

SIZE = 4


class Taken:
    """A generator of batches of their own numbers, and how many it gave."""

    def __init__(self, batches):
        self.count = 0
        self.generator = self._run(batches)

    def _run(self, batches):
        for i in range(batches):
            self.count += 1
            yield np.full((SIZE, 2), i, "float32"), np.full(SIZE, i, "float32")


def endless():
    while True:
        yield np.ones((SIZE, 2), "float32"), np.ones(SIZE, "float32")


def a_model(policy=None):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    if policy is None:
        return model
    return keras_mwms.distribute(model, auto_shard_policy=policy)


def a37():
    """Seven batches, three steps; then what has no end, without steps."""
    from tests.training.facts import facts_of

    facts = {}
    for policy in ("AUTO", "OFF"):
        model = a_model(policy)
        history = model.fit(
            kinds.generator(28, SIZE), steps_per_epoch=3, verbose=0
        )
        facts[policy] = facts_of(model, history=history.history)
        if not is_shared():
            continue
        with pytest.raises(ValueError, match="a generator, have no end"):
            model.fit(endless(), verbose=0)
        with pytest.raises(ValueError, match="Received: no number of steps"):
            model.evaluate(endless(), verbose=0)
    return facts


def test_a37_python_generators(cluster, alone):
    expected = alone(a37)
    assert expected["AUTO"].keys() == expected["OFF"].keys()
    replicas = cluster(2).run(a37)
    for policy in ("AUTO", "OFF"):
        # By OFF each has the same rows twice: the mean gradient is the same.
        assert_as_alone([each[policy] for each in replicas], expected[policy])


def passes(distributes):
    """How many batches each of two calls takes from one generator."""
    from tests.training.facts import facts_of

    model = a_model("AUTO" if distributes else None)
    taken = Taken(30)
    counts = []
    for _ in range(2):
        model.fit(taken.generator, steps_per_epoch=3, epochs=2, verbose=0)
        counts.append(taken.count)
    # Until they end.
    history = model.fit(taken.generator, verbose=0)
    counts.append(taken.count)
    return facts_of(model, counts=np.array(counts), history=history.history)


@pytest.mark.backend("torch", "jax")
def test_a_generator_is_gone_on_with_as_by_keras(cluster, alone):
    assert_as_alone(cluster(2).run(passes, True), alone(passes, False))


def with_one_buffer():
    """Training on batches that are all written to the same arrays."""
    from tests.training.facts import facts_of

    x, y = np.empty((SIZE, 2), "float32"), np.empty(SIZE, "float32")

    def written():
        for i in range(7):
            x[:], y[:] = i, -i
            yield x, y

    facts = {}
    for policy in ("DATA", "OFF"):
        model = a_model(policy)
        history = model.fit(written(), verbose=0)
        facts[policy] = facts_of(model, history=history.history)
    return facts


# On TensorFlow, plain Keras counts a step for the end of the data.
@pytest.mark.backend("torch", "jax")
def test_a_generator_may_use_its_arrays_again(cluster, alone):
    expected = alone(with_one_buffer)
    replicas = cluster(2).run(with_one_buffer)
    for policy in ("DATA", "OFF"):
        assert_as_alone([each[policy] for each in replicas], expected[policy])


def run_out():
    """A generator with fewer batches than steps."""
    import warnings

    from tests.training.facts import facts_of

    model = a_model("AUTO")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(
            kinds.generator(10, SIZE), steps_per_epoch=5, epochs=2, verbose=0
        )
    assert any("ran out of data" in str(w.message) for w in caught)
    return facts_of(model, history=history.history)


# On TensorFlow, Keras begins the batches it has looked at once more.
@pytest.mark.backend("torch", "jax")
def test_a_generator_that_ends_too_early(cluster, alone):
    assert_as_alone(cluster(3).run(run_out), alone(run_out))


def never_ending():
    """What is known to have no end and what is not."""
    from keras_mwms.data import generators

    def twice():
        yield 1
        yield 2

    def until(limit):
        while True:
            if limit:
                return
            yield 1

    gens = [endless(), twice(), until(5), (i for i in [1])]
    return [generators.never_returns(each) for each in gens]


def test_whether_a_generator_can_end():
    assert never_ending() == [True, False, False, False]


def grains(rows=22):
    import grain

    x, y = kinds.rows_xy(rows)
    maps = grain.MapDataset.range(rows).map(lambda i: (x[i], y[i]))

    class Pair(grain.transforms.Map):
        def map(self, i):
            return x[i], y[i]

    def loader(epochs):
        return grain.DataLoader(
            data_source=range(rows),
            sampler=grain.samplers.SequentialSampler(rows)
            if epochs == 1
            else grain.samplers.IndexSampler(rows, num_epochs=epochs),
            operations=[Pair(), grain.transforms.Batch(SIZE)],
        )

    return {
        "map": maps.batch(SIZE),
        "shuffled": maps.shuffle(seed=4).batch(SIZE),
        "iter": maps.batch(SIZE).to_iter_dataset(),
        "batched iter": maps.to_iter_dataset().batch(SIZE),
        "filtered": maps.filter(lambda row: row[1] % 5 > 0)
        .to_iter_dataset()
        .batch(SIZE),
        "loader": loader(1),
    }, {
        "map": maps.batch(SIZE).repeat(),
        "iter": maps.batch(SIZE).repeat().to_iter_dataset(),
        "batched iter": maps.repeat().to_iter_dataset().batch(SIZE),
        "loader": loader(None),
    }


def of_grain():
    """What is read of each, and how each without end is told."""
    from keras_mwms import data
    from keras_mwms import world

    ring = world.join().ring
    with_end, without = grains()
    steps = {name: kinds.recorded(each) for name, each in with_end.items()}
    limited, errors = {}, {}
    for name, each in without.items():
        adapter = data.shard(ring, each, steps=7)
        limited[name] = kinds.rows_of_pass(adapter, ring.rank, 7)
        try:
            data.shard(ring, each)
        except ValueError as error:
            errors[name] = str(error)
    return steps, limited, errors


@pytest.mark.needs("grain")
def test_grain(cluster):
    of_replicas = cluster(3).run(of_grain)
    in_order = [list(range(i, min(i + SIZE, 22))) for i in range(0, 22, SIZE)]
    steps = {
        name: joined([each[0][name] for each in of_replicas])
        for name in of_replicas[0][0]
    }
    for name in ("map", "iter", "batched iter", "loader"):
        assert steps[name] == in_order, name
    assert sorted(flat(steps["shuffled"])) == list(range(22))
    assert flat(steps["filtered"]) == [i for i in range(22) if i % 5]
    for name in ("map", "iter", "loader"):
        limited = joined([each[1][name] for each in of_replicas])
        assert limited[:5] == in_order[:5], name
        assert len(limited) == 7
    for *_, errors in of_replicas:
        assert sorted(errors) == ["batched iter", "iter", "loader", "map"]
        assert all("have no end" in each for each in errors.values())


def of_frames():
    import pandas

    frames = (
        (pandas.DataFrame(x), pandas.Series(y)) for x, y in kinds.batches(7, 4)
    )
    return kinds.recorded(frames)


def test_a_generator_of_frames(cluster):
    assert joined(cluster(2).run(of_frames)) == [[0, 1, 2, 3], [4, 5, 6]]
