"""Frames, tensors, sparse and mapped arrays train as in one process."""

import numpy as np
import pytest

from tests.data import memory
from tests.training.facts import assert_as_alone
from tests.training.facts import facts_of
from tests.training.facts import named

# Every step has 5 rows: one program for all.
ROWS = 20
OPTIONS = {"batch_size": 5, "verbose": 0}
WEIGHTS = {0: 0.5, 1: 2.0}


def a_model(features):
    import keras

    import keras_mwms

    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [
            keras.Input((features,)),
            keras.layers.Dense(3, "tanh"),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["mae"]
    )
    return keras_mwms.distribute(model)


def learnt(model, x, y, **options):
    """Fits, evaluates, predicts."""
    history = model.fit(
        x,
        y,
        epochs=2,
        validation_split=0.25,
        class_weight=WEIGHTS,
        **OPTIONS,
        **options,
    ).history
    return named(
        history=history,
        evaluation=model.evaluate(x, y, **OPTIONS),
        predictions=model.predict(x, **OPTIONS),
    )


def numbers():
    random = np.random.default_rng(3)
    x = random.normal(size=(ROWS, 4))
    return x, (x.sum(axis=1) > 0).astype("int64")


def on_many_kinds():
    """One model learns from one kind of data after the other."""
    import keras
    import pandas as pd
    from scipy import sparse

    x, y = numbers()
    model = a_model(4)
    frame = pd.DataFrame(x, columns=list("abcd")).astype({"a": "int32"})
    # Of a series Keras makes a column.
    column = y[:, None]
    tensors = [keras.ops.convert_to_tensor(a) for a in (x, column)]
    # JAX compiles anew for each number of nonzero values: two a row.
    kept = x * np.resize([True, False, False, True], x.shape)
    facts = {
        "frame": learnt(model, frame, pd.Series(y)),
        "tensor": learnt(model, *tensors, shuffle="batch"),
        "sparse": learnt(model, sparse.csr_matrix(kept), column),
    }
    return facts_of(model) | {
        f"{kind} {name}": value
        for kind, of_kind in facts.items()
        for name, value in of_kind.items()
    }


def test_every_kind_of_array(cluster, alone):
    got = cluster(2).run(on_many_kinds)
    assert_as_alone(got, alone(on_many_kinds))


def on_ragged_rows():
    import keras
    import tensorflow as tf

    import keras_mwms

    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32", ragged=True),
            keras.layers.Embedding(7, 3),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, "sigmoid"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy")
    keras_mwms.distribute(model)
    lengths = 1 + np.arange(ROWS) % 6
    x = tf.RaggedTensor.from_row_lengths(np.arange(lengths.sum()) % 7, lengths)
    return facts_of(model) | learnt(model, x, numbers()[1])


@pytest.mark.backend("tensorflow")
def test_ragged_rows(cluster, alone):
    got = cluster(2).run(on_ragged_rows)
    assert_as_alone(got, alone(on_ragged_rows))


def write_rows(path, rows=100, features=2**18):
    """200 MB with a few numbers in each row, and holes."""
    file = np.memmap(path, "float64", mode="w+", shape=(rows, features))
    file[:, :4] = np.resize(numbers()[0], (rows, 4))
    file.flush()


def on_a_mapped_file(path):
    """What is learnt from a file, and the memory that it took in MB."""
    x = np.memmap(path, "float64", mode="r").reshape(100, -1)
    y = np.resize(numbers()[1], len(x))
    model = a_model(x.shape[1])
    # What is compiled is not counted.
    learnt(model, np.array(x[:20]), y[:20])
    with memory.peak() as growth:
        facts = learnt(model, x, y)
    return facts_of(model) | facts, growth[0]


def test_a_mapped_file_is_read_by_rows(cluster, alone, tmp_path):
    path = tmp_path / "rows.bin"
    write_rows(path)
    expected, whole = alone(on_a_mapped_file, path)
    facts, growths = zip(*cluster(2).run(on_a_mapped_file, path), strict=True)
    assert_as_alone(facts, expected)
    assert max(growths) < 60
    # Keras casts all of it at once: it would be seen.
    assert whole > 90
