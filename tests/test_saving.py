"""Every replica saves; one whole file comes of it, which plain Keras reads."""

import json
import os
import pathlib
import sys
import zipfile

import numpy as np
import pytest

REPEATS = 20


def a_model(callbacks=(), epochs=1):
    """A distributed model after a few steps of Adam."""
    import keras

    import keras_mwms

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, "tanh"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    keras_mwms.distribute(model)
    random = np.random.default_rng(3)
    model.fit(
        random.normal(size=(13, 3)),
        random.normal(size=(13, 1)),
        batch_size=5,
        epochs=epochs,
        callbacks=list(callbacks),
        verbose=0,
    )
    return model


def state_of(model):
    """What a file must hold, as JSON can."""
    import keras

    return {
        "weights": [w.tolist() for w in model.get_weights()],
        "optimizer": [
            keras.ops.convert_to_numpy(v).tolist()
            for v in model.optimizer.variables
        ],
    }


def names_in(folder):
    """All names below a folder, hidden ones too."""
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, folders, files in os.walk(folder)
        for name in (*folders, *files)
    )


def saved(folder):
    model = a_model()
    model.save(pathlib.Path(folder) / "whole.keras")
    model.save_weights(f"{folder}/some.weights.h5")
    # A name without a folder, below a folder that does not exist yet.
    os.chdir(folder)
    model.save("here.keras")
    model.save("new/there.keras")
    # Last: it spoils what Keras saves afterwards, also without this package.
    model.save("whole.h5")
    return state_of(model)


PLAIN_KERAS = """
import json, sys
sys.modules["keras_mwms"] = None
import keras
folder = sys.argv[1]
def state_of(model):
    return {
        "weights": [w.tolist() for w in model.get_weights()],
        "optimizer": [
            keras.ops.convert_to_numpy(v).tolist()
            for v in model.optimizer.variables
        ],
    }
whole = keras.models.load_model(f"{folder}/whole.keras")
here = keras.models.load_model(f"{folder}/here.keras")
there = keras.models.load_model(f"{folder}/new/there.keras")
# Keras cannot read the losses of this format without help.
legacy = keras.models.load_model(f"{folder}/whole.h5", compile=False)
some = keras.models.clone_model(whole)
some.load_weights(f"{folder}/some.weights.h5")
print(json.dumps([
    state_of(whole), state_of(here), state_of(there),
    legacy.get_weights()[0].tolist(), some.get_weights()[0].tolist(),
    int(whole.optimizer.iterations), type(whole).__name__,
    type(whole.optimizer).__name__,
]))
"""


def test_plain_keras_reads_what_all_have_saved(
    cluster, fresh_cluster, tmp_path
):
    chief, other = cluster(2).run(saved, str(tmp_path))
    assert chief == other
    assert names_in(tmp_path) == [
        "here.keras",
        "new",
        "new/there.keras",
        "some.weights.h5",
        "whole.h5",
        "whole.keras",
    ]
    argv = [sys.executable, "-c", PLAIN_KERAS, str(tmp_path)]
    (ended,) = fresh_cluster(1, argv)
    assert ended.returncode == 0, ended.stderr
    *wholes, legacy, some, iterations, kind, optimizer = json.loads(
        ended.stdout
    )
    assert wholes == [chief] * 3
    assert legacy == some == chief["weights"][0]
    assert (iterations, kind, optimizer) == (3, "Sequential", "Adam")


def exported(folder):
    model = a_model()
    model.export(f"{folder}/served", verbose=False)
    return model.predict(np.ones((1, 3)), verbose=0).tolist()


@pytest.mark.backend("tensorflow")
def test_export(cluster, tmp_path):
    expected, _ = cluster(2).run(exported, str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["served"]

    import tensorflow as tf

    served = tf.saved_model.load(str(tmp_path / "served"))
    got = served.serve(np.ones((1, 3), "float32")).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def saved_often(folder):
    """Saves over the same file; nobody ever sees it in part."""
    import keras_mwms

    model = a_model()
    path = f"{folder}/model.keras"
    listings = []
    for _ in range(REPEATS):
        model.save(path)
        if keras_mwms.is_chief():
            # Whole, while the others may still be writing theirs.
            with zipfile.ZipFile(path) as file:
                assert file.testzip() is None
        keras_mwms.barrier()
        listings.append(names_in(folder))
        keras_mwms.barrier()
    return listings


def test_a16_again_and_again(cluster, tmp_path):
    got = cluster(3).run(saved_often, str(tmp_path))
    assert got == [[["model.keras"]] * REPEATS] * 3


def with_checkpoints(folder):
    import keras

    checkpoints = [
        keras.callbacks.ModelCheckpoint(f"{folder}/ck-{{epoch}}.keras"),
        keras.callbacks.ModelCheckpoint(
            f"{folder}/best.weights.h5",
            monitor="loss",
            save_best_only=True,
            save_weights_only=True,
        ),
    ]
    return state_of(a_model(checkpoints, epochs=3))


def loaded(path):
    import keras

    return state_of(keras.models.load_model(path))


def test_a16_model_checkpoint_writes_one_file_an_epoch(cluster, tmp_path):
    chief, _ = cluster(2).run(with_checkpoints, str(tmp_path))
    assert names_in(tmp_path) == [
        "best.weights.h5",
        *(f"ck-{epoch}.keras" for epoch in (1, 2, 3)),
    ]
    assert cluster(1).run(loaded, str(tmp_path / "ck-3.keras")) == [chief]
    iterations = [
        cluster(1).run(loaded, str(tmp_path / f"ck-{e}.keras"))[0]["optimizer"]
        for e in (1, 2, 3)
    ]
    assert [i[0] for i in iterations] == [3, 6, 9]


def saved_by_the_chief_alone(folder):
    import keras

    import keras_mwms

    model = a_model()
    if keras_mwms.is_chief():
        model.save(f"{folder}/between.keras")
    model.fit(
        np.ones((4, 3)),
        np.ones((4, 1)),
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_epoch_end=lambda epoch, logs: (
                    keras_mwms.is_chief() and model.save(f"{folder}/in.keras")
                )
            )
        ],
        verbose=0,
    )
    return state_of(model)


def test_a17_the_chief_alone_may_save(cluster, tmp_path):
    chief, other = cluster(2).run(saved_by_the_chief_alone, str(tmp_path))
    assert chief == other
    assert names_in(tmp_path) == ["between.keras", "in.keras"]


def saved_by_another_alone(folder):
    import keras_mwms

    model = a_model()
    if not keras_mwms.is_chief():
        model.save(f"{folder}/model.keras")


def test_nobody_but_the_chief_writes(cluster, tmp_path):
    cluster(2).run(saved_by_another_alone, str(tmp_path))
    assert names_in(tmp_path) == []


def saved_badly(path, fails):
    """A layer whose weights cannot be written, after others that can."""
    import keras

    import keras_mwms

    class Fragile(keras.layers.Dense):
        def save_own_variables(self, store):
            super().save_own_variables(store)
            if fails:
                raise OSError("the disk is full")

    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(4), Fragile(1)]
    )
    model.compile("sgd", "mse")
    keras_mwms.distribute(model)
    model.save(path)


def test_an_error_while_saving_leaves_nothing_behind(cluster, tmp_path):
    path = tmp_path / "model.keras"
    for outcome in cluster(2).run_outcomes(saved_badly, str(path), True):
        assert outcome.error_type == "OSError", outcome
        assert "the disk is full" in outcome.error_text
    assert names_in(tmp_path) == []

    cluster(2).run(saved_badly, str(path), False)
    before = path.read_bytes()
    cluster(2).run_outcomes(saved_badly, str(path), True)
    assert names_in(tmp_path) == ["model.keras"]
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be(cluster, tmp_path):
    (tmp_path / "file").write_text("no folder")
    path = str(tmp_path / "file" / "model.keras")
    for outcome in cluster(2).run_outcomes(saved_badly, path, False):
        assert outcome.error_type == "NotADirectoryError", outcome
    assert names_in(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "no folder"


@pytest.mark.parametrize("suffix", [".txt", ""])
def test_keras_says_what_is_wrong_with_a_name(cluster, tmp_path, suffix):
    path = str(tmp_path / f"model{suffix}")
    for outcome in cluster(2).run_outcomes(saved_badly, path, False):
        assert outcome.error_type == "ValueError", outcome
        assert "Invalid filepath extension" in outcome.error_text
        assert names_in(tmp_path) == []
