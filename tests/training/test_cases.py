"""What went wrong for others: one test, or more, for each such report.

The cases A11, A12 and A56 are exact values of one step: see `test_steps`.
"""

import warnings

import numpy as np
import pytest

from tests.pool import PerRank
from tests.training.facts import as_numpy
from tests.training.facts import assert_as_alone
from tests.training.facts import assert_same
from tests.training.facts import facts_of
from tests.training.facts import named


def linear(kernel=0.0, features=1):
    """A linear model whose loss is the mean of the output."""
    import keras

    model = keras.Sequential(
        [
            keras.Input((features,)),
            keras.layers.Dense(
                1,
                use_bias=False,
                kernel_initializer=keras.initializers.Constant(kernel),
            ),
        ]
    )
    model.compile(keras.optimizers.SGD(1.0), lambda y, p: p)
    return model


def column(*values):
    return np.array(values, "float32")[:, None]


def all_rows_right():
    import keras

    import keras_mwms

    model = linear(kernel=10.0)
    model.compile(
        keras.optimizers.SGD(0.01),
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)],
    )
    x = np.linspace(-1.0, 1.0, 10).astype("float32")[:, None]
    history = keras_mwms.distribute(model).fit(
        x, x > 0, batch_size=4, verbose=0
    )
    return named(history=history.history)


def test_a01_metrics_are_not_summed_over_replicas(cluster, alone):
    expected = alone(all_rows_right)
    for got in cluster(4).run(all_rows_right):
        assert got["history accuracy"].tolist() == [1.0]
        assert_same(got, expected)


def random_rows(batch_size):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    keras_mwms.distribute(model)
    random = np.random.default_rng(0)
    x = random.normal(size=(12, 3))
    y = random.normal(size=(12, 2))
    before = model.evaluate(x, y, batch_size=batch_size, verbose=0)
    history = model.fit(x, y, batch_size=12, verbose=0)
    predictions = model.predict(x, batch_size=batch_size, verbose=0)
    return facts_of(
        model,
        before=before,
        history=history.history,
        predictions=predictions,
    )


@pytest.mark.parametrize("replicas", [2, 4])
def test_a02_gradients_are_exchanged(cluster, alone, replicas):
    expected = alone(random_rows, 5)
    assert_as_alone(cluster(replicas).run(random_rows, 5), expected)


def few_rows(rows):
    import keras_mwms

    model = keras_mwms.distribute(linear(kernel=1.0))
    model.compile(model.optimizer, lambda y, p: p, metrics=["mae"])
    x = column(*range(1, rows + 1))
    history = model.fit(
        x, 0 * x, epochs=2, validation_data=(x[:1], x[:1]), verbose=0
    )
    return facts_of(
        model,
        history=history.history,
        evaluation=model.evaluate(x, 0 * x, return_dict=True, verbose=0),
        predictions=model.predict(x, verbose=0),
    )


@pytest.mark.parametrize(("rows", "replicas"), [(1, 2), (3, 4)])
def test_a15_a_replica_without_rows(cluster, alone, rows, replicas):
    expected = alone(few_rows, rows)
    assert all(np.isfinite(value).all() for value in expected.values())
    assert_as_alone(cluster(replicas).run(few_rows, rows), expected)


def normalized(rows):
    import keras

    import keras_mwms

    model = keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.BatchNormalization(momentum=0.9, name="norm"),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse", metrics=["mae"])
    keras_mwms.distribute(model)
    x = np.full((rows, 1), 2.0, "float32")
    model.fit(x, x, verbose=0)
    return {
        "moving_mean": float(as_numpy(model.get_layer("norm").moving_mean)[0]),
        "rows counted": [
            float(as_numpy(v))
            for metric in model.metrics
            for v in metric.variables
            if v.name == "count"
        ],
    }


@pytest.mark.parametrize(("rows", "replicas"), [(1, 2), (3, 4)])
def test_a15_a_replica_without_rows_leaves_no_trace(cluster, rows, replicas):
    """The row of 2 moves the mean from 0 to 0.2 where there is one."""
    got = cluster(replicas).run(normalized, rows)
    counted = [each["rows counted"] for each in got]
    assert counted == [[1.0] * 2] * rows + [[0.0] * 2]
    for each in got:
        assert each["moving_mean"] == pytest.approx(0.2 * rows / replicas)


def visited(shuffle, validation_split):
    """Which rows the steps of this replica have seen."""
    import keras

    import keras_mwms

    class Recorder(keras.Sequential):
        def train_step(self, *args):
            trained.append(as_numpy(args[-1][0]).ravel().tolist())
            return super().train_step(*args)

        def test_step(self, *args):
            tested.append(as_numpy(args[-1][0]).ravel().tolist())
            return super().test_step(*args)

    trained, tested = [], []
    model = Recorder([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    keras_mwms.distribute(model)
    x = column(*range(10))
    model.fit(
        x,
        x,
        batch_size=4,
        shuffle=shuffle,
        validation_split=validation_split,
        verbose=0,
    )
    return trained, tested


@pytest.mark.parametrize(
    ("shuffle", "split", "steps"),
    [(False, 0.0, [3, 0]), (True, 0.0, [3, 0]), (True, 0.3, [2, 1])],
)
def test_a20_each_row_is_visited_once(cluster, shuffle, split, steps):
    got = cluster(2).run(visited, shuffle, split)
    assert [[len(calls) for calls in each] for each in got] == [steps] * 2
    trained, tested = (
        [row for each in got for step in each[kind] for row in step]
        for kind in (0, 1)
    )
    kept = round(10 * (1 - split))
    assert sorted(trained) == list(range(kept))
    assert sorted(tested) == (list(range(kept, 10)) if split else [])
    if not shuffle:
        assert got[0][0] == [[0, 1], [4, 5], [8]]


def saved_for_a21(path):
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, "tanh"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    model.fit(*rows_for_a21(), batch_size=5, shuffle=False, verbose=0)
    model.save(path)


def rows_for_a21():
    random = np.random.default_rng(21)
    return random.normal(size=(13, 3)), random.normal(size=(13, 1))


def copied(model, make):
    """A compiled copy that `make` makes of a model, with its weights."""
    import keras

    copy = make(model)
    copy.set_weights(model.get_weights())
    copy.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return copy


LOADED = {
    "as it was saved": lambda keras, path: keras.models.load_model(path),
    "compiled anew": lambda keras, path: copied(
        keras.models.load_model(path, compile=False), lambda model: model
    ),
    "cloned": lambda keras, path: copied(
        keras.models.load_model(path), keras.models.clone_model
    ),
    "from its config": lambda keras, path: copied(
        keras.models.load_model(path),
        lambda model: type(model).from_config(model.get_config()),
    ),
}


def continued(path, how, distributed_before):
    import keras

    import keras_mwms

    model = LOADED[how](keras, path)
    if distributed_before:
        keras_mwms.distribute(model)
        model = copied(model, keras.models.clone_model)
    keras_mwms.distribute(model)
    history = model.fit(
        *rows_for_a21(), batch_size=5, epochs=2, shuffle=False, verbose=0
    )
    return facts_of(model, history=history.history)


@pytest.mark.parametrize(
    ("how", "distributed_before"),
    [*((how, False) for how in LOADED), ("as it was saved", True)],
)
def test_a21_a_loaded_model_trains_in_step(
    cluster, tmp_path, how, distributed_before
):
    path = str(tmp_path / "model.keras")
    cluster(1).run(saved_for_a21, path)
    (expected,) = cluster(1).run(continued, path, how, distributed_before)
    got = cluster(2).run(continued, path, how, distributed_before)
    assert_as_alone(got, expected)


def in_an_order(names, wrapped):
    """Layers of one shape, created and tracked in an order of each replica."""
    import keras

    import keras_mwms

    def layer(name):
        if not wrapped:
            return keras.layers.Dense(3, name=name)
        import torch

        module = torch.nn.Linear(3, 3)
        return keras.layers.TorchModuleWrapper(module, name=name)

    class Model(keras.Model):
        def __init__(self):
            super().__init__(name="model")
            for name in names:
                setattr(self, name, layer(name))

        def call(self, inputs):
            return self.a(self.b(self.c(inputs)))

    keras.utils.set_random_seed(25)
    model = Model()
    x = np.eye(3, dtype="float32")
    model(x)
    # The same start whatever the order of creation.
    for i, name in enumerate("abc"):
        weights = [np.full(w.shape, i + 1.0) for w in model.get_weights()[:2]]
        getattr(model, name).set_weights(weights)
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mse")
    keras_mwms.distribute(model)
    model.fit(x, 0 * x, batch_size=3, epochs=2, shuffle=False, verbose=0)
    return {
        f"{name} {i}": value
        for name in "abc"
        for i, value in enumerate(getattr(model, name).get_weights())
    }


@pytest.mark.parametrize(
    "wrapped",
    [False, pytest.param(True, marks=pytest.mark.backend("torch"))],
)
@pytest.mark.parametrize("second", ["abc", "cab"])
def test_a25_variables_do_not_swap(cluster, wrapped, second):
    (expected,) = cluster(1).run(in_an_order, "abc", wrapped)
    got = cluster(2).run(in_an_order, PerRank(["abc", second]), wrapped)
    assert_as_alone(got, expected)


def of_a_shape(units, wrapped):
    import keras

    import keras_mwms

    if wrapped:
        import torch

        module = torch.nn.Linear(3, units)
        layer = keras.layers.TorchModuleWrapper(module, name="odd")
    else:
        layer = keras.layers.Dense(units, name="odd")
    model = keras.Sequential([layer])
    model(np.eye(3, dtype="float32"))
    model.compile("sgd", lambda y, p: p)
    keras_mwms.distribute(model).fit(np.eye(3), np.eye(3), verbose=0)


@pytest.mark.parametrize(
    "wrapped",
    [False, pytest.param(True, marks=pytest.mark.backend("torch"))],
)
def test_a25_a_true_mismatch_names_both(cluster, wrapped):
    outcomes = cluster(2).run_outcomes(of_a_shape, PerRank([2, 5]), wrapped)
    for outcome in outcomes:
        assert outcome.error_type == "ValueError", outcome
        shapes = ["(2, 3)", "(5, 3)"] if wrapped else ["(3, 2)", "(3, 5)"]
        for shape in shapes:
            assert shape in outcome.error_text
        assert "rank 0" in outcome.error_text
        assert "rank 1" in outcome.error_text


FEEDS = {
    "three epochs": dict(epochs=3),
    "two steps an epoch": dict(epochs=3, steps_per_epoch=2),
}


def fed(feed, kind):
    """How many steps each epoch had, and what was logged and warned."""
    import keras

    import keras_mwms

    model = keras_mwms.distribute(linear())
    steps = []
    counter = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: steps.append(
            int(as_numpy(model.optimizer.iterations))
        )
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(
            **data_of_a42(kind),
            **FEEDS[feed],
            shuffle=False,
            callbacks=[counter],
            verbose=0,
        )
    ran_dry = any("ran out of data" in str(w.message) for w in caught)
    return facts_of(
        model, history=history.history, steps=steps, ran_dry=float(ran_dry)
    )


def data_of_a42(kind):
    x = column(*range(10))
    if kind == "arrays":
        return dict(x=x, y=x, batch_size=4)
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((x, x))
    if kind == "of unknown length":
        dataset = dataset.filter(lambda x, y: x[0] >= 0)
    dataset = dataset.batch(4)
    return dict(x=dataset.repeat() if kind == "endless" else dataset)


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize(
    "kind",
    [
        "arrays",
        *(
            pytest.param(kind, marks=pytest.mark.needs("tensorflow"))
            for kind in ("a dataset", "endless", "of unknown length")
        ),
    ],
)
def test_a42_all_epochs_have_data(cluster, alone, backend, feed, kind):
    if kind == "endless" and feed == "three epochs":
        pytest.skip("would never end")
    expected = alone(fed, feed, kind)
    assert len(expected["history loss"]) == 3
    if backend == "tensorflow" and kind == "of unknown length":
        # Keras counts a step for the batch that it does not find.
        warned = {"ran_dry": expected["ran_dry"]}
        expected = alone(fed, feed, "a dataset") | warned
    assert_as_alone(cluster(2).run(fed, feed, kind), expected)


def predicted(outputs):
    import keras

    import keras_mwms

    inputs = keras.Input((1,))
    kernel = keras.initializers.Ones()
    first = keras.layers.Dense(1, use_bias=False, kernel_initializer=kernel)
    model = keras.Model(
        inputs,
        {"one": first(inputs), "two": [-first(inputs), inputs]}
        if outputs == "nested"
        else first(inputs),
    )
    keras_mwms.distribute(model)
    got = model.predict(column(0, 1, 2, 3, 4), batch_size=2, verbose=0)
    return keras.tree.map_structure(lambda a: a.ravel().tolist(), got)


@pytest.mark.parametrize("replicas", [2, 3])
def test_a48_predictions_are_complete_and_in_order(cluster, replicas):
    rows = [0.0, 1.0, 2.0, 3.0, 4.0]
    assert cluster(replicas).run(predicted, "one") == [rows] * replicas
    negative = [-row for row in rows]
    nested = {"one": rows, "two": [negative, rows]}
    assert cluster(replicas).run(predicted, "nested") == [nested] * replicas
