"""Run by every rank of a ring: one fault, named on the command line.

A rank that sees what it should prints `as expected`.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from keras_mwms.engine.jax import library
from keras_mwms.engine.jax import ops


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


def peer_left() -> None:
    _meet("start")
    if library.rank() == 1:
        library.shutdown()
    else:
        _expect("Horovod has been shut down", _pending)
        _expect("Horovod has been shut down", lambda: _meet("later"))


def before_the_start_and_after_the_end() -> None:
    _meet("start")
    library.shutdown()
    assert not library.is_initialized()
    _expect("has not been initialized", _pending)
    _expect(
        "has not been initialized",
        lambda: ops.broadcast([jnp.ones(2)], ["later"]),
    )


def exit_with_pending_operations() -> None:
    _meet("start")
    # Rank 1 waits here until rank 0 has begun what rank 1 never joins.
    if library.rank() == 0:
        _long_step(jnp.zeros((200, 200)))
        Path(sys.argv[2]).write_bytes(b"")
    else:
        Path(sys.argv[2]).read_bytes()


def main() -> None:
    library.init()
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
