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

OPTIMIZERS = {
    "momentum": lambda o: o.SGD(0.05, momentum=0.9),
    "adam": lambda o: o.Adam(0.01),
    "adamw": lambda o: o.AdamW(0.01, weight_decay=0.1),
    "clipnorm": lambda o: o.SGD(0.1, clipnorm=0.3),
    "global_clipnorm": lambda o: o.SGD(0.1, global_clipnorm=0.3),
    "ema": lambda o: o.SGD(0.05, use_ema=True, ema_overwrite_frequency=4),
    # 15 steps: some are left over, accumulated.
    "accumulation": lambda o: o.Adam(
        0.02, clipvalue=0.05, gradient_accumulation_steps=4
    ),
    "loss_scale": lambda o: o.LossScaleOptimizer(
        o.SGD(0.05, momentum=0.9), initial_scale=8.0, dynamic_growth_steps=4
    ),
    "loss_scale_accumulation": lambda o: o.LossScaleOptimizer(
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
    """Each option changes what one process gives, or it is not tested."""
    plain = alone(regression, "momentum", True)
    for optimizer in OPTIMIZERS:
        other = alone(regression, optimizer, True)
        assert len(other["history loss"]) == EPOCHS
        if optimizer not in ("momentum", "loss_scale"):
            assert (
                np.abs(other["history loss"] - plain["history loss"]).max()
                > 1e-3
            )
    for shuffle in (False, "batch"):
        other = alone(regression, "momentum", shuffle)
        assert (
            np.abs(other["history loss"] - plain["history loss"]).max() > 1e-3
        )


@pytest.mark.parametrize(
    ("optimizer", "replicas"),
    [
        *((name, 2) for name in OPTIMIZERS),
        *((name, 3) for name in ("momentum", "loss_scale_accumulation")),
    ],
)
def test_optimizers(cluster, alone, optimizer, replicas):
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
    got = cluster(2, start="horovodrun").run(regression, "adam", True)
    assert_as_alone(got, alone(regression, "adam", True))
