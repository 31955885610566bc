"""The one line that users add, wherever they add it."""

import contextlib
import io
import json
import re
import sys

import numpy as np
import pytest

from tests.pool import PerRank
from tests.training.facts import as_numpy
from tests.training.facts import assert_as_alone
from tests.training.facts import facts_of
from tests.training.facts import named
from tests.training.own_steps import OWN_STEPS
from tests.training.own_steps import rival_models

ROWS = 13
BATCH = 5


def data(rows=ROWS):
    random = np.random.default_rng(4)
    x = random.normal(size=(rows, 3)).astype("float32")
    return x, np.tanh(x.sum(axis=1, keepdims=True))


def a_model(kind="sequential"):
    import keras

    hidden, output = keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)

    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.output_layer = hidden, output

        def call(self, inputs):
            return self.output_layer(self.hidden(inputs))

    if kind == "functional":
        inputs = keras.Input((3,))
        return keras.Model(inputs, output(hidden(inputs)))
    if kind == "subclassed":
        return Subclassed()
    shape = [keras.Input((3,))] if kind == "sequential" else []
    return keras.Sequential([*shape, hidden, output])


def compiled(model, **options):
    import keras

    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        "mse",
        metrics=["mae"],
        **options,
    )
    return model


def fit(model, **options):
    x, y = data()
    options = {"batch_size": BATCH, "verbose": 0} | options
    return model.fit(x, y, **options).history


def one_by_one(kind, distributed_first, seed):
    """The replicas draw different weights, and get those of the chief."""
    import keras

    import keras_mwms

    keras.utils.set_random_seed(seed)
    model = a_model(kind)
    if distributed_first:
        keras_mwms.distribute(model)
    compiled(model)
    assert keras_mwms.distribute(model) is model
    history = fit(model)
    return facts_of(model, history=history)


@pytest.mark.parametrize("distributed_first", [False, True])
@pytest.mark.parametrize(
    "kind", ["sequential", "unbuilt sequential", "functional", "subclassed"]
)
def test_before_and_after_compile_and_build(
    cluster, alone, kind, distributed_first
):
    seeds = PerRank([6, 7])
    got = cluster(2).run(one_by_one, kind, distributed_first, seeds)
    assert_as_alone(got, alone(one_by_one, kind, distributed_first, 6))


def recompiled():
    import keras

    import keras_mwms

    keras.utils.set_random_seed(8)
    model = keras_mwms.distribute(compiled(a_model()))
    first = fit(model)
    adam = keras.optimizers.Adam(0.01)
    model.compile(adam, "mae")
    assert model.optimizer is adam
    keras_mwms.distribute(model)
    second = fit(model, epochs=2)
    return facts_of(model, first=first, second=second)


def test_called_twice_and_compiled_anew(cluster, alone):
    assert_as_alone(cluster(2).run(recompiled), alone(recompiled))


def own_step(kind, backend, seed):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(seed)
    model = OWN_STEPS[kind](backend)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9))
    keras_mwms.distribute(model)
    fit(model, epochs=2)
    return facts_of(model)


def test_a54_a_train_step_of_the_users_own(cluster, alone, backend):
    seeds = PerRank([6, 7, 8])
    got = cluster(3).run(own_step, "reduces", backend, seeds)
    assert_as_alone(got, alone(own_step, "reduces", backend, 6))


def test_a_train_step_that_never_reduces(cluster, backend):
    outcomes = cluster(2).run_outcomes(own_step, "does not", backend, 6)
    for outcome in outcomes:
        assert outcome.error_type == "RuntimeError", outcome
        assert "without a gradient being exchanged" in outcome.error_text
        assert "model.optimizer" in outcome.error_text


def rivals(backend, seed):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(seed)
    model = rival_models(backend)
    model.compile()
    keras_mwms.distribute(model)
    fit(model, epochs=2)
    return named(
        weights={str(i): w for i, w in enumerate(model.get_weights())},
        first={str(i): v for i, v in enumerate(model.first.variables)},
        second={str(i): v for i, v in enumerate(model.second.variables)},
    )


def test_a54_two_optimizers(cluster, alone, backend):
    """As in a GAN: each trains its own part of the model."""
    got = cluster(2).run(rivals, backend, PerRank([6, 7]))
    expected = alone(rivals, backend, 6)
    assert int(expected["first 0"]) == int(expected["second 0"]) == 6
    assert_as_alone(got, expected)


def on_batches(kind, seed, first, last):
    """Steps without fit, which do not say how many rows the others have."""
    import keras

    import keras_mwms

    keras.utils.set_random_seed(seed)
    model = keras_mwms.distribute(compiled(a_model(kind)))
    compiled(model)
    x, y = data()
    for start in (0, BATCH):
        rows = slice(start + first, start + last)
        model.train_on_batch(x[rows], y[rows])
    return facts_of(model)


@pytest.mark.parametrize("kind", ["sequential", "subclassed"])
def test_train_on_batch_takes_a_replicas_own_rows(cluster, alone, kind):
    """Three rows here and two there are one global batch of five."""
    got = cluster(2).run(
        on_batches, kind, PerRank([9, 10]), PerRank([0, 3]), PerRank([3, 5])
    )
    assert_as_alone(got, alone(on_batches, kind, 9, 0, 5))


def dropped(seed):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(11)
    model = a_model()
    model.add(keras.layers.Dropout(0.5, seed=seed, name="dropout"))
    compiled(model)
    keras_mwms.distribute(model)
    masks = []
    for _ in range(2):
        # Ten rows: as many on each replica.
        x, y = data(10)
        model.fit(x, y, batch_size=10, shuffle=False, verbose=0)
        ones = np.ones((4, 50), "float32")
        mask = model.get_layer("dropout")(ones, training=True)
        masks.append(as_numpy(mask).ravel().tolist())
    return masks


@pytest.mark.parametrize("seed", [None, 3])
def test_dropout_masks_differ_between_replicas(cluster, alone, backend, seed):
    first, second = cluster(2).run(dropped, seed)
    masks = [*first, *second]
    assert all(
        masks[i] != masks[j]
        for i in range(len(masks))
        for j in range(i + 1, len(masks))
    )
    # Without a seed, PyTorch's own generator is asked for a number a value.
    if backend != "torch" or seed is not None:
        assert first == alone(dropped, seed)


def printed():
    import keras_mwms

    model = keras_mwms.distribute(compiled(a_model()))
    x, y = data()
    lines = {}
    calls = {
        "fit": lambda verbose: fit(model, verbose=verbose),
        "evaluate": lambda verbose: model.evaluate(x, y, verbose=verbose),
        "predict": lambda verbose: model.predict(x, verbose=verbose),
    }
    for name, call in calls.items():
        for verbose in ("auto", 1, 2):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                call(verbose)
            lines[f"{name} {verbose}"] = out.getvalue()
    return lines


def test_only_the_chief_prints(cluster):
    chief, other = cluster(2).run(printed)
    assert set(other.values()) == {""}
    assert all(chief.values())


class Mystery:
    """No data that Keras knows."""


def fit_with_mystery(method):
    import keras_mwms

    model = keras_mwms.distribute(compiled(a_model()))
    getattr(model, method)(Mystery())


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_data_of_an_unknown_kind(cluster, method):
    for outcome in cluster(2).run_outcomes(fit_with_mystery, method):
        assert outcome.error_type == "ValueError", outcome
        assert re.search("Unrecognized data type.*Mystery", outcome.error_text)


def distribute_what_is_no_model(what):
    import keras_mwms

    keras_mwms.distribute(what)


@pytest.mark.parametrize("what", [None, "model", dict])
def test_what_is_no_model(cluster, what):
    (outcome,) = cluster(1).run_outcomes(distribute_what_is_no_model, what)
    assert outcome.error_type == "TypeError"
    assert f"Received: {what!r}" in outcome.error_text


def stopped_early():
    """The validation loss of rank 0 alone falls, that of all rises."""
    import keras

    import keras_mwms

    keras.utils.set_random_seed(12)
    model = keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.02), "mse")
    keras_mwms.distribute(model)
    ones = np.ones((4, 1))
    history = model.fit(
        ones,
        ones,
        epochs=9,
        validation_data=(ones, np.array([[1], [1], [-9], [-9]])),
        callbacks=[
            keras.callbacks.EarlyStopping("val_loss", patience=2),
            keras.callbacks.ReduceLROnPlateau(
                "val_loss", patience=0, factor=0.5
            ),
        ],
        verbose=0,
    )
    return facts_of(model, history=history.history)


def test_callbacks_decide_alike(cluster, alone):
    expected = alone(stopped_early)
    assert len(expected["history loss"]) == 3
    assert_as_alone(cluster(2).run(stopped_early), expected)


LATE_CONFIG = """
import json, os
config = os.environ.pop("TF_CONFIG")
import keras
import numpy as np
import keras_mwms
model = keras.Sequential([
    keras.Input((1,)),
    keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
])
model.compile(keras.optimizers.SGD(1.0), lambda y, p: p)
os.environ["TF_CONFIG"] = config
keras_mwms.distribute(model)
model.fit(np.array([[1.0], [3.0]]), np.zeros(2), batch_size=2, verbose=0)
kernel = float(model.get_weights()[0][0, 0])
print(json.dumps([keras_mwms.world_size(), keras_mwms.rank(), kernel]))
"""


def test_tf_config_set_after_keras_was_imported(fresh_cluster):
    argv = [sys.executable, "-c", LATE_CONFIG]
    for rank, ended in enumerate(fresh_cluster(2, argv)):
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout) == [2, rank, -2.0]


NO_HOROVOD = """
import sys
sys.modules["horovod"] = None
import keras
import numpy as np
import keras_mwms
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
before = dict(vars(model))
optimizer = dict(vars(model.optimizer))
assert keras_mwms.distribute(model) is model
assert vars(model) == before and vars(model.optimizer) == optimizer
model.fit(np.ones((1, 1)), np.ones((1, 1)), verbose=0)
keras_mwms.barrier()
print(keras_mwms.world_size(), keras_mwms.is_chief())
"""


def test_a_world_of_one_needs_no_horovod(fresh_cluster):
    (ended,) = fresh_cluster(1, [sys.executable, "-c", NO_HOROVOD])
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["1", "True"]


def all_or_some(steps_per_epoch, validation_steps):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(13)
    model = keras_mwms.distribute(compiled(a_model()))
    history = fit(
        model,
        epochs=4,
        initial_epoch=1,
        steps_per_epoch=steps_per_epoch,
        validation_data=data(7),
        validation_batch_size=2,
        validation_steps=validation_steps,
        validation_freq=2,
    )
    x, y = data()
    evaluation = model.evaluate(
        x, y, batch_size=BATCH, steps=2, return_dict=True, verbose=0
    )
    predictions = model.predict(x, batch_size=BATCH, steps=2, verbose=0)
    assert len(predictions) == 2 * BATCH
    return facts_of(
        model, history=history, evaluation=evaluation, predictions=predictions
    )


@pytest.mark.parametrize(
    ("steps_per_epoch", "validation_steps"), [(None, None), (2, 3)]
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_options_of_fit(cluster, alone, steps_per_epoch, validation_steps):
    expected = alone(all_or_some, steps_per_epoch, validation_steps)
    got = cluster(2).run(all_or_some, steps_per_epoch, validation_steps)
    assert_as_alone(got, expected)
