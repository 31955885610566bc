"""Batch normalization over the rows of all replicas, and of each alone."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.training.facts import as_numpy
from tests.training.facts import assert_as_alone
from tests.training.facts import assert_same
from tests.training.facts import facts_of

# A last batch of one row: all but the chief run on a filler.
ROWS = 21
BATCH = 5
EPOCHS = 2
# Of the inputs; their deviation is 1.
MEAN = 0.5


def norm(**options):
    import keras

    options = {"synchronized": True, "momentum": 0.8} | options
    return keras.layers.BatchNormalization(**options)


def plain(keras, **options):
    """One on data far from zero, and one within."""
    inputs = keras.Input((4,))
    x = norm(**options)(inputs)
    x = keras.layers.Dense(6, "tanh")(x)
    x = norm(center=False, **options)(x)
    return inputs, keras.layers.Dense(1)(x)


def renormed(keras):
    return plain(
        keras,
        renorm=True,
        renorm_momentum=0.7,
        renorm_clipping={"rmax": 3.0, "rmin": 0.3, "dmax": 5.0},
    )


def images(keras):
    inputs = keras.Input((4,))
    x = keras.layers.Reshape((2, 2, 1))(inputs)
    x = keras.layers.Conv2D(3, 2, padding="same")(x)
    x = norm(axis=1)(x)
    x = keras.layers.Activation("tanh")(x)
    x = norm(axis=-1)(x)
    return inputs, keras.layers.Dense(1)(keras.layers.Flatten()(x))


def masked(keras):
    """About half of the steps are masked, in some rows all."""
    inputs = keras.Input((4,))
    x = keras.layers.Rescaling(1.0, offset=-MEAN)(inputs)
    x = keras.layers.ReLU()(x)
    x = keras.layers.Reshape((4, 1))(x)
    x = keras.layers.Masking()(x)
    x = keras.layers.Dense(3)(x)
    x = norm(axis=-1)(x)
    x = keras.layers.Activation("tanh")(x)
    x = norm(axis=1)(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return inputs, keras.layers.Dense(1)(x)


def branched(keras):
    """Branches that do not depend on each other, forward and backward."""
    inputs = keras.Input((4,))
    branches = [
        norm(name=f"norm{i}")(
            keras.layers.Dense(3, "tanh", name=f"dense{i}")(inputs)
        )
        for i in range(3)
    ]
    a = keras.layers.Dense(1)(branches[0])
    b = keras.layers.Dense(1)(keras.layers.Add()(branches[1:]))
    return inputs, keras.layers.Average()([a, b])


def spectral(keras):
    inputs = keras.Input((4,))
    wrapped = keras.layers.SpectralNormalization(keras.layers.Dense(6, "tanh"))
    return inputs, keras.layers.Dense(1)(wrapped(inputs))


NETWORKS = {
    "plain": plain,
    "renorm": renormed,
    "images": images,
    "masked": masked,
    "branches": branched,
    "spectral": spectral,
    "unsynchronized": lambda keras: plain(keras, synchronized=False),
    "unsynchronized renorm": lambda keras: plain(
        keras, synchronized=False, renorm=True
    ),
}


def data(rows=ROWS, seed=1):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 4)).astype("float32")
    y = np.sin(x.sum(axis=1, keepdims=True)).astype("float32")
    return x + MEAN, y


def trained(network, rows=ROWS, policy="float32", **options):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(5)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = keras.Model(*NETWORKS[network](keras))
    finally:
        keras.config.set_dtype_policy(before)
    optimizer = keras.optimizers.SGD(0.05, momentum=0.5)
    if "16" in policy:
        # So small that no replica sees an infinite gradient.
        optimizer = keras.optimizers.LossScaleOptimizer(
            optimizer, initial_scale=64.0
        )
    model.compile(optimizer, "mse", metrics=["mae"], **options)
    return fitted(keras_mwms.distribute(model), rows)


def fitted(model, rows=ROWS):
    x, y = data(rows)
    history = model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=EPOCHS,
        validation_data=data(7, seed=2),
        verbose=0,
    )
    return facts_of(
        model,
        history=history.history,
        evaluation=model.evaluate(
            x, y, batch_size=BATCH, return_dict=True, verbose=0
        ),
        predictions=model.predict(x, batch_size=BATCH, verbose=0),
    )


@pytest.mark.parametrize(
    "network",
    [name for name in NETWORKS if not name.startswith("unsynchronized")],
)
def test_training_is_as_in_one_process(cluster, alone, network):
    """Statistics are those of the global batch; vectors move on alike."""
    assert_as_alone(cluster(2).run(trained, network), alone(trained, network))


def test_three_replicas(cluster, alone):
    got = cluster(3).run(trained, "masked")
    assert_as_alone(got, alone(trained, "masked"))


def test_every_replica_has_rows(cluster, alone):
    """The last batch has two rows and one, where gradients share memory."""
    got = cluster(2).run(trained, "branches", 23)
    assert_as_alone(got, alone(trained, "branches", 23))


def eagerly(network):
    return trained(network, run_eagerly=True)


def test_run_eagerly(cluster, alone):
    got = cluster(2).run(eagerly, "branches")
    assert_as_alone(got, alone(trained, "branches"))


def test_small_floats(cluster):
    (expected,) = cluster(1).run(trained, "plain", policy="mixed_float16")
    got = cluster(2).run(trained, "plain", policy="mixed_float16")
    for facts in got:
        assert_same(facts, expected, tolerance=1e-2)
    # The statistics themselves lose nothing.
    moving = [k for k in expected if "moving" in k]
    assert len(moving) == 4
    for name in moving:
        np.testing.assert_array_equal(got[0][name], got[1][name])


@pytest.mark.parametrize(
    "network", [name for name in NETWORKS if name.startswith("unsynchronized")]
)
def test_statistics_of_own_rows_are_equal_in_the_end(cluster, alone, network):
    first, second = cluster(2).run(trained, network)
    assert_same(second, first, tolerance=1e-6)
    # Or the other tests would see nothing.
    names = [k for k in first if "moving" in k]
    expected = alone(trained, network)
    assert any(np.abs(first[k] - expected[k]).max() > 1e-2 for k in names)


def moved_by_a_filler():
    """What one step leaves that has a row on the chief alone."""
    import keras

    import keras_mwms

    inputs = keras.Input((1,))
    layers = [
        norm(momentum=0.5, name="all"),
        norm(momentum=0.5, synchronized=False, name="own"),
        norm(momentum=0.5, synchronized=False, renorm=True, name="renorm"),
        keras.layers.SpectralNormalization(keras.layers.Dense(2)),
    ]
    outputs = keras.layers.Add()([layer(inputs) for layer in layers])
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    keras_mwms.distribute(model)
    before = [as_numpy(v) for v in model.non_trainable_variables]
    moved = []

    def look(batch, logs):
        # JAX keeps the state of training to itself.
        getattr(model, "jax_state_sync", lambda: None)()
        moved.extend(as_numpy(v) for v in model.non_trainable_variables)

    spoken = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    x = np.full((1, 1), 4.0, "float32")
    model.fit(x, x, callbacks=[spoken], verbose=0)
    return {
        f"{v.path.split('/')[0]}/{v.name}": bool(np.any(new != old))
        for v, old, new in zip(
            model.non_trainable_variables, before, moved, strict=True
        )
        if "seed" not in v.name
    }


def test_what_a_step_without_rows_changes(cluster):
    chief, other = cluster(2).run(moved_by_a_filler)
    assert sum(chief.values()) > 8
    own = {k: v for k, v in chief.items() if k.startswith(("own", "renorm"))}
    assert len(own) == 7
    assert other == chief | dict.fromkeys(own, False)


def local_statistics():
    """Outside of a step each replica has its own."""
    import keras_mwms

    rank = keras_mwms.rank()
    layer = norm(momentum=0.0)
    x = np.array([[1.0], [3.0]], "float32") * (rank + 1)
    layer(x, training=True)
    return as_numpy(layer.moving_mean)


def test_outside_of_a_step(cluster):
    got = cluster(2).run(local_statistics)
    assert [each.tolist() for each in got] == [[2.0], [4.0]]


def saved(path):
    import keras

    keras.utils.set_random_seed(5)
    model = keras.Model(*plain(keras))
    model.compile(keras.optimizers.SGD(0.05), "mse")
    model.save(path)


def loaded(path):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(5)
    model = keras.saving.load_model(path)
    copy = keras.models.clone_model(model)
    flags = [
        layer.get_config()["synchronized"]
        for each in (model, copy)
        for layer in each.layers
        if isinstance(layer, keras.layers.BatchNormalization)
    ]
    assert flags == [True] * 4
    return fitted(keras_mwms.distribute(model))


def test_a_loaded_model(cluster, alone, tmp_path):
    path = str(tmp_path / "model.keras")
    cluster(1).run(saved, path)
    assert_as_alone(cluster(2).run(loaded, path), alone(loaded, path))


def rematerialized():
    import keras

    with keras.RematScope(mode="full"):
        return trained("plain")


@pytest.mark.backend("torch")
def test_statistics_that_are_taken_again(cluster, alone):
    got = cluster(2).run(rematerialized)
    assert_as_alone(got, alone(rematerialized))


def refused():
    import jax
    import keras

    import keras_mwms

    class Checkpointed(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.norm = norm()

        def build(self, shape):
            self.norm.build(shape)

        def call(self, inputs, training=None):
            return jax.checkpoint(lambda x: self.norm(x, training=training))(
                inputs
            )

    model = keras.Sequential([keras.Input((4,)), Checkpointed()])
    model.compile("sgd", "mse")
    keras_mwms.distribute(model)
    with pytest.raises(NotImplementedError, match=r"checkpoint.*moments\.1"):
        model.fit(*data(), verbose=0)


@pytest.mark.backend("jax")
def test_where_no_order_can_be_kept(cluster):
    cluster(2).run(refused)


def pooled(parts):
    import keras

    from keras_mwms.training import normalization

    own = [
        [np.full(2, len(p)), p.mean(0), p.var(0, dtype="float64")]
        for p in parts
    ]
    return as_numpy(normalization._pooled(keras.ops.array(own, "float32")))


def test_no_digits_are_lost_far_from_zero():
    """float32 has 7: sums of squares would leave none of the variance."""
    random = np.random.default_rng(0)
    x = random.normal(size=(9, 2)) + np.array([1e4, -3e3])
    count, mean, variance = pooled([x[:2], x[2:3], x[3:]])
    assert count.tolist() == [9.0, 9.0]
    np.testing.assert_allclose(mean, x.mean(0), rtol=1e-6)
    np.testing.assert_allclose(variance, x.var(0), rtol=2e-3)


IMPORTS = {
    "first": "import keras_mwms, sys; "
    "assert not {'keras', 'tensorflow', 'torch', 'jax'} & {*sys.modules}; "
    "import keras",
    "last": "import keras, keras_mwms",
}
CONSTRUCTED = """
cls = keras.layers.BatchNormalization
layer = cls(axis=1, synchronized=True)
config = layer.get_config()
assert config["synchronized"] is True and config["axis"] == 1
assert cls.from_config(config).synchronized is True
assert cls().synchronized is False
positional = [-1, 0.99, 1e-3, True, True, *["zeros"] * 4, *[None] * 4]
assert cls(*positional, False, None, 0.99, True).synchronized is True
layer.build((None, 2))
layer(keras.ops.ones((3, 2)), training=True)
assert abs(float(layer.moving_mean[0]) - 0.01) < 1e-6
try:
    cls(synchronised=True)
except Exception as error:
    assert "synchronised" in str(error), error
else:
    raise AssertionError
import inspect
assert "synchronized" in inspect.signature(cls).parameters
assert keras.layers.__spec__.loader is keras.layers.__loader__
assert "keras_mwms" not in type(keras.layers.__loader__).__module__
assert "keras_mwms" not in str(sys.meta_path)
print("constructed")
"""


@pytest.mark.parametrize("order", IMPORTS)
def test_it_is_constructed_whatever_is_imported_first(order):
    program = f"import sys; {IMPORTS[order]}\n{CONSTRUCTED}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "constructed\n", done.stderr
