"""The example learns, and learns the same on one worker and on two."""

import functools
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
    """Runs the example, once for each way: its folder, its processes."""

    @functools.cache
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


def curve(folder):
    return json.loads((folder / "history.json").read_text())


def test_learns(train):
    folder, (process,) = train(1)
    history = curve(folder)
    assert len(history["loss"]) == EPOCHS
    accuracy = history["val_accuracy"][-1]
    assert accuracy >= 0.97
    assert process.stdout.splitlines()[-1] == (
        f"Validation accuracy {accuracy:.4f} with 1 worker(s). "
        "Saved: digits.keras"
    )


@pytest.mark.parametrize("start", ["tf_config", "horovodrun"])
def test_two_workers_learn_the_same(train, start):
    folder, finished = train(2, start)
    one, two = curve(train(1)[0]), curve(folder)
    assert one.keys() == two.keys()
    for name, values in one.items():
        # One row more or less that is guessed right moves the accuracy.
        atol = 5e-3 if "accuracy" in name else 1e-3
        np.testing.assert_allclose(two[name], values, rtol=0, atol=atol)
    # No file of the other worker is left.
    assert {path.name for path in folder.iterdir()} == {
        "digits.keras",
        "history.json",
    }
    # Progress and results are the chief's alone.
    printed = "".join(process.stdout for process in finished)
    assert printed.count("Validation accuracy") == 1
    assert "with 2 worker(s)." in printed
    assert printed.count(f"Epoch {EPOCHS}/{EPOCHS}") == 1


def test_the_saved_model_needs_keras_alone(train, fresh_cluster):
    folder, _ = train(2)
    script = (
        "import sys, keras\n"
        "model = keras.models.load_model('digits.keras')\n"
        "assert model.predict(keras.ops.zeros((1, 8, 8, 1))).shape == (1, 10)\n"
        "assert 'keras_mwms' not in sys.modules\n"
    )
    (process,) = fresh_cluster(1, [sys.executable, "-c", script], cwd=folder)
    assert process.returncode == 0, process.stderr
