"""Callbacks decide alike, whichever replicas have them.

The cases A06, A22 and A49 are reports of what went wrong for others.
"""

import csv
import pathlib
import threading
import warnings

import numpy as np
import pytest

from tests.pool import PerRank
from tests.training.facts import as_numpy
from tests.training.facts import assert_as_alone
from tests.training.facts import assert_same
from tests.training.facts import facts_of

# Five steps an epoch, uneven.
ROWS = 23
BATCH = 5

ALL = PerRank([True, True])
CHIEF = PerRank([True, False])
OTHER = PerRank([False, True])


def a_model(**options):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse", **options)
    return keras_mwms.distribute(model)


def rows():
    x = np.random.default_rng(6).normal(size=(ROWS, 2)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def fit(model, callbacks=None, **options):
    x, y = rows()
    options = {"shuffle": False, "verbose": 0, "epochs": 2} | options
    return model.fit(x, y, batch_size=BATCH, callbacks=callbacks, **options)


def iterations_of(model):
    return int(as_numpy(model.optimizer.iterations))


def a_key_of_its_own(has_it):
    import keras

    def on_epoch_end(epoch, logs):
        logs["lr"] = 0.1

    model = a_model()
    own = keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)
    history = dict(fit(model, [own] if has_it else [], epochs=3).history)
    keys = history.pop("lr", None)
    return facts_of(model, history=history), keys


@pytest.mark.parametrize(("who", "has_it"), [("chief", CHIEF), ("1", OTHER)])
def test_a06_a_key_of_one_replica(cluster, who, has_it):
    ((expected, keys),) = cluster(1).run(a_key_of_its_own, True)
    assert keys == [0.1] * 3
    got = cluster(2).run(a_key_of_its_own, has_it)
    assert_as_alone([facts for facts, _ in got], expected)
    extra = [keys for _, keys in got]
    assert extra == ([keys, None] if who == "chief" else [None, keys])


def a_plateau(has_it):
    """The validation loss falls on the chief's row, and rises over both."""
    import keras

    import keras_mwms

    model = keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    keras_mwms.distribute(model)
    rates = []
    record = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: rates.append(
            float(as_numpy(model.optimizer.learning_rate))
        )
    )
    plateau = keras.callbacks.ReduceLROnPlateau(patience=0, factor=0.5)
    one = np.ones((3, 1), "float32")
    history = model.fit(
        one,
        one,
        batch_size=3,
        epochs=4,
        validation_data=(one[:2], np.array([[1.0], [-1.0]], "float32")),
        validation_batch_size=2,
        callbacks=[plateau, record] if has_it else [record],
        verbose=0,
    )
    rates.append(float(as_numpy(model.optimizer.learning_rate)))
    losses = {k: history.history[k] for k in ("loss", "val_loss")}
    return facts_of(model, rates=rates, history=losses)


@pytest.mark.parametrize("has_it", [ALL, CHIEF], ids=["on all", "on the chief"])
def test_a22_the_rate_follows_the_global_loss(cluster, has_it):
    (expected,) = cluster(1).run(a_plateau, True)
    reduced = [0.1, 0.1, 0.05, 0.025, 0.0125]
    np.testing.assert_allclose(expected["rates"], reduced, rtol=1e-6)
    got = cluster(2).run(a_plateau, has_it)
    for each in got:
        np.testing.assert_allclose(each["rates"], reduced, rtol=1e-6)
    assert_as_alone(got, expected)


def scheduled(has_it):
    import keras

    model = a_model()
    schedule = keras.callbacks.LearningRateScheduler(
        lambda epoch, rate: 0.1 / (epoch + 2)
    )
    history = fit(model, [schedule] if has_it else None)
    return facts_of(
        model,
        loss=history.history["loss"],
        rate=model.optimizer.learning_rate,
    )


def test_a_schedule_is_that_of_the_chief(cluster):
    (expected,) = cluster(1).run(scheduled, True)
    (without,) = cluster(1).run(scheduled, False)
    assert expected["rate"] == pytest.approx(0.1 / 3)
    for has_it in (ALL, CHIEF):
        assert_as_alone(cluster(2).run(scheduled, has_it), expected)
    assert_as_alone(cluster(2).run(scheduled, OTHER), without)


def logged(path, writes_more):
    import keras

    class Witness(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_epoch_end(self, epoch, logs=None):
            self.seen.append({k: float(v) for k, v in logs.items()})

    class Spoiler(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["of this replica"] = 1.0

    model = a_model(metrics=["mae"])
    first, last = Witness(), Witness()
    log = keras.callbacks.CSVLogger(path)
    spoilers = [Spoiler()] if writes_more else []
    history = fit(
        model, [first, log, last, *spoilers], validation_data=rows(), verbose=2
    ).history
    seen = [{k: history[k][i] for k in sorted(first.seen[0])} for i in range(2)]
    assert first.seen == last.seen == seen
    with open(path) as file:
        lines = list(csv.DictReader(file))
    written = [{k: float(line[k]) for k in first.seen[0]} for line in lines]
    assert written == seen
    return facts_of(
        model, **{f"epoch {i}": each for i, each in enumerate(seen)}
    )


def test_a49_all_see_the_global_logs(cluster, tmp_path):
    paths = [str(tmp_path / f"{name}.csv") for name in ("0", "1", "alone")]
    (expected,) = cluster(1).run(logged, paths[2], False)
    assert "epoch 1 val_mae" in expected
    got = cluster(2).run(logged, PerRank(paths[:2]), PerRank([False, True]))
    assert_as_alone(got, expected)
    assert len({pathlib.Path(path).read_text() for path in paths[:2]}) == 1


# Where a callback sets `stop_training`, and after how many of ten steps
# training ends, as in one process.
STOPS = {
    "on_train_begin": (None, 1),
    "on_epoch_begin": (1, 6),
    "on_train_batch_begin": (2, 3),
    "on_train_batch_end": (2, 3),
    "on_batch_end": (1, 2),
    "on_epoch_end": (0, 5),
    "on_test_begin": (None, 5),
    "on_test_batch_end": (1, 5),
    "on_test_end": (None, 5),
}


def a_stopper(hook, number, async_safe=False):
    """A callback that stops in a hook, when the hook gets a number."""
    import keras

    class Stopper(keras.callbacks.Callback):
        threads = ()

    def stop(self, *args, logs=None):
        self.threads = (*self.threads, threading.get_ident())
        if number is None or args[0] == number:
            self.model.stop_training = True

    setattr(Stopper, hook, stop)
    stopper = Stopper()
    stopper.async_safe = async_safe
    return stopper


def stopped(has_it):
    model = a_model()
    counts = {}
    for hook, (number, _) in STOPS.items():
        before = iterations_of(model)
        callbacks = [a_stopper(hook, number)] if has_it else []
        history = fit(model, callbacks, validation_data=rows())
        counts[hook] = iterations_of(model) - before
        losses = history.history["val_loss"]
    return counts, facts_of(model, losses=losses)


@pytest.mark.parametrize("has_it", [OTHER, CHIEF], ids=["rank 1", "chief"])
def test_one_replica_stops_all(cluster, has_it):
    ((counts, expected),) = cluster(1).run(stopped, True)
    assert counts == {hook: steps for hook, (_, steps) in STOPS.items()}
    got = cluster(2).run(stopped, has_it)
    assert [each for each, _ in got] == [counts] * 2
    assert_as_alone([facts for _, facts in got], expected)


def nan_in_a_row():
    import keras

    x, y = rows()
    x[12] = np.nan  # In step 2; with two replicas, of its rows 10 to 12.
    x[13] = np.nan
    model = a_model()
    model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=3,
        shuffle=False,
        callbacks=[keras.callbacks.TerminateOnNaN()],
        verbose=0,
    )
    return iterations_of(model)


def test_nan_on_one_replica(cluster):
    assert cluster(1).run(nan_in_a_row) == [3]
    assert cluster(2).run(nan_in_a_row) == [3] * 2
    assert cluster(3).run(nan_in_a_row) == [3] * 3


def early_stopped(has_it):
    import keras

    import keras_mwms

    model = a_model()
    best = keras.callbacks.EarlyStopping(
        monitor="val_loss", mode="max", patience=1, restore_best_weights=True
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = fit(
            model,
            [best] if has_it else None,
            epochs=5,
            validation_data=rows(),
        )
    warned = [str(w.message) for w in caught if "replicas differ" in str(w)]
    facts = facts_of(model, val_loss=history.history["val_loss"])
    return facts, warned, keras_mwms.check_in_sync(model)


def test_early_stopping(cluster):
    """The validation loss falls: the first epoch is the best of a maximum."""
    ((expected, *_),) = cluster(1).run(early_stopped, True)
    assert len(expected["val_loss"]) == 2
    for has_it in (ALL, CHIEF):
        got = cluster(2).run(early_stopped, has_it)
        assert_as_alone([facts for facts, *_ in got], expected)
        assert [differs for *_, differs in got] == [()] * 2
        warned = [len(each) for _, each, _ in got]
        assert warned == ([0, 0] if has_it is ALL else [1, 0])
    # Rank 1 restores what the chief does not: the chief's weights count.
    got = [facts for facts, *_ in cluster(2).run(early_stopped, OTHER)]
    assert_same(got[1], got[0], tolerance=0)
    assert len(got[0]["val_loss"]) == 2
    assert abs(
        got[0]["weight 0 kernel"] - expected["weight 0 kernel"]
    ).max() > (0.01)


WRAPPED = {
    "list": lambda keras, callback: [callback],
    "tuple": lambda keras, callback: (callback,),
    "single": lambda keras, callback: callback,
    "nested": lambda keras, callback: [[callback], []],
    "CallbackList": lambda keras, callback: keras.callbacks.CallbackList(
        [callback], add_history=True
    ),
}


def of_all_types(has_it):
    """How many steps ran, on which threads, and what is left in a list."""
    import keras

    model = a_model()
    results = {}
    for kind, wrap in WRAPPED.items():
        for async_safe in (False, True):
            before = iterations_of(model)
            # One that does not act on batches, where the other is.
            hook = "on_train_batch_end" if has_it else "on_train_begin"
            callback = a_stopper(hook, 1 if has_it else "never", async_safe)
            wrapped = wrap(keras, callback)
            if kind == "CallbackList":
                wrapped.set_model(model)
            elif not has_it and not async_safe:
                wrapped = None
            fit(model, wrapped)
            assert set(callback.threads) <= {threading.get_ident()}
            results[kind, async_safe] = iterations_of(model) - before
            if kind == "CallbackList":
                names = [type(c).__name__ for c in wrapped.callbacks]
                assert names == ["Stopper", "History"]
    return results


@pytest.mark.parametrize("has_it", [ALL, OTHER], ids=["on all", "on rank 1"])
def test_callbacks_of_all_types(cluster, has_it):
    expected = {(kind, safe): 2 for kind in WRAPPED for safe in (False, True)}
    assert cluster(2).run(of_all_types, has_it) == [expected] * 2


def in_executions(has_it):
    model = a_model(steps_per_execution=2)
    fit(model, [a_stopper("on_train_batch_end", 3)] if has_it else None)
    return iterations_of(model)


@pytest.mark.backend("tensorflow", "jax")
def test_several_steps_an_execution(cluster):
    assert cluster(1).run(in_executions, True) == [4]
    assert cluster(2).run(in_executions, OTHER) == [4] * 2


def exchanges(kind):
    """How many exchanges between hosts one epoch more takes."""
    import keras

    from keras_mwms import world

    def counted(*args):
        calls.append(args)
        return original(*args)

    kinds = {
        "none": list,
        "of Keras": lambda: [
            keras.callbacks.ProgbarLogger(),
            keras.callbacks.History(),
            keras.callbacks.ModelCheckpoint("no.keras", save_freq=10**6),
            keras.callbacks.EarlyStopping("loss"),
        ],
        "on batches": lambda: [a_stopper("on_train_batch_end", "never")],
    }
    model, ring = a_model(), world.join().ring
    original, calls, numbers = ring._all_gather_bytes, [], []
    fit(model, epochs=1)  # What is agreed once.
    ring._all_gather_bytes = counted
    try:
        for options in (dict(epochs=1), dict(epochs=1, steps_per_epoch=2)):
            calls.clear()
            fit(model, kinds[kind](), **options)
            numbers.append(len(calls))
    finally:
        del ring._all_gather_bytes
    return numbers[0] - numbers[1]


def test_exchanges_after_steps_only_where_needed(cluster):
    """Five steps against two."""
    assert cluster(2).run(exchanges, "none") == [0, 0]
    assert cluster(2).run(exchanges, "of Keras") == [0, 0]
    kinds = PerRank(["of Keras", "on batches"])
    assert cluster(2).run(exchanges, kinds) == [3, 3]


def meeting(extra):
    """Every hook of training meets that of the other replicas."""
    import keras

    import keras_mwms

    class Meeting(keras.callbacks.Callback):
        calls = 0

    def meet(self, *args, logs=None):
        keras_mwms.barrier()
        self.calls += 1

    for when in ("train", "epoch", "train_batch", "test", "test_batch"):
        for end in ("begin", "end"):
            setattr(Meeting, f"on_{when}_{end}", meet)
    model, callback = a_model(), Meeting()
    others = [keras.callbacks.EarlyStopping("loss", patience=9)] * extra
    fit(model, [*others, callback], validation_data=rows())
    return callback.calls, facts_of(model)


def test_barriers_in_callbacks(cluster):
    ((calls, expected),) = cluster(1).run(meeting, 0)
    # Of each epoch five steps of training, five of validation.
    assert calls == 2 + 2 * (2 + 10 + 2 + 10)
    got = cluster(2).run(meeting, PerRank([2, 0]))
    assert [each for each, _ in got] == [calls] * 2
    assert_as_alone([facts for _, facts in got], expected)


def own_fit(**options):
    """A model whose `fit` takes an argument more."""
    import keras

    import keras_mwms

    class Model(keras.Sequential):
        def fit(self, *args, greeting="none", **kwargs):
            greetings.append(greeting)
            return super().fit(*args, **kwargs)

    greetings = []
    model = Model([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    keras_mwms.distribute(model)
    fit(model, **options)
    return greetings


def test_arguments_of_a_fit_of_ones_own(cluster):
    assert cluster(2).run(own_fit, greeting="hello") == [["hello"]] * 2
    assert cluster(2).run(own_fit) == [["none"]] * 2
