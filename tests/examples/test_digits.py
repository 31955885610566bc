"""The example learns, and learns the same on one worker and on two."""

import json
import sys

import numpy as np
import pytest

from tests.pool.environment import ROOT

SCRIPT = ROOT / "examples" / "digits.py"
EPOCHS = 12
TIMEOUT = 400.0


@pytest.fixture(scope="module")
def train(fresh_cluster, tmp_path_factory):
    """Runs the example: its folder, and how each process ended."""

    def run(size, start="tf_config"):
        folder = tmp_path_factory.mktemp("digits")
        finished = fresh_cluster(
            size,
            [sys.executable, str(SCRIPT), "--history", "history.json"],
            start=start,
            timeout=TIMEOUT,
            cwd=folder,
        )
        for process in finished:
            assert process.returncode == 0, process.stderr
        return folder, finished

    return run


@pytest.fixture(scope="module")
def alone(train):
    return train(1)


def curve(folder):
    return json.loads((folder / "history.json").read_text())


def test_learns(alone):
    folder, (process,) = alone
    history = curve(folder)
    assert len(history["loss"]) == EPOCHS
    assert history["val_accuracy"][-1] >= 0.97
    last = process.stdout.splitlines()[-1]
    assert last.startswith(
        f"Validation accuracy {history['val_accuracy'][-1]:.4f} "
        "with 1 worker(s)."
    )


@pytest.fixture(scope="module", params=["tf_config", "horovodrun"])
def two(train, request):
    return train(2, request.param)


def test_two_workers_learn_the_same(alone, two):
    folder, finished = two
    curve_of_one, curve_of_two = curve(alone[0]), curve(folder)
    assert curve_of_one.keys() == curve_of_two.keys()
    for name, values in curve_of_one.items():
        # One row more or less that is guessed right moves the accuracy.
        atol = 5e-3 if "accuracy" in name else 1e-3
        np.testing.assert_allclose(curve_of_two[name], values, 0, atol)
    assert {path.name for path in folder.iterdir()} == {
        "digits.keras",
        "history.json",
    }
    assert "with 2 worker(s)." in finished[0].stdout
    # Progress and results are the chief's alone.
    printed = "".join(process.stdout for process in finished)
    assert printed.count("Validation accuracy") == 1
    assert printed.count(f"Epoch {EPOCHS}/{EPOCHS}") == 1


def test_the_saved_model_needs_keras_alone(two, fresh_cluster):
    folder, _ = two
    script = (
        "import sys, keras\n"
        "model = keras.models.load_model('digits.keras')\n"
        "assert model.predict(keras.ops.zeros((1, 8, 8, 1))).shape == (1, 10)\n"
        "assert 'keras_mwms' not in sys.modules\n"
    )
    (process,) = fresh_cluster(1, [sys.executable, "-c", script], cwd=folder)
    assert process.returncode == 0, process.stderr
