"""Fresh clusters: what comes back from processes that start and end."""

import json
import socket
import sys
from pathlib import Path

import psutil
import pytest

from tests.pool import FreshCluster
from tests.pool import PerRank
from tests.pool.environment import base_environment
from tests.pool.environment import horovodrun
from tests.pool.processes import LAUNCHER_GRACE
from tests.pool.processes import abort_tree
from tests.pool.processes import kill_tree
from tests.pool.processes import spawn

HOROVODRUN = Path(sys.executable).with_name("horovodrun")
needs_horovodrun = pytest.mark.skipif(
    not HOROVODRUN.exists(), reason="horovodrun is not installed"
)

REPORT = """
import json, os, sys
task = json.loads(os.environ["TF_CONFIG"])["task"]
print(json.dumps([task["index"], os.environ["NAME"], sys.argv[1]]))
print("bad luck", file=sys.stderr)
sys.exit(task["index"] * 3)
"""

REPORT_AND_HANG = """
import socket, threading
def hang_here():
    socket.create_connection(("127.0.0.1", {}))
    threading.Event().wait()
hang_here()
"""

HANG_ON_1 = """
import os, subprocess, threading
if '"index": 1' in os.environ["TF_CONFIG"]:
    child = subprocess.Popen(["sleep", "100"])
    print(os.getpid(), child.pid, flush=True)
    def hang_here():
        threading.Event().wait()
    hang_here()
"""


def gone(pids: list[int]) -> bool:
    found = [p for p in psutil.process_iter() if p.pid in pids]
    _, alive = psutil.wait_procs(found, timeout=5)
    return not alive


def test_each_rank_has_its_own_outcome(fresh_cluster: FreshCluster) -> None:
    ended = fresh_cluster(
        2,
        [sys.executable, "-c", REPORT, PerRank(["x", "y"])],
        env={"NAME": PerRank(["left", "right"])},
    )
    assert [e.returncode for e in ended] == [0, 3]
    assert [json.loads(e.stdout) for e in ended] == [
        [0, "left", "x"],
        [1, "right", "y"],
    ]
    assert [e.stderr for e in ended] == ["bad luck\n"] * 2
    assert not any(e.timed_out for e in ended)


def test_a_rank_can_be_left_out(fresh_cluster: FreshCluster) -> None:
    show = "import os; print(os.environ['TF_CONFIG'])"
    (ended,) = fresh_cluster(3, [sys.executable, "-c", show], ranks=[2])
    config = json.loads(ended.stdout)
    assert config["task"]["index"] == 2
    assert len(config["cluster"]["worker"]) == 3


def test_one_that_hangs_is_killed_with_its_children(
    fresh_cluster: FreshCluster,
) -> None:
    argv = [sys.executable, "-c", HANG_ON_1]
    good, hung = fresh_cluster(2, argv, timeout=1)
    assert (good.returncode, good.timed_out) == (0, False)
    assert hung.timed_out
    assert hung.returncode < 0
    assert "in hang_here" in hung.stderr
    assert gone([int(pid) for pid in hung.stdout.split()])


@needs_horovodrun
def test_horovodrun_fails_with_its_workers(
    fresh_cluster: FreshCluster,
) -> None:
    script = "import os; exit(int(os.environ['HOROVOD_RANK']))"
    argv = [sys.executable, "-c", script]
    (ended,) = fresh_cluster(2, argv, start="horovodrun", timeout=30)
    assert ended.returncode != 0
    assert not ended.timed_out


@needs_horovodrun
def test_hanging_workers_of_horovodrun_show_their_stacks(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        script = REPORT_AND_HANG.format(server.getsockname()[1])
        argv = horovodrun(2, [sys.executable, "-c", script])
        out, err = tmp_path / "out", tmp_path / "err"
        launcher = spawn(argv, base_environment(), out, err)
        try:
            for _ in range(2):
                server.accept()[0].close()
            abort_tree(launcher, "HOROVOD_RANK")
        finally:
            kill_tree(launcher, LAUNCHER_GRACE)
    assert err.read_text().count("in hang_here") == 2
    assert launcher.tree() == []


def test_what_lost_its_parent_is_killed(tmp_path: Path) -> None:
    # As horovodrun leaves a stopped shell when its helper dies early.
    script = (
        "import os, subprocess;"
        "child = subprocess.Popen(['sleep', '100'], start_new_session=True);"
        "os.kill(child.pid, 19); print(child.pid)"
    )
    out = tmp_path / "out"
    child = spawn([sys.executable, "-c", script], base_environment(), out)
    child.wait(30)
    assert [p.pid for p in child.tree()] == [int(out.read_text())]
    kill_tree(child)
    assert child.tree() == []


@needs_horovodrun
def test_horovodrun_has_one_command_for_all(
    fresh_cluster: FreshCluster,
) -> None:
    with pytest.raises(ValueError, match="one command"):
        fresh_cluster(2, ["true"], start="horovodrun", ranks=[0])
