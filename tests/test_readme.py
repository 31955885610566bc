"""What README.md shows runs, and names what exists."""

import configparser
import re
import shlex
import subprocess
import sys
import tomllib

import pytest

from keras_mwms import cli
from keras_mwms.cluster.tf_config import parse_tf_config
from keras_mwms.engine.settings import Settings
from tests.pool.environment import ROOT
from tests.pool.environment import base_environment

README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def commands():
    """The commands of all shell blocks, each as a list of words."""
    found = []
    for line in "".join(blocks("sh")).splitlines():
        for command in line.split(" && "):
            found.append(shlex.split(command))
    return found


def starting_with(*words):
    found = [c for c in commands() if tuple(c[: len(words)]) == words]
    assert found
    return [command[len(words) :] for command in found]


@pytest.mark.parametrize("script", blocks("python"))
def test_python_runs_alone(script, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=base_environment() | {"KERAS_HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    # What the comments around it promise.
    if "model.save" in script:
        assert (tmp_path / "model.keras").exists()
    if "print(" in script:
        in_sync = "check_in_sync(" in script
        assert done.stdout == ("" if in_sync else "trained on 1 worker(s)\n")


def test_every_program_is_known():
    programs = {command[0] for command in commands()}
    assert programs <= {
        "export",
        "horovodrun",
        "keras-mwms",
        "pip",
        "python",
        "tox",
    }


def test_tox_environments_exist():
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini")
    for arguments in starting_with("tox", "run"):
        assert not arguments or (
            arguments[0] == "-e" and f"testenv:{arguments[1]}" in tox
        )


def test_subcommands_exist():
    known = {command.name for command in cli.app.registered_commands}
    assert {command[0] for command in starting_with("keras-mwms")} <= known


def test_extras_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for (what,) in starting_with("pip", "install"):
        (extra,) = re.fullmatch(r"\.\[(\w+)\]", what).groups()
        assert extra in project["optional-dependencies"]


def test_scripts_and_links_exist():
    scripts = {w for words in commands() for w in words if w.endswith(".py")}
    links = set(re.findall(r"\]\((?!https?:|#)([^)]+)\)", README))
    assert scripts
    assert links
    for path in scripts | links:
        assert (ROOT / path).is_file(), path


def test_tf_configs_describe_one_cluster():
    texts = [
        word.removeprefix("TF_CONFIG=")
        for (word,) in starting_with("export")
        if word.startswith("TF_CONFIG=")
    ]
    clusters = [parse_tf_config(text) for text in texts]
    assert [(c.rank, c.size) for c in clusters] == [(0, 2), (1, 2)]
    assert clusters[0].members == clusters[1].members


def test_horovodrun_starts_as_many_as_there_are_slots():
    for arguments in starting_with("horovodrun", "-np"):
        count, option, hosts, gloo, python = arguments[:5]
        slots = [int(host.split(":")[1]) for host in hosts.split(",")]
        assert (option, gloo, python) == ("-H", "--gloo", "python")
        assert sum(slots) == int(count)


def test_variables_exist():
    sources = "".join(
        file.read_text() for file in (ROOT / "keras_mwms").rglob("*.py")
    )
    variables = set(re.findall(r"KERAS_MWMS_[A-Z_]+|HOROVOD_[A-Z_]+", README))
    for variable in variables - {"HOROVOD_"}:
        assert f'"{variable}"' in sources, variable


def test_defaults_are_those_of_the_code():
    settings = Settings.from_environment({})
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (\d+) \|$", README, re.M))
    assert rows == {
        "KERAS_MWMS_START_TIMEOUT": f"{settings.start_timeout:.0f}",
        "KERAS_MWMS_TIMEOUT": f"{settings.timeout:.0f}",
    }
