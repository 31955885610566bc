"""Starts a benchmark's own workers, each on one core with one thread."""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

WORKER = "--worker"
_ROOT = pathlib.Path(__file__).resolve().parents[1]
# Read by the frameworks when they are imported.
ONE_THREAD = {
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}


def run(size: int, **options: Any) -> list[Any]:
    """Runs this script as so many workers.

    Args:
        size: number of workers; worker i runs on the i-th core.
        **options: what JSON can hold, for the function given to `serve`.

    Returns:
        What the function returned, one value a worker.
    """
    cores = sorted(os.sched_getaffinity(0))
    if size > len(cores):
        raise SystemExit(
            f"Each worker needs a core of its own. Received: {size} workers "
            f"on {len(cores)} cores"
        )
    addresses = _free_addresses(size)
    processes = []
    for rank in range(size):
        environment = os.environ | ONE_THREAD
        environment["PYTHONPATH"] = str(_ROOT)
        if size > 1:
            environment["TF_CONFIG"] = json.dumps(
                {
                    "cluster": {"worker": addresses},
                    "task": {"type": "worker", "index": rank},
                }
            )
        processes.append(
            subprocess.Popen(
                [sys.executable, sys.argv[0], WORKER, json.dumps(options)],
                env=environment | {"BENCHMARK_CORE": str(cores[rank])},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("A worker failed, see its error above.")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def serve(main: Callable[..., Any], work: Callable[..., Any]) -> None:
    """Runs the command, or in a worker its work.

    Args:
        main: what the command line does; it calls `run`.
        work: what each worker does with the options that `run` got.
    """
    if WORKER not in sys.argv:
        main()
        return
    os.sched_setaffinity(0, {int(os.environ.pop("BENCHMARK_CORE"))})
    # Keras says of each pass of a generator that its data ran out.
    warnings.simplefilter("ignore")
    result = work(**json.loads(sys.argv[-1]))
    print(json.dumps(result), flush=True)


def _free_addresses(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(count)
        ]
        return [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
