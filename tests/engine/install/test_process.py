import sys

import pytest

from keras_mwms.engine.install import process
from keras_mwms.engine.install.errors import InstallError


def python(script, **kwargs):
    return process.run(
        [sys.executable, "-c", script],
        what="counting",
        **{"timeout": 30, **kwargs},
    )


def test_returns_the_output():
    assert python("print(1 + 1)") == "2\n"


def test_failure_shows_the_end_of_the_output():
    with pytest.raises(
        InstallError, match=r"Failed at counting .exit status 3.:\n(.*\n)*  b"
    ):
        python("import sys; print('a\\nb'); sys.exit(3)")


def test_deadline():
    with pytest.raises(InstallError, match="counting: no end after 1 sec"):
        python(
            "import sys; sys.stdin = open(0); import signal; signal.pause()",
            timeout=1,
        )


def test_no_such_program():
    with pytest.raises(InstallError, match="Failed at counting"):
        process.run(["/nowhere/x"], what="counting", timeout=1)


def test_excerpt_has_early_errors_and_the_end():
    lines = ["a.cc:1: error: bad", *(f"line {n}" for n in range(100))]
    shown = process.excerpt("\n".join(lines)).splitlines()
    assert shown[:2] == ["  a.cc:1: error: bad", "  ..."]
    assert shown[2:] == [f"  line {n}" for n in range(85, 100)]


def test_excerpt_cuts_long_lines():
    assert process.excerpt("x" * 5000) == "  " + "x" * 300
