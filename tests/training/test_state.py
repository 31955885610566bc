"""State without a gradient: merged, the chief's, or each replica's own."""

import numpy as np
import pytest

from tests.pool import PerRank
from tests.training.facts import as_numpy
from tests.training.facts import assert_as_alone
from tests.training.facts import assert_same
from tests.training.facts import facts_of
from tests.training.facts import named

KINDS = ("sum", "mean", "only_first_replica", "none")


def counting():
    """A layer that adds the rows it sees to a variable of each kind."""
    import keras

    class Counting(keras.layers.Layer):
        def build(self, shape):
            for kind in KINDS:
                weight = self.add_weight(
                    shape=(),
                    dtype="int32" if kind == "sum" else "float32",
                    initializer="zeros",
                    trainable=False,
                    aggregation=kind,
                    name=kind,
                )
                setattr(self, kind, weight)

        def call(self, x):
            rows = keras.ops.shape(x)[0]
            for kind in KINDS:
                weight = getattr(self, kind)
                weight.assign(weight + keras.ops.cast(rows, weight.dtype))
            return x

    return Counting(name="counting")


def counts_of(model):
    layer = model.get_layer("counting")
    return {kind: float(as_numpy(getattr(layer, kind))) for kind in KINDS}


def ones(rows):
    return np.ones((rows, 2), "float32")


def counted():
    import keras

    import keras_mwms

    rank = keras_mwms.rank()
    layers = [keras.Input((2,)), counting(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    keras_mwms.distribute(model)
    found = {}
    # Two batches of five and one of one: then rank 1 has no row.
    x, y = ones(11), np.zeros((11, 1))
    model.fit(x, y, batch_size=5, epochs=2, verbose=0)
    found["fit"] = counts_of(model)
    model.evaluate(x, y, batch_size=5, verbose=0)
    found["evaluate"] = counts_of(model)
    for _ in range(2):
        model.train_on_batch(ones(rank + 1), np.zeros((rank + 1, 1)))
    found["train_on_batch"] = counts_of(model)
    model.test_on_batch(ones(1), np.zeros((1, 1)))
    found["test_on_batch"] = counts_of(model)
    # What all set in between is no sum.
    model.set_weights([np.full(w.shape, 7) for w in model.get_weights()])
    model.train_on_batch(ones(rank + 1), np.zeros((rank + 1, 1)))
    model.evaluate(x[:5], y[:5], batch_size=5, verbose=0)
    found["set"] = counts_of(model)
    return found


def test_variables_follow_their_aggregation(cluster, alone):
    (first, second) = cluster(2).run(counted)
    expected = alone(counted)
    for name in ("fit", "evaluate"):
        assert first[name]["sum"] == second[name]["sum"]
        assert first[name]["sum"] == expected[name]["sum"]
    # Rank 0 has 7 of 11 rows.
    assert first["fit"] == dict(sum=22, mean=11, only_first_replica=14, none=14)
    # All end fit with the chief's.
    assert second["fit"] == first["fit"]
    assert first["evaluate"] == dict(
        sum=33, mean=16.5, only_first_replica=21, none=21
    )
    assert second["evaluate"]["none"] >= 14 + 4
    assert second["evaluate"] | {"none": 21} == first["evaluate"]
    # Not merged before they are read.
    assert first["train_on_batch"]["sum"] == 33 + 2
    assert second["train_on_batch"]["sum"] == 33 + 4
    # Merged, and then one row more on each.
    assert first["test_on_batch"] == dict(
        sum=40, mean=20.5, only_first_replica=24, none=24
    )
    assert first["set"] == dict(
        sum=7 + 3 + 5, mean=11, only_first_replica=11, none=11
    )


def read_after_batches(path):
    """What readers find in the moving mean after `train_on_batch`."""
    import keras

    import keras_mwms

    def mean():
        return as_numpy(model.layers[0].moving_mean).tolist()

    rank = keras_mwms.rank()
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.BatchNormalization(momentum=0.0),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.0), "mse")
    keras_mwms.distribute(model)
    x, y = ones(2), np.zeros((2, 1))
    seen = []
    readers = {
        "evaluate": lambda: model.evaluate(x, y, verbose=0),
        "predict": lambda: model.predict(x, verbose=0),
        "test_on_batch": lambda: model.test_on_batch(x, y),
        "save": lambda: model.save(path),
        "fit": lambda: model.fit(
            x,
            y,
            callbacks=[
                keras.callbacks.LambdaCallback(
                    on_train_begin=lambda logs: seen.append(mean())
                )
            ],
            verbose=0,
        ),
    }
    found = {}
    for reader, read in readers.items():
        model.train_on_batch((rank + 1) * ones(3), np.zeros((3, 1)))
        before = mean()
        read()
        found[reader] = before, seen[0] if seen else mean()
    return found


def test_moving_statistics_are_merged_before_they_are_read(cluster, tmp_path):
    path = tmp_path / "model.keras"
    for rank, found in enumerate(cluster(2).run(read_after_batches, str(path))):
        assert len(found) == 5
        for reader, (before, after) in found.items():
            assert before == [rank + 1, rank + 1], reader
            assert after == [1.5, 1.5], reader
    import keras

    loaded = keras.models.load_model(path).layers[0].moving_mean
    assert as_numpy(loaded).tolist() == [1.5, 1.5]


def saved_by_the_chief(path):
    import keras

    import keras_mwms

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    keras_mwms.distribute(model)
    model.train_on_batch(ones(3), np.zeros((3, 1)))
    if keras_mwms.is_chief():
        model.save(path)
    keras_mwms.barrier()


def test_saving_exchanges_nothing_without_need(cluster, tmp_path):
    cluster(2).run(saved_by_the_chief, str(tmp_path / "model.keras"))
    assert (tmp_path / "model.keras").exists()


def adapted(layer, when):
    """Trains behind a layer that each replica adapts to data of its own."""
    import keras

    import keras_mwms

    keras.utils.set_random_seed(27)
    rank = keras_mwms.rank()
    random = np.random.default_rng(27)
    x = random.normal(size=(11, 3)).astype("float32")
    first = {
        "adapted": lambda: keras.layers.Normalization(),
        "given": lambda: keras.layers.Normalization(
            mean=[1.0, 2.0, rank], variance=2.0 + rank * np.ones(3)
        ),
        "discretization": lambda: keras.layers.Discretization(num_bins=3),
    }[layer]()
    if layer == "discretization":
        # Without them it has no output shape.
        first.adapt(x)

    def adapt():
        if layer != "given":
            first.adapt((rank + 1) * x + rank)

    inner = keras.Sequential([keras.Input((3,)), first])
    last = keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((3,)), inner, last])
    model.compile("sgd", "mse")
    if when == "before":
        adapt()
    keras_mwms.distribute(model)
    if when == "between":
        model.predict(x, batch_size=4, verbose=0)
        adapt()
    model.fit(x, x[:, :1], batch_size=4, epochs=2, shuffle=False, verbose=0)
    predictions = model.predict(x, batch_size=4, verbose=0)
    return facts_of(model, predictions=predictions)


@pytest.mark.parametrize("when", ["before", "between"])
@pytest.mark.parametrize(
    "layer",
    [
        "adapted",
        "given",
        pytest.param(
            "discretization",
            # Keras imports TensorFlow to adapt it.
            marks=pytest.mark.backend("tensorflow"),
        ),
    ],
)
def test_a27_what_was_adapted_is_the_chiefs(cluster, alone, layer, when):
    if (layer, when) == ("given", "between"):
        pytest.skip("nothing is adapted")
    got = cluster(2).run(adapted, layer, when)
    # Keras alone would predict by what was adapted before it first did.
    assert_as_alone(got, alone(adapted, layer, "before"))


def looked_up(kind, words):
    """Trains a model that looks words up."""
    import keras
    import tensorflow as tf

    import keras_mwms

    keras.utils.set_random_seed(27)
    layers = keras.layers
    lookup = {
        "string": lambda: layers.StringLookup(vocabulary=words, name="words"),
        "integer": lambda: layers.IntegerLookup(
            vocabulary=[ord(w) for w in words], name="words"
        ),
        "text": lambda: layers.TextVectorization(
            vocabulary=words, output_sequence_length=2, name="words"
        ),
        "weighted": lambda: layers.StringLookup(
            vocabulary=[*"abc"],
            idf_weights=[ord(w) / 100 for w in words],
            output_mode="tf_idf",
            name="words",
        ),
        "hashing": lambda: layers.Hashing(len(words), name="words"),
    }[kind]()
    integers = kind == "integer"
    inputs = keras.Input((1,), dtype="int64" if integers else "string")
    # Inside of a model inside of a pipeline.
    inner = keras.Sequential([keras.Input((1,), dtype=inputs.dtype), lookup])
    found = layers.Pipeline([inner])(inputs)
    if kind != "weighted":
        found = layers.Flatten()(layers.Embedding(9, 2)(found))
    model = keras.Model(inputs, layers.Dense(1)(found))
    model.compile("sgd", "mse")
    keras_mwms.distribute(model)
    text = "abcabdeaacb"
    x = np.array([[ord(t)] if integers else [t] for t in text])
    if not integers:
        # Keras takes no texts of NumPy.
        x = tf.constant(x)
    model.fit(x, np.arange(11.0)[:, None], batch_size=4, verbose=0)
    if kind == "string":
        assert lookup.get_vocabulary()[1:] == [*words]
    return facts_of(model)


LOOKUPS = ("string", "integer", "text", "weighted", "hashing")


# Keras imports TensorFlow for these layers.
@pytest.mark.backend("tensorflow")
@pytest.mark.parametrize("kind", LOOKUPS)
def test_a27_tables_are_left_alone_or_differ(cluster, alone, kind):
    same = [*"abc"]
    got = cluster(2).run(looked_up, kind, same)
    assert_as_alone(got, cluster(1).run(looked_up, kind, same)[0])
    others = {
        "string": ([*"axc"], "entry 2: 'b' on rank 0; 'x' on rank 1."),
        "integer": ([*"ab"], "entry 3: '99' on rank 0; nothing on rank 1."),
        "text": ([*"abcd"], "entry 5: nothing on rank 0; 'd' on rank 1."),
        "weighted": ([*"abx"], "entry 0: '[UNK] (weight 0.98"),
        "hashing": ([*"ab"], "'num_bins=3' on rank 0; 'num_bins=2' on rank 1"),
    }
    other, words = others[kind]
    for outcome in cluster(2).run_outcomes(
        looked_up, kind, PerRank([same, other])
    ):
        assert outcome.error_type == "ValueError", outcome
        assert "layer 'words'" in outcome.error_text
        assert words in outcome.error_text


def encoded(tokens):
    import keras

    import keras_mwms

    inputs = keras.Input((2,))
    layer = keras.layers.CategoryEncoding(tokens, name="encoded")
    hidden = keras.layers.Lambda(lambda x: x[:, :2])(layer(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
    keras_mwms.distribute(model)
    model.fit(ones(4), ones(4), verbose=0)


def test_a27_encodings_differ(cluster):
    cluster(2).run(encoded, 3)
    for outcome in cluster(2).run_outcomes(encoded, PerRank([3, 4])):
        assert outcome.error_type == "ValueError", outcome
        assert "layer 'encoded' (CategoryEncoding)" in outcome.error_text
        assert "'num_tokens=3' on rank 0; 'num_tokens=4' on rank 1" in (
            outcome.error_text
        )


def odd_weights():
    """Weights of all kinds, of another value on each replica."""
    import keras

    import keras_mwms

    keras.utils.set_random_seed(27)
    rank = keras_mwms.rank()

    class Odd(keras.layers.Layer):
        def build(self, shape):
            for dtype in ("bool", "int64", "uint8"):
                self.add_weight(
                    shape=(2,),
                    dtype=dtype,
                    initializer=lambda shape, dtype: keras.ops.cast(
                        keras.ops.full(shape, (rank + 1) % 2), dtype
                    ),
                    trainable=False,
                )
            self.empty = self.add_weight(shape=(0, 3))
            if keras.backend.backend() == "tensorflow":
                self.text = keras.Variable(
                    np.array([f"of {rank}"]), dtype="string", trainable=False
                )

        def call(self, x):
            return x + keras.ops.sum(self.empty)

    model = keras.Sequential([keras.Input((2,)), Odd(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse")
    keras_mwms.distribute(model)
    x = np.arange(22.0).reshape(11, 2)
    model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0)
    model.evaluate(x, x[:, :1], batch_size=4, verbose=0)
    weights = [as_numpy(w) for w in model.weights]
    odd = [w.astype(float) for w in weights if w.dtype.kind in "biu"]
    assert [w.tolist() for w in odd] == [[1, 1]] * 3
    text = getattr(model.layers[0], "text", None)
    own = None if text is None else as_numpy(text).tolist()
    numbers = {
        f"{i}": w.astype("float64")
        for i, w in enumerate(weights)
        if w.dtype.kind not in "OS"
    }
    return named(weights=numbers), own


def test_a27_weights_of_all_types_are_the_chiefs(cluster, alone, backend):
    got = cluster(2).run(odd_weights)
    expected, _ = alone(odd_weights)
    assert len(expected) == 6
    assert_as_alone([facts for facts, _ in got], expected)
    if backend == "tensorflow":
        assert [own for _, own in got] == [[b"of 0"], [b"of 1"]]


RECURRENT = {
    "lstm": lambda k: k.layers.LSTM(3, stateful=True),
    "gru": lambda k: k.layers.GRU(3, stateful=True),
    "bidirectional": lambda k: k.layers.Bidirectional(
        k.layers.SimpleRNN(3, stateful=True)
    ),
    "cells": lambda k: k.layers.RNN(
        [k.layers.LSTMCell(3), k.layers.GRUCell(2)], stateful=True
    ),
}


def recurrent(kind, batch, rows_of_model):
    """Trains with states that go on from batch to batch."""
    import keras

    import keras_mwms

    keras.utils.set_random_seed(4)
    size = keras_mwms.world_size()
    rows = rows_of_model or batch // size
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(rows, 4, 2)),
            RECURRENT[kind](keras),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    keras_mwms.distribute(model)
    x = np.random.default_rng(4).normal(size=(3 * batch, 4, 2))
    y = x[:, 0, :1]
    options = dict(batch_size=batch, verbose=0)
    history = model.fit(x, y, shuffle=False, epochs=2, **options)
    kept = model.predict(x, **options)
    model.fit(x[:batch], y[:batch], **options)
    after_fit = model.predict(x, **options)
    if kind == "cells":
        # Keras cannot reset nested states.
        return facts_of(model, history=history.history, kept=kept)
    reset = model.layers[0].reset_states
    reset()
    fresh = model.predict(x, **options)
    reset()
    again = model.predict(x, **options)
    np.testing.assert_allclose(again, fresh, rtol=1e-6)
    return facts_of(
        model,
        history=history.history,
        loss=model.evaluate(x, y, **options),
        kept=kept,
        after_fit=after_fit,
        fresh=fresh,
    )


# Keras on PyTorch cannot train the others: their states change in place.
@pytest.mark.parametrize(
    "kind",
    [
        "bidirectional",
        *(
            pytest.param(kind, marks=pytest.mark.backend("tensorflow", "jax"))
            for kind in ("lstm", "gru", "cells")
        ),
    ],
)
def test_states_of_recurrent_layers_stay_with_their_rows(cluster, alone, kind):
    got = cluster(2).run(recurrent, kind, 4, None)
    expected = alone(recurrent, kind, 4, None)
    assert_as_alone(got, expected)


def test_states_of_a_single_row(cluster, alone):
    got = cluster(2).run(recurrent, "bidirectional", 2, None)
    assert_as_alone(got, alone(recurrent, "bidirectional", 2, None))


@pytest.mark.parametrize(("batch", "rows"), [(4, 4), (5, 2), (5, 3)])
def test_states_need_the_replicas_own_batch_size(cluster, batch, rows):
    for outcome in cluster(2).run_outcomes(recurrent, "gru", batch, rows):
        assert outcome.error_type == "ValueError", outcome
        assert "batch_size // keras_mwms.world_size()" in outcome.error_text
        assert f"built for {rows} rows, batch_size={batch} on 2" in (
            outcome.error_text
        )


def recurrent_with_a_rest(method):
    import keras

    import keras_mwms

    layers = [keras.Input(batch_shape=(2, 4, 2)), RECURRENT["gru"](keras)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    keras_mwms.distribute(model)
    x = np.zeros((7, 4, 2))
    y = () if method == "predict" else (np.zeros((7, 3)),)
    getattr(model, method)(x, *y, batch_size=4, verbose=0)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_states_need_whole_batches(cluster, method):
    for outcome in cluster(2).run_outcomes(recurrent_with_a_rest, method):
        assert outcome.error_type == "ValueError", outcome
        assert "a last batch of 3 rows, batch_size=4" in outcome.error_text


def random_layers(keras):
    layers = keras.layers

    class Own(layers.Layer):
        """Has a generator as an attribute."""

        def __init__(self):
            super().__init__()
            self.generator = keras.random.SeedGenerator(7)

        def call(self, x, training=False):
            if not training:
                return x
            shape = keras.ops.shape(x)
            return x * keras.random.uniform(shape, seed=self.generator)

    return [
        layers.RandomFlip(),
        layers.RandomRotation(0.2),
        layers.RandomCrop(6, 6),
        layers.SpatialDropout2D(0.3),
        layers.GaussianNoise(0.5),
        layers.GaussianDropout(0.3),
        layers.AlphaDropout(0.3),
        layers.Flatten(),
        layers.Dense(4),
        layers.Dropout(0.5, seed=3),
        Own(),
        layers.Dense(1),
    ]


def randomized():
    import keras

    import keras_mwms

    keras.utils.set_random_seed(0)
    augment, *others = random_layers(keras)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            keras.Sequential([augment, *others[:2]]),
            *others[2:],
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    keras_mwms.distribute(model)
    x = np.random.default_rng(1).random((12, 6, 6, 2)).astype("float32")
    model.fit(x, x[:, 0, 0, :1], batch_size=4, epochs=2, verbose=0)
    seeds = [v for v in model.non_trainable_variables if "seed" in v.path]
    dropout = keras.ops.convert_to_numpy(
        model.layers[-3](np.ones((8, 8), "float32"), training=True)
    )
    own = keras.ops.convert_to_numpy(
        model.layers[-2](np.ones((8, 8), "float32"), training=True)
    )
    return (
        named(weights=dict(enumerate(v.value for v in model.weights))),
        [as_numpy(seed).tolist() for seed in seeds],
        [dropout.tolist(), own.tolist()],
    )


def test_a43_masks_differ_and_weights_agree(cluster, alone):
    first, second = cluster(2).run(randomized)
    assert_same(second[0], first[0], tolerance=1e-6)
    # Seeds are neither averaged nor shared.
    assert len(first[1]) >= 8
    for own, other in zip(first[1], second[1], strict=True):
        assert own[0] != other[0]
        assert own[1] == other[1]
    for own, other in zip(first[2], second[2], strict=True):
        assert own != other
    # The chief's are those of one process.
    assert first[1] == alone(randomized)[1]
    # The same again.
    again = cluster(2).run(randomized)
    assert [got[1:] for got in again] == [first[1:], second[1:]]
    assert_same(again[0][0], first[0], tolerance=1e-6)


def normalized(kind):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(6)
    layers = keras.layers
    hidden = {
        "group": lambda: [layers.Dense(4), layers.GroupNormalization(2)],
        "layer": lambda: [layers.Dense(4), layers.LayerNormalization()],
        "spectral": lambda: [layers.SpectralNormalization(layers.Dense(4))],
    }[kind]()
    model = keras.Sequential([keras.Input((3,)), *hidden, layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    keras_mwms.distribute(model)
    x = np.random.default_rng(6).normal(size=(11, 3)).astype("float32")
    model.fit(x, x[:, :1], batch_size=4, epochs=3, verbose=0)
    predictions = model.predict(x, batch_size=4, verbose=0)
    return facts_of(model, predictions=predictions)


@pytest.mark.parametrize("kind", ["group", "layer", "spectral"])
def test_normalizations_that_equal_one_process(cluster, alone, kind):
    got = cluster(2).run(normalized, kind)
    assert_as_alone(got, alone(normalized, kind))


def ordered(names, optimizer):
    """Trains, and trains on, layers created in an order of each replica."""
    import keras

    import keras_mwms

    class Model(keras.Model):
        def __init__(self):
            super().__init__(name="model")
            for name in names:
                setattr(self, name, keras.layers.Dense(3, name=name))

        def call(self, inputs):
            return self.a(self.b(self.c(inputs)))

    # An automatic name of its own.
    for _ in range(keras_mwms.rank()):
        keras.optimizers.SGD()
        keras.optimizers.Adam()
    model = Model()
    x = np.eye(3, dtype="float32")
    model(x)
    for i, name in enumerate("abc"):
        weights = [np.full(w.shape, i + 1.0) for w in model.get_weights()[:2]]
        getattr(model, name).set_weights(weights)
    made = {
        "sgd": lambda: keras.optimizers.SGD(1e-4, momentum=0.9),
        "scaled": lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(1e-4)
        ),
    }[optimizer]()
    model.compile(made, "mse")
    keras_mwms.distribute(model)
    for _ in range(2):
        model.fit(x, 0 * x, batch_size=3, epochs=2, shuffle=False, verbose=0)
    return {
        f"{name} {i}": value
        for name in "abc"
        for i, value in enumerate(getattr(model, name).get_weights())
    }


@pytest.mark.parametrize("optimizer", ["sgd", "scaled"])
def test_variables_of_optimizers_go_with_those_of_the_model(cluster, optimizer):
    (expected,) = cluster(1).run(ordered, "abc", optimizer)
    got = cluster(2).run(ordered, PerRank(["abc", "cab"]), optimizer)
    assert_as_alone(got, expected)
