"""`keras.utils.PyDataset`: the same batches as in one process."""

import gc
import itertools
import random
import threading

import numpy as np
import pytest

from tests.data import kinds
from tests.data.test_kinds import joined
from tests.training.facts import assert_as_alone

ROWS, SIZE, EPOCHS = 22, 4, 2
WORKERS = (
    {},
    {"workers": 2},
    {"workers": 2, "max_queue_size": 1},
    {"workers": 2, "use_multiprocessing": True},
)


def recorded(options, shuffle):
    """The rows of this replica in each step of some epochs."""
    from keras_mwms import data
    from keras_mwms import world
    from tests.data.datasets import Data

    ring = world.join().ring
    random.seed(7 + ring.rank)
    adapter = data.shard(ring, Data(ROWS, SIZE, **options), shuffle=shuffle)
    epochs = []
    for _ in range(EPOCHS):
        adapter.on_epoch_begin()
        epochs.append(kinds.rows_of_pass(adapter, ring.rank))
        adapter.on_epoch_end()
    return epochs


def all_recorded():
    return [
        recorded(options, shuffle)
        for options in WORKERS
        for shuffle in (False, True)
    ]


def test_batches_come_in_the_order_the_chief_draws(cluster):
    of_replicas = cluster(3).run(all_recorded)
    cases = itertools.product(WORKERS, (False, True))
    for case, (options, shuffle) in enumerate(cases):
        random.seed(7)
        for epoch in range(EPOCHS):
            order = list(range(-(-ROWS // SIZE)))
            if shuffle:
                random.shuffle(order)
            expected = [
                list(range(i * SIZE, min((i + 1) * SIZE, ROWS))) for i in order
            ]
            steps = [each[case][epoch] for each in of_replicas]
            assert joined(steps) == expected, (options, shuffle, epoch)


def threads_left():
    """Threads after a whole pass, and after one that is broken off."""
    from keras_mwms import data
    from keras_mwms import world
    from tests.data.datasets import Data

    ring = world.join().ring
    adapter = data.shard(ring, Data(ROWS, SIZE, workers=2))
    before = set(threading.enumerate())
    left = []
    for steps in (None, 2):
        kinds.rows_of_pass(adapter, ring.rank, steps)
        gc.collect()
        left.append([str(t) for t in threading.enumerate() if t not in before])
    return left


def test_workers_end_with_their_pass(cluster):
    assert cluster(2).run(threads_left) == [[[], []]] * 2


def is_shared():
    """Whether there are other replicas: alone, a model is left to Keras."""
    from keras_mwms import world

    return world.join().ring.size > 1


def a_model(inputs=2, **options):
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Dense(1)])
    if inputs:
        model.build((None, inputs))
    model.compile(keras.optimizers.Adam(0.1), "mse", **options)
    return model


def told(distributes, options, **fit):
    """What a data set is told, and trained weights."""
    import keras_mwms
    from tests.data.datasets import Data

    # Not built: Keras, then, begins an epoch to look at a batch.
    model = a_model(inputs=None)
    if distributes:
        model = keras_mwms.distribute(model)
    data, val = Data(ROWS, SIZE, **options), Data(1, SIZE)
    model.fit(data, validation_data=val, shuffle=False, verbose=0, **fit)
    weights = [np.array(w) for w in model.get_weights()]
    return data.events, val.events, weights


def told_in_all_ways():
    cases = []
    for options in ({}, {"workers": 2}):
        for fit in ({"epochs": 2}, {"epochs": 3, "steps_per_epoch": 3}):
            plain = told(False, options, **fit)
            ours = told(True, options, **fit)
            cases.append((options, fit, plain, ours))
    return cases


def test_a_data_set_is_told_of_epochs_as_by_keras(cluster):
    for replica in cluster(2).run(told_in_all_ways):
        for options, fit, plain, ours in replica:
            assert ours[0] == plain[0], (options, fit)
            assert ours[1] == plain[1], (options, fit)
            # What workers of Keras have made ahead when an epoch ends comes
            # first in the next, whatever it is.
            if not options:
                for mine, theirs in zip(ours[2], plain[2], strict=True):
                    np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def mixed(rank_seeds):
    """Weights after training on rows that get another order by chance."""
    import keras

    import keras_mwms
    from keras_mwms import world
    from tests.data.datasets import Data
    from tests.training.facts import facts_of

    model = keras_mwms.distribute(a_model())
    rank = world.join().ring.rank
    facts = {}
    for options in ({}, {"workers": 2, "use_multiprocessing": True}):
        keras.utils.set_random_seed(5 + rank * rank_seeds)
        data = Data(ROWS, SIZE, mixes=True, **options)
        history = model.fit(data, epochs=3, shuffle=True, verbose=0)
        facts |= facts_of(
            model, order=data.order, **{f"history{options}": history.history}
        )
    return facts


def test_what_is_drawn_after_an_epoch_is_the_chiefs(cluster, alone):
    assert_as_alone(cluster(3).run(mixed, 1), alone(mixed, 1))


def of_every_form():
    """Training and predicting on each form of batches."""
    import keras

    import keras_mwms
    from tests.data.datasets import Data
    from tests.training.facts import facts_of

    facts = {}
    for form, fit in [
        ("weighted", {}),
        ("labels", {"class_weight": {0: 1.0, 1: 5.0}}),
    ]:
        model = keras_mwms.distribute(a_model(weighted_metrics=["mae"]))
        data = Data(ROWS, SIZE, form)
        history = model.fit(data, epochs=2, shuffle=False, verbose=0, **fit)
        facts |= facts_of(model, **{form: history.history})
    facts["x"] = model.predict(Data(ROWS, SIZE, "x", workers=2), verbose=0)

    a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
    of_dict = keras.Model({"a": a, "b": b}, keras.ops.sum(a - 2 * b, 1))
    of_dict = keras_mwms.distribute(of_dict)
    facts["dict"] = of_dict.predict(Data(ROWS, SIZE, "dict"), verbose=0)
    nested = keras.Model({"a": a, "b": b}, keras.layers.Dense(1)(a + b))
    nested.compile("sgd", "mse")
    nested = keras_mwms.distribute(nested)
    scores = nested.evaluate(Data(ROWS, SIZE, "nested"), verbose=0)
    return facts | {"nested": scores}


def test_batches_of_every_form(cluster, alone):
    expected = alone(of_every_form)
    rows = np.arange(ROWS, dtype="float32")
    assert expected["x"].shape == (ROWS, 1)
    np.testing.assert_allclose(expected["dict"], 2 * (rows - 2 * (rows + 1)))
    assert_as_alone(cluster(3).run(of_every_form), expected)


def without_end(workers):
    """Training on a data set of no length, without and with steps."""
    import keras_mwms
    from tests.data.datasets import Data
    from tests.training.facts import facts_of

    facts = {}
    for options in ({}, {"workers": workers, "max_queue_size": 3}):
        model = keras_mwms.distribute(a_model())
        data = Data(None, SIZE, **options)
        if is_shared():
            with pytest.raises(ValueError, match="a PyDataset, have no end"):
                model.fit(data, verbose=0)
            with pytest.raises(ValueError, match="pass steps_per_epoch to"):
                model.evaluate(data, verbose=0)
        history = model.fit(
            data,
            epochs=2,
            steps_per_epoch=3,
            validation_data=Data(None, 2, **options),
            validation_steps=2,
            verbose=0,
        )
        facts |= facts_of(
            model,
            **{f"history {len(options)}": history.history},
            scores=model.evaluate(data, steps=2, verbose=0),
            predicted=model.predict(Data(None, 1, "x"), steps=4, verbose=0),
        )
    return facts


def test_without_an_end_steps_are_asked_for(cluster, alone):
    # Workers of Keras lose the batch that it looks at to build a model.
    expected = alone(without_end, 1)
    assert expected["predicted"].shape == (4, 1)
    assert_as_alone(cluster(3).run(without_end, 2), expected)
