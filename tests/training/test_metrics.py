"""Metrics: every class, weighted and masked, as in one process."""

import numpy as np
import pytest

from tests.training.facts import assert_as_alone
from tests.training.facts import named

ROWS = 13
BATCH = 5
EPOCHS = 2

# What a model predicts, and what it should, by the kind of metric.
ACTIVATIONS = {
    "positive": "softplus",
    "signs": "tanh",
    "binary": "sigmoid",
    "classes": "softmax",
    "indices": "softmax",
    "same": "relu",
}
CLASSES = {
    "positive": [
        "ConcordanceCorrelation",
        "CosineSimilarity",
        "KLDivergence",
        "LogCoshError",
        "MeanAbsoluteError",
        "MeanAbsolutePercentageError",
        "MeanSquaredError",
        "MeanSquaredLogarithmicError",
        "PearsonCorrelation",
        "Poisson",
        "R2Score",
        "RootMeanSquaredError",
    ],
    "signs": ["Hinge", "SquaredHinge"],
    "binary": [
        "AUC",
        "BinaryAccuracy",
        "BinaryCrossentropy",
        "BinaryIoU",
        "FalseNegatives",
        "FalsePositives",
        "Precision",
        "PrecisionAtRecall",
        "Recall",
        "RecallAtPrecision",
        "SensitivityAtSpecificity",
        "SpecificityAtSensitivity",
        "TrueNegatives",
        "TruePositives",
    ],
    "classes": [
        "CategoricalAccuracy",
        "CategoricalCrossentropy",
        "CategoricalHinge",
        "F1Score",
        "FBetaScore",
        "OneHotIoU",
        "OneHotMeanIoU",
        "TopKCategoricalAccuracy",
    ],
    "indices": [
        "IoU",
        "MeanIoU",
        "SparseCategoricalAccuracy",
        "SparseCategoricalCrossentropy",
        "SparseTopKCategoricalAccuracy",
    ],
    "same": ["Accuracy"],
}
ARGUMENTS = {
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "OneHotIoU": {"num_classes": 3, "target_class_ids": [0, 2]},
    "OneHotMeanIoU": {"num_classes": 3},
    "IoU": {
        "num_classes": 3,
        "target_class_ids": [0, 2],
        "sparse_y_pred": False,
    },
    "MeanIoU": {"num_classes": 3, "sparse_y_pred": False},
    "TopKCategoricalAccuracy": {"k": 2},
    "SparseTopKCategoricalAccuracy": {"k": 2},
}
# They are no functions of targets and predictions: tested further below.
OTHERS = {"Mean", "Sum", "MeanMetricWrapper"}


def numbers(*shape, seed=3):
    random = np.random.default_rng(seed)
    return random.normal(size=shape).astype("float32")


def targets(kind):
    real = numbers(ROWS, 3, seed=4)
    return {
        "positive": np.abs(real) + 0.1,
        "signs": np.sign(real),
        "binary": (real > 0).astype("float32"),
        "classes": np.eye(3, dtype="float32")[np.arange(ROWS) % 3],
        "indices": np.arange(ROWS) % 3,
        "same": np.zeros((ROWS, 3), "float32"),
    }[kind]


def metrics_of(kind, weighted):
    import keras

    return [
        getattr(keras.metrics, name)(**ARGUMENTS.get(name, {}))
        for name in CLASSES[kind]
        # Keras takes weights for these where there is one output a row.
        if not weighted or "IoU" not in name
    ]


def trained(model, x, y, sample_weight=None):
    """The logs of fit, validation and evaluate."""
    import keras_mwms

    keras_mwms.distribute(model)
    options = {"batch_size": BATCH, "verbose": 0}
    training = {"shuffle": False, "sample_weight": sample_weight, **options}
    history = model.fit(x, y, epochs=EPOCHS, **training).history
    # In a fit of its own: on PyTorch, Keras shows the values of validation
    # for those of training where a metric's result is its own variable.
    held_out = x[:7], y[:7]
    more = model.fit(x, y, validation_data=held_out, **training).history
    evaluations = [
        model.evaluate(
            x, y, sample_weight=sample_weight, return_dict=True, **options
        )
        for _ in range(2)
    ]
    return named(
        history=history,
        validation={k: v for k, v in more.items() if k.startswith("val_")},
        first=evaluations[0],
        second=evaluations[1],
    )


def measured(kind):
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(3, ACTIVATIONS[kind])]
    )
    model.compile(
        keras.optimizers.SGD(0.05),
        "mse" if kind != "indices" else "sparse_categorical_crossentropy",
        metrics=metrics_of(kind, weighted=False),
        weighted_metrics=metrics_of(kind, weighted=True),
    )
    weights = np.linspace(0.2, 3.0, ROWS).astype("float32")
    return trained(model, numbers(ROWS, 3), targets(kind), weights)


def test_the_classes_are_those_of_keras():
    import keras

    found = {
        cls.__name__
        for cls in vars(keras.metrics).values()
        if isinstance(cls, type)
        and issubclass(cls, keras.Metric)
        and cls is not keras.Metric
    }
    listed = {name for names in CLASSES.values() for name in names}
    assert found == listed | OTHERS


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class(cluster, alone, kind):
    expected = alone(measured, kind)
    assert len(expected) >= 6 * len(CLASSES[kind])
    got = cluster(2).run(measured, kind)
    assert_as_alone(got, expected)
    for name in expected:
        if name.startswith("first"):
            again = name.replace("first", "second")
            np.testing.assert_array_equal(got[0][name], got[0][again], name)


def masked():
    import keras

    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,), dtype="int32")
    hidden = keras.layers.Embedding(5, 3, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile(
        keras.optimizers.SGD(0.1),
        "mse",
        metrics=["mae", keras.metrics.BinaryAccuracy(), keras.metrics.AUC()],
    )
    tokens = (np.arange(ROWS * 4).reshape(ROWS, 4) * 7) % 5
    y = (numbers(ROWS, 4, 1) > 0).astype("float32")
    return trained(model, tokens.astype("int32"), y)


def test_masks(cluster, alone):
    assert_as_alone(cluster(2).run(masked), alone(masked))


def of_the_user():
    """Integer state, every aggregation, and values that are no pairs."""
    import keras
    from keras import ops

    class State(keras.Metric):
        def __init__(self, name, aggregation, dtype, update):
            super().__init__(name=name)
            self.update = update
            self.state = self.add_variable(
                (), "zeros", dtype=dtype, aggregation=aggregation
            )

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.state.assign(self.update(self.state, y_true))

        def reset_state(self):
            self.state.assign(0)

        def result(self):
            return ops.cast(self.state, "float32")

    def rows(state, y_true):
        return state + ops.shape(y_true)[0]

    def steps(state, y_true):
        return state + 1

    class Model(keras.Sequential):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            self.mean.update_state(ops.mean(y, axis=-1))
            # One number a step: in one process each step counts once.
            self.by_step.update_state(ops.mean(y))
            self.total.update_state(y)
            return super().compute_metrics(x, y, y_pred, sample_weight)

        @property
        def metrics(self):
            return [*super().metrics, self.mean, self.by_step, self.total]

    keras.utils.set_random_seed(3)
    model = Model([keras.Input((3,)), keras.layers.Dense(3)])
    model.mean = keras.metrics.Mean(name="mean")
    model.by_step = keras.metrics.Mean(name="by_step")
    model.total = keras.metrics.Sum(name="total")
    model.compile(
        keras.optimizers.SGD(0.05),
        "mse",
        metrics=[
            State("rows", "sum", "int32", rows),
            State("steps", "only_first_replica", "int32", steps),
            State("average", "mean", "float32", steps),
            keras.metrics.MeanMetricWrapper(
                lambda y, p: ops.max(y, axis=-1), name="wrapped"
            ),
        ],
    )
    return trained(model, numbers(ROWS, 3), numbers(ROWS, 3, seed=4))


def test_metrics_of_the_user(cluster, alone):
    expected = alone(of_the_user)
    assert expected["history rows"].tolist() == [ROWS] * EPOCHS
    assert expected["history steps"].tolist() == [3] * EPOCHS
    assert_as_alone(cluster(2).run(of_the_user), expected)


def own_logs():
    """A step that returns more than metrics, the rest of it metrics."""
    import keras
    from keras import ops

    class Model(keras.Sequential):
        def train_step(self, *args):
            return with_more(super().train_step(*args), args[-1])

        def test_step(self, *args):
            return with_more(super().test_step(*args), args[-1])

    def with_more(result, data):
        logs, rest = result if isinstance(result, tuple) else (result, None)
        y = ops.cast(data[1], "float32")
        logs = {**logs, "mean of step": ops.mean(y)}
        return logs if rest is None else (logs, rest)

    keras.utils.set_random_seed(3)
    model = Model([keras.Input((3,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return trained(model, numbers(ROWS, 3), numbers(ROWS, 3, seed=4))


@pytest.mark.parametrize("replicas", [2, 3])
def test_logs_of_a_step_of_the_user(cluster, alone, replicas):
    """With 3 rows in the last step, one of 3 replicas has none."""
    expected = alone(own_logs)
    last = numbers(ROWS, 3, seed=4)[2 * BATCH :].mean()
    np.testing.assert_allclose(expected["history mean of step"], last, 1e-5)
    got = cluster(replicas).run(own_logs)
    # Keras itself shows the replica's metrics as the last step saw them.
    assert_as_alone(got, expected)
