"""What `tf.data` is made of: dictionaries, strings, ragged and sparse rows."""

import numpy as np
import pytest

from tests.data import pipelines
from tests.data.pipelines import BATCH
from tests.data.pipelines import ROWS
from tests.data.pipelines import joined

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
