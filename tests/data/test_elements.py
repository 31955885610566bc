"""What `tf.data` is made of: dictionaries, strings, ragged and sparse rows."""

import numpy as np
import pytest

from tests.data import pipelines
from tests.data.pipelines import BATCH
from tests.data.pipelines import ROWS
from tests.data.pipelines import joined
from tests.training.facts import assert_as_alone

pytestmark = pytest.mark.needs("tensorflow")

TEXTS = ["ant", "bee", "cat", "dog", "eel"] * 2


def rows(kind):
    """Elements of a kind. The last leaf numbers the rows."""
    import tensorflow as tf

    y = np.arange(ROWS, dtype="float32")
    x = np.stack([y, y * y / ROWS], 1)
    lengths = [1, 3, 2, 1, 5, 1, 1, 2, 1, 4]
    features = {
        "dict": {"a": x, "b": y[:, None]},
        "nested": (x, {"b": y[:, None]}),
        "strings": np.array(TEXTS)[:, None],
        "ragged": tf.RaggedTensor.from_row_lengths(
            np.arange(sum(lengths), dtype="float32"), lengths
        ),
        "sparse": tf.sparse.from_dense(x * (x > 1)),
        "weights": x,
    }
    slices = tf.data.Dataset.from_tensor_slices
    if kind == "alone":
        return slices(y[:, None])
    if kind == "none":
        return slices(y).map(lambda y: (None, y))
    if kind == "weights":
        return slices((x, y, y + 1))
    return slices((features[kind], y))


KINDS = (
    "dict",
    "nested",
    "strings",
    "ragged",
    "sparse",
    "weights",
    "alone",
    "none",
)


def kinds_of(backend):
    return [k for k in KINDS if k != "strings" or backend == "tensorflow"]


def recorded(kinds):
    """What this replica gets, of a known length, an unknown one, of OFF."""
    from keras_mwms.data import policy_of

    found = {}
    for kind in kinds:
        known = rows(kind)
        unknown = known.filter(lambda *row: True)
        found[kind] = [
            pipelines.epochs_of(known.batch(BATCH))[0],
            pipelines.epochs_of(unknown.batch(BATCH))[0],
            pipelines.epochs_of(known.batch(BATCH), policy=policy_of("OFF"))[0],
        ]
    return found


def test_rows_of_elements_stay_together(cluster, backend):
    of_replicas = cluster(3).run(recorded, kinds_of(backend))
    for kind in kinds_of(backend):
        expected = pipelines.one_process()
        if kind == "weights":
            expected = [[row + 1 for row in batch] for batch in expected]
        for way in range(2):
            steps = [each[kind][way] for each in of_replicas]
            assert joined(steps) == expected, kind
        for each in of_replicas:
            assert pipelines.flat(each[kind][2]) == pipelines.flat(expected), (
                kind
            )


def model_of(kind):
    import keras

    ops = keras.ops

    class Mean(keras.Model):
        """Of the values of each row."""

        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.dense.build((None, 1))

        def call(self, x):
            if hasattr(x, "row_splits"):
                import tensorflow as tf

                return self.dense(tf.reduce_mean(x, axis=1, keepdims=True))
            return self.dense(ops.mean(x, axis=1, keepdims=True))

    dense = keras.layers.Dense(1)
    a = keras.Input((2,), name="a")
    b = keras.Input((1,), name="b")
    joined = dense(keras.layers.Concatenate()([a, b]))
    if kind == "dict":
        return keras.Model({"a": a, "b": b}, joined)
    if kind == "nested":
        return keras.Model((a, {"b": b}), joined)
    if kind == "strings":
        text = keras.Input((1,), dtype="string")
        lookup = keras.layers.StringLookup(
            vocabulary=sorted(set(TEXTS)), output_mode="one_hot"
        )
        return keras.Model(text, keras.layers.Dense(1)(lookup(text)))
    if kind == "ragged":
        return Mean()
    if kind == "python":
        # It is built from the data.
        return keras.Sequential([keras.layers.Dense(1)])
    x = keras.Input((2,), sparse=kind == "sparse")
    return keras.Model(x, keras.layers.Dense(1)(x))


def trained(kind):
    """What training on elements of a kind leaves behind."""
    import keras

    import keras_mwms
    from tests.training.facts import facts_of

    keras.utils.set_random_seed(5)
    model = model_of("plain" if kind == "classes" else kind)
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    model = keras_mwms.distribute(model, auto_shard_policy="DATA")
    options = {}
    is_plain = kind in ("classes", "python")
    dataset = rows("weights" if is_plain else kind)
    if kind == "classes":
        dataset = dataset.map(lambda x, y, w: (x, y % 2))
        options["class_weight"] = {0: 1.0, 1: 3.0}
    dataset = dataset.batch(BATCH)
    if kind == "python":
        dataset = dataset.map(through_python)
    history = model.fit(dataset, epochs=2, verbose=0, **options)
    predicted = model.predict(dataset, verbose=0)
    return facts_of(model, history=history.history, predicted=predicted)


def through_python(*row):
    """Arrays whose shapes TensorFlow does not know. Keras on it needs them."""
    import keras
    import tensorflow as tf

    some = tf.py_function(lambda *row: row, row, [tf.float32] * 3)
    if keras.backend.backend() == "tensorflow":
        some = [tf.ensure_shape(some[0], (None, 2)), *some[1:]]
        some[1:] = [tf.ensure_shape(leaf, (None,)) for leaf in some[1:]]
    return tuple(some)


def several_trained(kinds):
    return [trained(kind) for kind in kinds]


def test_elements_are_trained_on_as_in_one_process(cluster, alone, backend):
    kinds = ["dict", "nested", "weights", "classes", "python"]
    if backend != "torch":
        # Keras has neither there.
        kinds += ["ragged", "sparse"]
    if backend == "tensorflow":
        kinds.append("strings")
    of_replicas = cluster(3).run(several_trained, kinds)
    expected = alone(several_trained, tuple(kinds))
    for case in range(len(kinds)):
        assert_as_alone([each[case] for each in of_replicas], expected[case])
