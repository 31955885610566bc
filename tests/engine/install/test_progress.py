import io

import pytest
from rich.console import Console

from keras_mwms.engine.install import progress


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("  [  7%] Building CXX object a/x.dir/b/c.cc.o", (7, "c.cc")),
        (
            "[100%] Linking CXX shared library /a/mpi_lib.so",
            (100, "mpi_lib.so"),
        ),
        ("[ 42%] Built target gloo", (42, "Built target gloo")),
        ("  c++ -c a.cc", None),
        ("[12/40] Building CXX object a.o", None),
        ("", None),
    ],
)
def test_parse_line(line, expected):
    assert progress.parse_line(line) == expected


def shown(*, terminal):
    console = Console(
        file=io.StringIO(), force_terminal=terminal, width=100, no_color=True
    )
    with progress.BuildProgress(console, "Horovod [x]") as bar:
        bar.line("[ 42%] Building CXX object a/ring.cc.o")
        bar.line("noise")
    return console.file.getvalue()


def test_on_a_terminal():
    text = shown(terminal=True)
    assert "Horovod [x]" in text
    assert "42%" in text
    assert "ring.cc" in text


def test_elsewhere_lines_every_now_and_then(monkeypatch):
    assert shown(terminal=False) == ""
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    assert shown(terminal=False) == "Horovod [x]: 42% after 0 s, ring.cc\n"
