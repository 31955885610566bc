"""Checks of what must end in an exception, on all ranks alike."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from keras_mwms.engine.jax import ops
from tests.engine.jax.registry import check
from tests.engine.jax.values import same


@check
def ragged_rows_are_refused_under_jit(rank: int) -> None:
    with pytest.raises(TypeError, match=r"eagerly only.*float32\[2\]"):
        jax.jit(lambda x: ops.allgather_v(x, "ragged"))(jnp.ones(2))


def _fails(function: Callable[[], object], reason: str) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=reason):
        jax.block_until_ready(function())


@check
def shapes_that_differ_between_ranks(rank: int) -> None:
    x = jnp.ones(2 + rank % 2)
    good = jnp.ones(4)
    for reduce in (ops.allreduce, jax.jit(ops.allreduce, static_argnums=1)):
        _fails(
            lambda r=reduce: r([good, x, good], ("good", "bad", "too")),
            "all-reduce of 'bad' failed: Mismatched ALLREDUCE",
        )
    _fails(
        lambda: ops.broadcast([x], ["bad"]),
        "broadcast of 'bad' failed: Mismatched BROADCAST",
    )
    _fails(
        lambda: ops.allgather(x, "bad"),
        "all-gather of 'bad' failed: Mismatched ALLGATHER",
    )
    _fails(lambda: ops.allgather_v(jnp.ones((2, len(x))), "bad"), "Mismatched")
    # The same names work again.
    same(ops.allreduce([good], ["bad"])[0], np.full(4, 3, np.float32))


@check
def dtypes_that_differ_between_ranks(rank: int) -> None:
    x = jnp.ones(2, "float32" if rank else "int32")
    _fails(lambda: ops.allreduce([x], ["bad"]), "Mismatched data types")


@check
def roots_that_differ_or_do_not_exist(rank: int) -> None:
    x = [jnp.ones(2)]
    _fails(lambda: ops.broadcast(x, ["bad"], root_rank=rank), "root rank")
    _fails(lambda: ops.broadcast(x, ["bad"], root_rank=3), "root rank 3")


@check
def a_name_that_is_in_flight(rank: int) -> None:
    @jax.jit
    def step(x: jax.Array, y: jax.Array) -> object:
        got = [ops.allreduce([x], ["twice"]), ops.allreduce([y], ["twice"])]
        return got, [jnp.cumsum(x * i) for i in range(10)]

    x = jnp.ones(1000)
    # Here the second is still waiting for the other ranks, or the first is.
    if rank == 0:
        _fails(lambda: step(x, x * 2), "'twice' is in flight already")
    # One of the two of rank 0 was sent; it may not be left without an answer.
    else:
        ops.allreduce([x], ["twice"])
    same(ops.allreduce([x], ["after"])[0], np.full(1000, 3, np.float32))


@check
def what_python_refuses(rank: int) -> None:
    x = jnp.ones(1)
    for names in (["a"], ["a", "a"], ["a", ""], ["a", "b\nc"]):
        with pytest.raises(ValueError, match=r"names? .*Received: names=\["):
            ops.allreduce([x, x], names)
    for dtype in ("uint32", "complex64"):
        with pytest.raises(TypeError, match=f"Received: dtype={dtype} for 'a'"):
            ops.allreduce([x.astype(dtype)], ["a"])
