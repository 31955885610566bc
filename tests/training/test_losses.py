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


def trained(
    model, x, y, sample_weight=None, class_weight=None, *, evaluates=True
):
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
    if not evaluates:
        return facts_of(model, history=history.history)
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


# What plain losses need, by the kind of predictions they are for.
KINDS = {
    "numbers": ("linear", lambda: numbers(ROWS, 3, seed=4)),
    "positive": ("softplus", lambda: np.abs(numbers(ROWS, 3, seed=4)) + 0.1),
    "classes": ("softmax", lambda: np.eye(3, dtype="float32")[labels()]),
    "indices": ("softmax", lambda: labels()),
    "embeddings": ("linear", lambda: labels()),
    "binary": ("sigmoid", lambda: (numbers(ROWS, 3, seed=4) > 0) * 1.0),
    "signs": ("tanh", lambda: np.sign(numbers(ROWS, 3, seed=4))),
}
LOSSES = {
    "BinaryCrossentropy": "binary",
    "BinaryFocalCrossentropy": "binary",
    "CategoricalCrossentropy": "classes",
    "CategoricalFocalCrossentropy": "classes",
    "CategoricalGeneralizedCrossEntropy": "indices",
    "CategoricalHinge": "classes",
    "Circle": "embeddings",
    "CosineSimilarity": "numbers",
    "Dice": "binary",
    "Hinge": "signs",
    "Huber": "numbers",
    "KLDivergence": "classes",
    "LogCosh": "numbers",
    "MeanAbsoluteError": "numbers",
    "MeanAbsolutePercentageError": "positive",
    "MeanSquaredError": "numbers",
    "MeanSquaredLogarithmicError": "positive",
    "Poisson": "positive",
    "SparseCategoricalCrossentropy": "indices",
    "SquaredHinge": "signs",
    "Tversky": "binary",
}


def labels():
    return np.arange(ROWS) % 3


def losses_of_keras():
    import keras

    return {
        cls.__name__: cls
        for cls in vars(keras.losses).values()
        if isinstance(cls, type)
        and issubclass(cls, keras.losses.Loss)
        and cls is not keras.losses.Loss
    }


def every_loss():
    import keras

    facts = {}
    for name, cls in losses_of_keras().items():
        if name == "CTC":
            facts[name] = trained(*sequences(cls()), evaluates=False)
            continue
        kind = LOSSES[name.removesuffix("Loss")]
        activation, targets = KINDS[kind]
        seeded()
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(3, activation)]
        )
        if kind == "embeddings":
            model.add(keras.layers.UnitNormalization())
        # Clipped, so that losses of any size take steps of a like size.
        model.compile(keras.optimizers.SGD(0.05, clipnorm=0.5), cls())
        facts[name] = trained(model, numbers(ROWS, 3), targets(), row_weights())
    return facts


def sequences(loss):
    """A model that spells, and what it should."""
    import keras

    seeded()
    model = keras.Sequential(
        [keras.Input((6, 3)), keras.layers.Dense(4, "linear")]
    )
    model.compile(keras.optimizers.SGD(0.05), loss)
    return (
        model,
        numbers(ROWS, 6, 3),
        1 + np.arange(ROWS * 2).reshape(-1, 2) % 3,
    )


def test_every_class(cluster, alone):
    expected = alone(every_loss)
    got = cluster(2).run(every_loss)
    assert len(expected) >= len(LOSSES)
    for name, facts in expected.items():
        assert_as_alone([of_rank[name] for of_rank in got], facts)
        first, last = facts["history loss"]
        assert abs(first - last) > 1e-5, name


def own_reduction(kind, weighted):
    """Losses and metrics that reduce the rows to a number themselves."""
    import keras
    from keras import ops

    def root_mean_square(y, p):
        return ops.sqrt(ops.mean(ops.square(y - p)))

    def total(y, p):
        return ops.sum(ops.square(y - p))

    def overlap(y, p):
        p = ops.sigmoid(p)
        return 1 - (2 * ops.sum(y * p) + 1) / (ops.sum(y + p) + 1)

    class Norm(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return ops.norm(y_pred - y_true)

    seeded()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    own = {"rms": root_mean_square, "sum": total, "overlap": overlap}
    model.compile(
        keras.optimizers.SGD(0.01),
        Norm(reduction="sum") if kind == "norm" else own[kind],
        metrics=[root_mean_square, overlap, "mae"],
    )
    weights = row_weights() if weighted else None
    x, y = numbers(ROWS, 3), numbers(ROWS, 2, seed=4)
    return trained(model, x, y, weights)


@pytest.mark.parametrize(
    ("kind", "weighted"),
    [("rms", False), ("sum", False), ("overlap", True), ("norm", True)],
)
@pytest.mark.parametrize("replicas", [2, 3])
def test_reductions_of_the_user(cluster, alone, kind, weighted, replicas):
    """With 3 replicas and a batch of 3 rows at the end, one has none."""
    expected = alone(own_reduction, kind, weighted)
    got = cluster(replicas).run(own_reduction, kind, weighted)
    assert_as_alone(got, expected)


def masked_own_reduction():
    import keras
    from keras import ops

    def total(y, p):
        return ops.sqrt(ops.sum(ops.square(y - p)))

    seeded()
    inputs = keras.Input((4,), dtype="int32")
    hidden = keras.layers.Embedding(5, 3, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.01), total, metrics=["mae"])
    tokens = (np.arange(ROWS * 4).reshape(ROWS, 4) * 7) % 5
    return trained(model, tokens.astype("int32"), numbers(ROWS, 4, 1, seed=4))


def test_reductions_of_the_user_with_masks(cluster, alone):
    got = cluster(2).run(masked_own_reduction)
    assert_as_alone(got, alone(masked_own_reduction))


def not_reduced():
    import keras

    seeded()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(
        keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError(None)
    )
    return trained(model, numbers(ROWS, 3), numbers(ROWS, 2, seed=4))


@pytest.mark.backend("tensorflow")
def test_no_reduction(cluster, alone):
    """Keras itself takes it on TensorFlow alone."""
    assert_as_alone(cluster(2).run(not_reduced), alone(not_reduced))


def penalties():
    """Every way to add to a loss."""
    import keras
    from keras import ops

    class Penalized(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.scale = self.add_weight(shape=(2,), initializer="ones")

        def call(self, x):
            self.add_loss(0.1 * ops.mean(ops.square(x)))
            self.add_loss(0.01 * ops.sum(ops.square(self.scale)))
            return x * self.scale

    seeded()
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(
                4,
                "tanh",
                activity_regularizer=keras.regularizers.L1L2(0.05, 0.1),
                kernel_regularizer="orthogonal_regularizer",
                bias_regularizer="l2",
            ),
            keras.layers.Dense(2),
            Penalized(),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return trained(model, numbers(ROWS, 3), numbers(ROWS, 2, seed=4))


@pytest.mark.parametrize("replicas", [2, 3])
def test_penalties(cluster, alone, replicas):
    assert_as_alone(cluster(replicas).run(penalties), alone(penalties))
