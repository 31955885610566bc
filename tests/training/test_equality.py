"""N replicas give what one process gives with the same global batch."""

import numpy as np
import pytest

from tests.training.facts import assert_as_alone
from tests.training.facts import facts_of
from tests.training.facts import named

# No number of replicas divides a batch, and no batch the rows.
ROWS = 23
VALIDATION_ROWS = 7
BATCH = 5
EPOCHS = 3

# More of them, on a smaller model, in `test_optimizers`.
OPTIMIZERS = {
    "momentum": lambda o: o.SGD(0.05, momentum=0.9),
    # 15 steps: one is left over, accumulated.
    "loss scale and accumulation": lambda o: o.LossScaleOptimizer(
        o.Adam(0.01, gradient_accumulation_steps=2), initial_scale=8.0
    ),
}


def data(rows, seed):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 4)).astype("float32")
    y = np.sin(x.sum(axis=1, keepdims=True)).astype("float32")
    return x, y


def regression(optimizer, shuffle):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(
                6, "tanh", kernel_regularizer=keras.regularizers.L2(0.02)
            ),
            keras.layers.Dense(1),
        ]
    )
    model.compile(
        OPTIMIZERS[optimizer](keras.optimizers),
        "mse",
        metrics=["mae", keras.metrics.R2Score()],
    )
    keras_mwms.distribute(model)
    x, y = data(ROWS, seed=1)
    held_out = data(VALIDATION_ROWS, seed=2)
    history = model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=shuffle,
        validation_data=held_out,
        verbose=0,
    )
    # Before evaluate: on JAX it would take the averages of use_ema away, also
    # in plain Keras.
    facts = facts_of(model, history=history.history)
    evaluation = model.evaluate(
        x, y, batch_size=BATCH, return_dict=True, verbose=0
    )
    return facts | named(evaluation=evaluation)


def classification():
    import keras

    import keras_mwms

    keras.utils.set_random_seed(5)
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(6, "relu", activity_regularizer="l2")(inputs)
    outputs = keras.layers.Dense(1, "sigmoid")(hidden)
    model = keras_mwms.distribute(keras.Model(inputs, outputs))
    model.compile(
        keras.optimizers.SGD(0.3),
        "binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(), keras.metrics.F1Score()],
        weighted_metrics=[keras.metrics.Precision()],
    )
    x, y = data(ROWS, seed=1)
    weights = np.linspace(0.0, 2.0, ROWS)
    history = model.fit(
        x,
        (y > 0).astype("float32"),
        batch_size=BATCH,
        epochs=EPOCHS,
        sample_weight=weights,
        validation_split=0.3,
        verbose=0,
    )
    return facts_of(
        model,
        history=history.history,
        evaluation=model.evaluate(
            x,
            (y > 0).astype("float32"),
            batch_size=BATCH,
            sample_weight=weights,
            return_dict=True,
            verbose=0,
        ),
        predictions=model.predict(x, batch_size=BATCH, verbose=0),
    )


def test_the_data_would_show_a_difference(alone):
    """Each order changes what one process gives, or it is not tested."""
    plain = alone(regression, "momentum", True)
    assert len(plain["history loss"]) == EPOCHS
    for shuffle in (False, "batch"):
        other = alone(regression, "momentum", shuffle)
        assert (
            np.abs(other["history loss"] - plain["history loss"]).max() > 1e-3
        )


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_regression(cluster, alone, optimizer, replicas):
    expected = alone(regression, optimizer, True)
    got = cluster(replicas).run(regression, optimizer, True)
    assert_as_alone(got, expected)


@pytest.mark.parametrize(
    ("shuffle", "replicas"), [(False, 2), ("batch", 2), ("batch", 3)]
)
def test_orders_of_rows(cluster, alone, shuffle, replicas):
    expected = alone(regression, "momentum", shuffle)
    got = cluster(replicas).run(regression, "momentum", shuffle)
    assert_as_alone(got, expected)


@pytest.mark.parametrize("replicas", [2, 3])
def test_classification_with_weights_and_a_split(cluster, alone, replicas):
    got = cluster(replicas).run(classification)
    assert_as_alone(got, alone(classification))


def test_started_by_horovodrun(cluster, alone):
    got = cluster(2, start="horovodrun").run(regression, "momentum", True)
    assert_as_alone(got, alone(regression, "momentum", True))
