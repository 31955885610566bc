"""Ways of training: compiled or not, several steps at once, own parts."""

import warnings

import numpy as np
import pytest

from tests.pool import PerRank
from tests.training.facts import assert_as_alone
from tests.training.facts import facts_of
from tests.training.facts import named

# 7 steps, the last with 3 rows.
ROWS = 33
BATCH = 5


def data(rows=ROWS):
    random = np.random.default_rng(6)
    x = random.normal(size=(rows, 4)).astype("float32")
    return x, np.sin(x.sum(axis=1, keepdims=True))


def a_model(cls=None):
    import keras

    keras.utils.set_random_seed(5)
    return (cls or keras.Sequential)(
        [
            keras.Input((4,)),
            keras.layers.Dense(6, "tanh"),
            keras.layers.Dense(1),
        ]
    )


def trained(options, rows=ROWS):
    """Fits twice, compiled anew in between, evaluates and predicts."""
    import keras

    import keras_mwms

    model = a_model()
    keras_mwms.distribute(model)
    x, y = data(rows)
    history, iterations = [], []
    for optimizer in (keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1)):
        model.compile(optimizer, "mse", metrics=["mae"], **options)
        for _ in range(2):
            fitted = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
            history += fitted.history["loss"] + fitted.history["mae"]
            iterations.append(int(optimizer.iterations))
    evaluation = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    return facts_of(
        model,
        history=history,
        iterations=iterations,
        evaluation=evaluation,
        predictions=model.predict(x, batch_size=BATCH, verbose=0),
    )


WAYS = {
    "as it is": {},
    "no jit": {"jit_compile": False},
    "eagerly": {"run_eagerly": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_a53_compiled_or_not(cluster, alone, way):
    expected = alone(trained_in, way)
    assert expected["iterations"].tolist() == [14, 28, 14, 28]
    assert_as_alone(cluster(2).run(trained_in, way), expected)


def trained_in(way):
    return trained(WAYS[way])


def at_once(steps, rows, batch_size):
    import keras

    import keras_mwms

    model = a_model()
    model.compile(
        keras.optimizers.Adam(0.01),
        "mse",
        metrics=["mae"],
        steps_per_execution=steps,
    )
    keras_mwms.distribute(model)
    x, y = data(rows)
    ends = []
    history = model.fit(
        x,
        y,
        batch_size=batch_size,
        epochs=2,
        verbose=0,
        validation_data=data(2 * batch_size + 1),
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: ends.append(batch)
            )
        ],
    )
    return facts_of(
        model,
        history=history.history,
        ends=ends,
        iterations=int(model.optimizer.iterations),
    )


@pytest.mark.backend("tensorflow", "jax")
@pytest.mark.parametrize(
    ("rows", "steps"),
    # 4 and 2 steps at once; 4 and 3, of which one has a single row.
    [(24, 6), (25, 7)],
)
def test_a53_several_steps_at_once(cluster, alone, rows, steps):
    """PyTorch has no steps_per_execution in Keras."""
    expected = alone(at_once, 4, rows, 4)
    assert expected["iterations"] == 2 * steps
    assert len(expected["ends"]) == 2 * 2
    got = cluster(2).run(at_once, 4, rows, 4)
    assert_as_alone(got, expected)


def compiled_by_torch(rows):
    import keras

    import keras_mwms

    model = a_model()
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=True)
    keras_mwms.distribute(model)
    x, y = data(rows)
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    assert model.jit_compile is True
    return facts_of(model, history=history.history)


@pytest.mark.backend("torch")
def test_a53_torch_compile(cluster, alone):
    """One compiled program a shape: two replicas with 3 and 2 rows."""
    # PyTorch compiles for a minute and more on a busy machine.
    got = cluster(2).run(compiled_by_torch, 10, timeout=300)
    assert_as_alone(got, alone(compiled_by_torch, 10))


def warned_of_jit(options):
    import keras_mwms

    model = keras_mwms.distribute(a_model())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.compile("sgd", "mse", **options)
        model.fit(*data(), batch_size=BATCH, verbose=0)
        model.evaluate(*data(), batch_size=BATCH, verbose=0)
    said = [str(w.message) for w in caught if "jit_compile" in str(w.message)]
    return bool(model.jit_compile), said


@pytest.mark.backend("tensorflow")
def test_a53_jit_is_turned_off_with_one_warning(cluster):
    """Without a GPU, Keras does not choose it by itself."""
    assert cluster(2).run(warned_of_jit, {}) == [(False, [])] * 2
    for compiled, said in cluster(2).run(warned_of_jit, {"jit_compile": True}):
        assert not compiled
        assert len(said) == 1
        assert "Horovod" in said[0]
        assert "jit_compile=False" in said[0]


def own_loss():
    """A loss of the model's own, with parts that Keras reduces or not."""
    import keras
    from keras import ops

    import keras_mwms

    class Model(keras.Sequential):
        def compute_loss(
            self, x=None, y=None, y_pred=None, sample_weight=None, training=True
        ):
            total = super().compute_loss(x, y, y_pred, sample_weight)
            return total + 0.1 * ops.mean(ops.abs(y_pred))

    model = a_model(Model)
    model.compile(
        keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError("sum")
    )
    keras_mwms.distribute(model)
    x, y = data()
    history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0)
    evaluation = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    return facts_of(model, history=history.history, evaluation=evaluation)


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_compute_loss_of_the_users_own(cluster, alone, replicas):
    assert_as_alone(cluster(replicas).run(own_loss), alone(own_loss))


def on_batches(first, last):
    """Rows of 4 and 3 steps, of which each replica passes its own."""
    import keras

    import keras_mwms

    model = a_model()
    model.compile(keras.optimizers.Adam(0.01), "mse")
    keras_mwms.distribute(model)
    x, y = data()
    weights = []
    for start in range(0, ROWS - BATCH, BATCH):
        rows = slice(start + first, start + last)
        model.train_on_batch(x[rows], y[rows])
        weights.append(np.concatenate([w.ravel() for w in model.get_weights()]))
    tested = model.test_on_batch(x[first:last], y[first:last])
    return facts_of(model) | named(steps=np.array(weights)), float(tested)


def test_a54_batches_of_each_replicas_own(cluster, alone):
    """Three rows here and two there are one global batch of five."""
    expected, whole = alone(on_batches, 0, BATCH)
    got = cluster(2).run(on_batches, PerRank([0, 3]), PerRank([3, BATCH]))
    assert_as_alone([facts for facts, _ in got], expected)
    # What it returns is the replica's own.
    shares = [3 / 5, 2 / 5]
    total = sum(s * t for s, (_, t) in zip(shares, got, strict=True))
    assert total == pytest.approx(whole, rel=1e-5)
