"""Checks of results: every dtype, shape, root and number of rows."""

import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from keras_mwms.engine.jax import ops
from tests.engine.jax.registry import CHECKS
from tests.engine.jax.registry import SIZE
from tests.engine.jax.registry import check
from tests.engine.jax.values import joined
from tests.engine.jax.values import mine
from tests.engine.jax.values import same
from tests.engine.jax.values import summed

SUMMED = [
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "bool",
]
MOVED = [*SUMMED, "uint32", "uint64", "complex64"]


def _wrap(
    jitted: bool, function: Callable[..., object]
) -> Callable[..., object]:
    return jax.jit(function) if jitted else function


def sums_dtype(rank: int, dtype: str, jitted: bool) -> None:
    reduce = _wrap(jitted, lambda x: ops.allreduce([x], ["sum"])[0])
    same(reduce(jnp.asarray(mine(dtype, rank))), summed(dtype, SIZE))


def broadcasts_dtype(rank: int, dtype: str, jitted: bool) -> None:
    send = _wrap(jitted, lambda x: ops.broadcast([x], ["one"], 1)[0])
    same(send(jnp.asarray(mine(dtype, rank))), mine(dtype, 1))


def gathers_dtype(rank: int, dtype: str, jitted: bool) -> None:
    gather = _wrap(jitted, lambda x: ops.allgather(x, "all"))
    same(gather(jnp.asarray(mine(dtype, rank))), joined(dtype, SIZE))


for _op, _dtypes in (
    (sums_dtype, SUMMED),
    (broadcasts_dtype, MOVED),
    (gathers_dtype, MOVED),
):
    for _dtype, _jitted in itertools.product(_dtypes, (False, True)):
        _mode = "jit" if _jitted else "eager"
        CHECKS[f"{_op.__name__}-{_dtype}-{_mode}"] = functools.partial(
            _op, dtype=_dtype, jitted=_jitted
        )


def any_shape(rank: int, shape: tuple[int, ...], jitted: bool) -> None:
    array = jnp.asarray(mine("float32", rank, shape))
    reduce = _wrap(jitted, lambda x: ops.allreduce([x], ["sum"])[0])
    send = _wrap(jitted, lambda x: ops.broadcast([x], ["one"], 1)[0])
    gather = _wrap(jitted, lambda x: ops.allgather(x, "all"))
    got = reduce(array), send(array), gather(array)
    same(got[0], summed("float32", SIZE, shape))
    same(got[1], mine("float32", 1, shape))
    same(got[2], joined("float32", SIZE, shape))


for _shape, _jitted in itertools.product(
    [(), (1,), (0,), (0, 4), (4, 0), (2, 1, 3)], (False, True)
):
    _mode = "jit" if _jitted else "eager"
    CHECKS[f"any_shape-{_shape}-{_mode}"] = functools.partial(
        any_shape, shape=_shape, jitted=_jitted
    )


@check
def a_half_is_rounded_once(rank: int) -> None:
    # 1 + 1/256 + 1/256 is a bfloat16; 1 + 1/256 alone rounds down to 1.
    # 2**100 is a bfloat16, but not a float16.
    one, large = (1.0, 2.0**100) if rank == 0 else (1 / 256, 0.0)
    (got,) = ops.allreduce([jnp.asarray([one, large], "bfloat16")], ["round"])
    wanted = np.asarray([1 + 2 / 256, 2.0**100], np.float32)
    same(got.astype(jnp.float32), wanted)


@check
def negative_and_small_float16(rank: int) -> None:
    numbers = np.asarray([-1.5, 2**-24, 6e4, -0.0], np.float16)
    scale = np.float16([1, 1, 0][rank])
    (got,) = ops.allreduce([jnp.asarray(numbers * scale)], ["half"])
    wanted = np.asarray([-3, 2**-23, np.inf, 0], np.float16)
    np.testing.assert_array_equal(np.asarray(got), wanted)


@check
def a_group_of_mixed_dtypes_up_to_64_bits(rank: int) -> None:
    dtypes = [*SUMMED, *SUMMED]
    names = [f"group/{i}" for i in range(len(dtypes))]
    arrays = [
        jnp.asarray(mine(d, rank, (i + 1,))) for i, d in enumerate(dtypes)
    ]
    for reduce in (ops.allreduce, jax.jit(ops.allreduce, static_argnums=1)):
        got = reduce(arrays, tuple(names))
        for i, dtype in enumerate(dtypes):
            same(got[i], summed(dtype, SIZE, (i + 1,)))


@check
def every_root(rank: int) -> None:
    arrays = [mine("float32", rank), mine("bfloat16", rank, ())]
    for root in range(SIZE):
        got = ops.broadcast(arrays, ["one", "two"], root_rank=root)
        same(got[0], mine("float32", root))
        same(got[1], mine("bfloat16", root, ()))


@check
def an_empty_group(rank: int) -> None:
    assert ops.allreduce([], []) == []
    assert ops.broadcast([], []) == []


@check
def numpy_arrays_and_python_numbers(rank: int) -> None:
    got = ops.allreduce([np.float32(rank), rank], ["a", "b"])
    assert [float(x) for x in got] == [3.0, 3.0]


@check
def gathers_different_numbers_of_rows(rank: int) -> None:
    for rows in ([2, 1, 3], [0, 2, 0], [0, 0, 0], [5, 5, 5], [2, 3, 4]):
        for dtype in ("float32", "bfloat16", "bool"):
            parts = [mine(dtype, r, (n, 2)) for r, n in enumerate(rows)]
            got = ops.allgather_v(jnp.asarray(parts[rank]), "ragged")
            same(got, np.concatenate(parts))
    same(ops.allgather_v(rank * 2, "scalar"), np.asarray([0, 2, 4], np.int32))
