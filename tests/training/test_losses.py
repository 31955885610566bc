"""Losses: every reduction, weight and mask as in one process."""

import numpy as np
import pytest

from tests.training.facts import assert_as_alone
from tests.training.facts import facts_of
from tests.training.facts import named

ROWS = 13
BATCH = 5
REDUCTIONS = ("sum_over_batch_size", "sum", "mean_with_sample_weight")

# With 2 replicas, rank 1 has the rows 3 and 4 of the first batch.
EMPTY_SHARE = (3, 4)


def trained(model, x, y, sample_weight=None, class_weight=None):
    """Fits and evaluates, and tells what came of it."""
    import keras_mwms

    keras_mwms.distribute(model)
    history = model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=2,
        shuffle=False,
        sample_weight=sample_weight,
        class_weight=class_weight,
        verbose=0,
    )
    evaluation = model.evaluate(
        x,
        y,
        batch_size=BATCH,
        sample_weight=sample_weight,
        return_dict=True,
        verbose=0,
    )
    return facts_of(model, history=history.history) | named(
        evaluation=evaluation
    )


def numbers(*shape, seed=3):
    random = np.random.default_rng(seed)
    return random.normal(size=shape).astype("float32")


def row_weights():
    weights = np.linspace(0.2, 3.0, ROWS).astype("float32")
    weights[list(EMPTY_SHARE)] = 0.0
    return weights


def seeded():
    import keras

    keras.utils.set_random_seed(3)


def reduced(reduction, weighted):
    import keras

    seeded()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(
        keras.optimizers.SGD(0.02),
        keras.losses.MeanSquaredError(reduction=reduction),
        weighted_metrics=["mae"],
    )
    weights = row_weights() if weighted else None
    return trained(model, numbers(ROWS, 3), numbers(ROWS, 2, seed=4), weights)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_reductions(cluster, alone, reduction, weighted):
    got = cluster(2).run(reduced, reduction, weighted)
    assert_as_alone(got, alone(reduced, reduction, weighted))


def test_weights_and_reductions_make_a_difference(alone):
    losses = [
        alone(reduced, reduction, weighted)["history loss"][0]
        for reduction in REDUCTIONS
        for weighted in (False, True)
    ]
    # Without weights, the two means are the same.
    assert len({round(float(loss), 4) for loss in losses}) == len(losses) - 1


def class_weighted():
    import keras

    seeded()
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(3, "softmax")]
    )
    model.compile(
        keras.optimizers.SGD(0.1),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    y = np.arange(ROWS) % 3
    return trained(
        model, numbers(ROWS, 3), y, class_weight={0: 0.2, 1: 1.0, 2: 5.0}
    )


@pytest.mark.parametrize("replicas", [2, 3])
def test_class_weights(cluster, alone, replicas):
    got = cluster(replicas).run(class_weighted)
    assert_as_alone(got, alone(class_weighted))


def masked(reduction, weighted):
    """Sequences of unlike length; those of one share are all padding."""
    import keras

    seeded()
    inputs = keras.Input((4,), dtype="int32")
    hidden = keras.layers.Embedding(5, 3, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.MeanSquaredError(reduction=reduction),
        # Not weighted: on PyTorch Keras changes the weights in place by the
        # mask, after which metrics see other ones, in one process too.
        metrics=["mae"],
    )
    random = np.random.default_rng(3)
    tokens = random.integers(1, 5, size=(ROWS, 4)).astype("int32")
    tokens[np.arange(4) >= random.integers(1, 5, size=(ROWS, 1))] = 0
    tokens[list(EMPTY_SHARE)] = 0
    weights = None
    if weighted:
        weights = row_weights()[:, None] * np.linspace(0.5, 1.5, 4)
    return trained(model, tokens, numbers(ROWS, 4, 1, seed=4), weights)


@pytest.mark.parametrize(
    ("reduction", "weighted"),
    [
        ("sum_over_batch_size", False),
        ("sum_over_batch_size", True),
        ("sum", False),
        ("mean_with_sample_weight", True),
    ],
)
def test_masks(cluster, alone, reduction, weighted):
    got = cluster(2).run(masked, reduction, weighted)
    assert_as_alone(got, alone(masked, reduction, weighted))


def two_outputs():
    import keras

    seeded()
    inputs = keras.Input((3,))
    outputs = {
        "a": keras.layers.Dense(1, name="a")(inputs),
        "b": keras.layers.Dense(2, name="b")(inputs),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.02),
        {
            "a": keras.losses.MeanSquaredError(reduction="sum"),
            "b": keras.losses.MeanAbsoluteError(
                reduction="mean_with_sample_weight"
            ),
        },
        loss_weights={"a": 0.3, "b": 2.0},
        weighted_metrics={"a": ["mae"], "b": ["mse"]},
    )
    y = {"a": numbers(ROWS, 1, seed=4), "b": numbers(ROWS, 2, seed=5)}
    weights = {"a": row_weights()[::-1].copy(), "b": row_weights()}
    return trained(model, numbers(ROWS, 3), y, weights)


@pytest.mark.parametrize("replicas", [2, 3])
def test_outputs_with_different_reductions(cluster, alone, replicas):
    got = cluster(replicas).run(two_outputs)
    assert_as_alone(got, alone(two_outputs))
