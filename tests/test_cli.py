import subprocess
import sys

import pytest


def cli(*arguments):
    script = "from keras_mwms.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_lists_the_commands():
    done = cli("--help")
    assert done.returncode == 0
    assert "install-horovod" in done.stdout


def test_help_of_a_command():
    done = cli("install-horovod", "--help")
    assert done.returncode == 0
    assert "--framework" in done.stdout
    assert "--no-cache" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [("no-such-command",), ("install-horovod", "--timeout", "0")],
)
def test_wrong_usage(arguments):
    assert cli(*arguments).returncode == 2


def test_failure_is_told_on_stderr():
    done = cli("install-horovod", "--framework", "caffe")
    assert done.returncode == 1
    assert "Received: 'caffe'" in done.stderr
    assert done.stdout == ""


def test_starts_without_the_frameworks():
    script = (
        "import sys, keras_mwms.cli\n"
        "names = {'keras', 'tensorflow', 'torch', 'jax', 'horovod', 'numpy'}\n"
        "assert not names & set(sys.modules), names & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
