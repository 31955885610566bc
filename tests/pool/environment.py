"""Environments and command lines of the processes that tests start."""

import contextlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

Start = Literal["tf_config", "horovodrun"]

ROOT = Path(__file__).resolve().parents[2]

# What says "you are a replica" must not leak in from outside.
_LAUNCHERS = ("HOROVOD_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "TF_CONFIG")
# The ranks must not share these; `rank_environment` sets them.
_RANKED = ("PYTHONHASHSEED", "KERAS_HOME")


def base_environment() -> dict[str, str]:
    """This session's environment, made fit for the replicas of a test."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_LAUNCHERS) and name not in _RANKED
    }
    return inherited | {
        # Pools that wait for their next test talk to each other all the same,
        # every millisecond by default: ten of them keep a core busy.
        "HOROVOD_CYCLE_TIME": "10",
        "KERAS_MWMS_START_TIMEOUT": "60",
        "KERAS_MWMS_TIMEOUT": "60",
        "MKL_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # oneDNN picks another order of summation for another batch size.
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TF_NUM_INTEROP_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        # What is compiled runs a few times only.
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false "
        "--xla_backend_optimization_level=0",
    }


def rank_environment(rank: int, folder: Path) -> dict[str, str]:
    """What differs between ranks whatever way they are started.

    Sets and dicts keyed by hash are ordered differently on every rank, as
    they are between machines (keras issue 19885). Keras writes to its home.
    """
    return {
        "KERAS_HOME": str(folder / f"keras-{rank}"),
        "PYTHONHASHSEED": str(rank + 1),
    }


def tf_config(addresses: Sequence[str], rank: int) -> dict[str, str]:
    """`TF_CONFIG` of one of several workers; nothing for one alone."""
    if len(addresses) == 1:
        return {}
    cluster = {"worker": list(addresses)}
    task = {"type": "worker", "index": rank}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}


def free_addresses(count: int) -> list[str]:
    """Addresses on this host whose ports were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(count)
        ]
        return [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]


def horovodrun(size: int, argv: Sequence[str]) -> list[str]:
    """The command that starts `argv` with this environment's horovodrun."""
    program = Path(sys.executable).with_name("horovodrun")
    if not program.exists():
        raise FileNotFoundError(
            f"Horovod is not installed beside {sys.executable}: {program} "
            "does not exist."
        )
    options = ["-np", str(size), "-H", f"localhost:{size}", "--gloo"]
    # The cache of earlier checks would lie in the user's home.
    return [str(program), *options, "--disable-cache", *argv]
