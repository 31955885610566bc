"""Run by every rank of a ring: one fault, named on the command line.

A rank that sees what it should prints `as expected`.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_mwms.collectives.jax import JaxCollectives
from keras_mwms.engine.jax import host
from keras_mwms.engine.jax import library
from keras_mwms.engine.jax import ops
from keras_mwms.errors import WorkerLostError
from keras_mwms.training.failures import told_as_lost


def _meet(name: str) -> None:
    jax.block_until_ready(ops.allreduce([jnp.ones(2)], [name]))


@jax.jit
def _step(arrays: list[jax.Array]) -> list[jax.Array]:
    names = [f"pending/{i}" for i in range(len(arrays))]
    got = [
        ops.allreduce([x], [n])[0] for x, n in zip(arrays, names, strict=True)
    ]
    got += ops.broadcast(arrays, names[::-1])
    return got


@jax.jit
def _long_step(x: jax.Array) -> list[jax.Array]:
    # XLA runs what it deems cheap before it returns to Python.
    x = jax.lax.fori_loop(0, 10, lambda _, y: jnp.tanh(y @ y), x)
    return ops.allreduce([x], ["long"])


def _expect(reason: str, function: Callable[[], object]) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=reason):
        jax.block_until_ready(function())
    print("as expected", flush=True)


def _pending() -> list[jax.Array]:
    return _step([jnp.ones(1000 + i) for i in range(20)])


def killed_while_others_wait() -> None:
    _meet("start")
    if library.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    _expect("failed: ", _pending)
    # And from then on.
    _expect("Horovod has been shut down", lambda: _meet("later"))


def killed_while_others_wait_on_the_host() -> None:
    _meet("start")
    if library.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ring = JaxCollectives()
    for exchange in (
        lambda: ring.gather_values(0),
        lambda: ring.broadcast_arrays([np.zeros(3)], 1),
    ):
        with pytest.raises(WorkerLostError), told_as_lost(ring):
            exchange()
        print("as expected", flush=True)


def peer_left() -> None:
    _meet("start")
    if library.rank() == 1:
        library.shutdown()
    else:
        _expect("Horovod has been shut down", _pending)
        _expect("Horovod has been shut down", lambda: _meet("later"))


def peer_left_the_host() -> None:
    _meet("start")
    if library.rank() == 1:
        library.shutdown()
    else:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="has been shut down"):
                host.all_gather(np.zeros(1, np.uint8), "alone")
            print("as expected", flush=True)


def before_the_start_and_after_the_end() -> None:
    _meet("start")
    library.shutdown()
    assert not library.is_initialized()
    _expect("has not been initialized", _pending)
    _expect(
        "has not been initialized",
        lambda: ops.broadcast([jnp.ones(2)], ["later"]),
    )
    for call in (host.all_gather, lambda x, n: host.broadcast(x, n, 0)):
        with pytest.raises(RuntimeError, match="has not been initialized"):
            call(np.zeros(1, np.uint8), "later")


def exit_with_pending_operations() -> None:
    _meet("start")
    # Rank 1 waits here until rank 0 has begun what rank 1 never joins.
    if library.rank() == 0:
        _long_step(jnp.zeros((200, 200)))
        Path(sys.argv[2]).write_bytes(b"")
    else:
        Path(sys.argv[2]).read_bytes()


def exit_with_a_pending_host_operation() -> None:
    _meet("start")
    if library.rank() == 0:
        threading.Thread(
            target=host.all_gather,
            args=(np.zeros(1, np.uint8), "pending"),
            daemon=True,
        ).start()
        Path(sys.argv[2]).write_bytes(b"")
    else:
        Path(sys.argv[2]).read_bytes()


def main() -> None:
    library.init()
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
