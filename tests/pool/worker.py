"""A worker of a pool: runs the functions that the session sends.

Started as `python -m tests.pool.worker` by `tests.pool.crew`, directly or by
`horovodrun`. It imports no framework and does nothing by itself.
"""

import faulthandler
import gc
import os
import pickle
import queue
import sys
import threading
import traceback
import types
import warnings
from multiprocessing.connection import Client
from multiprocessing.connection import Connection
from pathlib import Path

import cloudpickle

from tests.pool.environment import rank_environment
from tests.pool.messages import AUTHKEY
from tests.pool.messages import END
from tests.pool.messages import FOLDER
from tests.pool.messages import RANK
from tests.pool.messages import SOCKET
from tests.pool.messages import Answer
from tests.pool.messages import Failure
from tests.pool.messages import Hello
from tests.pool.messages import log_path
from tests.pool.messages import stacks_path

ABANDONED = 3  # exit status of a worker whose session is gone


def become_rank(rank: int, folder: Path) -> None:
    """Starts this process again as that rank, as if without a launcher.

    A launcher gives all ranks one environment, and one terminal. The hash seed
    only counts at the start of Python.
    """
    log = os.open(
        log_path(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND
    )
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.setpgid(0, 0)
    os.environ |= rank_environment(rank, folder) | {RANK: str(rank)}
    os.execv(sys.executable, [sys.executable, "-m", "tests.pool.worker"])


def read(connection: Connection, inbox: "queue.SimpleQueue[bytes]") -> None:
    """Hands on what the session sends; ends the process with the session."""
    payload = b""
    while payload != END:
        try:
            payload = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(ABANDONED)
        inbox.put(payload)


def call(payload: bytes) -> Answer:
    """Calls the pickled function, and puts the outcome in words or bytes."""
    try:
        # Also forgets which warnings were already shown.
        with warnings.catch_warnings():
            function, args, kwargs = pickle.loads(payload)
            return Answer(cloudpickle.dumps(function(*args, **kwargs)))
    except BaseException as error:  # noqa: BLE001  it is raised in the test
        text = "".join(traceback.format_exception(error))
        return Answer(failure=Failure(type(error).__name__, str(error), text))


def clean_up() -> None:
    """Drops what the last function left in memory."""
    keras: types.ModuleType | None = sys.modules.get("keras")
    if keras is not None:
        keras.utils.clear_session()
    gc.collect()
    # What is left (the frameworks) stays: the next round need not look at it.
    gc.freeze()


def serve(connection: Connection) -> None:
    """Answers calls until the session says that it is the end."""
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(
        target=read, args=(connection, inbox), name="pool-read", daemon=True
    ).start()
    while (payload := inbox.get()) != END:
        answer = call(payload)
        clean_up()
        connection.send_bytes(pickle.dumps(answer))


def main() -> None:
    """Joins the pool that the environment names."""
    folder = Path(os.environ[FOLDER])
    if RANK not in os.environ:
        become_rank(int(os.environ["HOROVOD_RANK"]), folder)
    rank = int(os.environ[RANK])
    # Open as long as the process lives: it may also hang while it ends.
    stacks = os.open(stacks_path(folder, rank), os.O_WRONLY | os.O_CREAT)
    faulthandler.enable(stacks, all_threads=True)
    authkey = (folder / AUTHKEY).read_bytes()
    connection = Client(str(folder / SOCKET), "AF_UNIX", authkey)
    connection.send_bytes(pickle.dumps(Hello(rank, os.getpid())))
    serve(connection)


if __name__ == "__main__":
    main()
