"""Collectives on JAX arrays, eagerly and inside `jit`.

Horovod pairs operations by name: all replicas give an operation the same name,
and no name twice at a time. A call inside `jit` is compiled once with its
names, so the names of a function are those of its first trace.

Inside a computation an operation occupies no thread while it waits: XLA goes
on with all that does not depend on it. Yet XLA runs a computation of few or
tiny steps one step after another, may let a step wait because it wants to use
the memory of another one, and often runs an eager call to its end. So all
replicas must make the same calls in the same order; only the pace may differ.
The programs of one thread run in their order, those of several threads do not.

Failures arrive where JAX reports those of asynchronous computations: at the
call, or where a result is first read (`jax.block_until_ready`), as
`jax.errors.JaxRuntimeError` with Horovod's reason in its text.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from keras_mwms.engine.jax import compat
from keras_mwms.engine.jax import library

# What is added in another type: bfloat16 is unknown to Horovod 0.28, and the
# sum of booleans is defined by none of its transports.
_SUMMED_AS = {"bfloat16": jnp.float32, "bool": jnp.int32}
_SUMMED = frozenset(
    f"{kind}{bits}"
    for kind, widths in (
        ("int", (8, 16, 32, 64)),
        ("uint", (8, 16)),
        ("float", (16, 32, 64)),
    )
    for bits in widths
)
_MOVED = _SUMMED | {"bool", "bfloat16", "uint32", "uint64", "complex64"}


def allreduce(
    arrays: Sequence[jax.Array], names: Sequence[str]
) -> list[jax.Array]:
    """Sums each array over all replicas.

    The arrays are handed to Horovod as one group: none is reduced before all
    are there. Their gradient is the sum of the cotangents over all replicas,
    reduced under the same names with `/grad` at the end.

    Args:
        arrays: arrays of any shapes, each of the same shape and dtype on all
            replicas: floating, signed integer, uint8, uint16 or bool.
        names: one name an array.

    Returns:
        The sums, like `arrays`. bfloat16 is summed in float32 and rounded
        once; of booleans the result says whether any replica has it true.

    Raises:
        TypeError: a dtype is not supported.
        ValueError: the names do not fit.
        HorovodMissingError: the library is absent.
        NotImplementedError: JAX does not run on the CPU.

    Example:
        >>> allreduce([jnp.ones(3)], ["ones"])  # on two replicas
        [Array([2., 2., 2.], dtype=float32)]
    """
    checked = _check(arrays, names, _SUMMED | _SUMMED_AS.keys(), "all-reduce")
    if not checked:
        return []
    return list(_allreduce(tuple(names), checked))


def broadcast(
    arrays: Sequence[jax.Array], names: Sequence[str], root_rank: int = 0
) -> list[jax.Array]:
    """Gives all replicas the arrays of one.

    Args:
        arrays: arrays of any shapes, each of the same shape and dtype on all
            replicas: floating, integer, bool or complex64.
        names: one name an array.
        root_rank: the replica whose arrays all receive.

    Returns:
        The arrays of `root_rank`, bit for bit.

    Raises:
        TypeError: a dtype is not supported.
        ValueError: the names do not fit.
        HorovodMissingError: the library is absent.
        NotImplementedError: JAX does not run on the CPU.

    Example:
        >>> broadcast([jnp.asarray(rank())], ["rank"], root_rank=1)
        [Array(1, dtype=int32)]
    """
    checked = _check(arrays, names, _MOVED, "broadcast")
    if not checked:
        return []
    return list(_broadcast(tuple(names), root_rank, checked))


def allgather(array: jax.Array, name: str) -> jax.Array:
    """Joins the arrays of all replicas on their first axis, in rank order.

    Shapes are static under `jit`, so here they must be equal.

    Args:
        array: an array of shape `(rows, ...)`, of the same shape and dtype on
            all replicas; a scalar counts as one row.
        name: the name of the operation.

    Returns:
        An array of shape `(world size * rows, ...)`.

    Raises:
        TypeError: the dtype is not supported.
        ValueError: the name does not fit.
        RuntimeError: Horovod is not initialized.
        HorovodMissingError: the library is absent.
        NotImplementedError: JAX does not run on the CPU.

    Example:
        >>> allgather(jnp.asarray([rank(), 7]), "pair")  # on two replicas
        Array([0, 7, 1, 7], dtype=int32)
    """
    (array,) = _check([array], [name], _MOVED, "all-gather")
    # One row with all of the array in it: of rows Horovod checks the shapes.
    stacked = _allgather(name, library.size(), array[jnp.newaxis])
    return stacked if array.ndim == 0 else _join_rows(stacked)


def allgather_v(array: jax.Array, name: str) -> jax.Array:
    """Joins arrays with different numbers of rows, in rank order.

    Eager only. First the numbers of rows are gathered, under `name` with
    `/rows` at the end. Each new total number of rows is compiled once.

    Args:
        array: an array of shape `(rows, ...)`, where only the number of rows
            differs between replicas, and may be 0; a scalar counts as one row.
        name: the name of the operation.

    Returns:
        An array of shape `(sum of rows, ...)`.

    Raises:
        TypeError: the dtype is not supported, or the call is inside `jit`.
        ValueError: the name does not fit.
        RuntimeError: Horovod is not initialized.
        HorovodMissingError: the library is absent.
        NotImplementedError: JAX does not run on the CPU.

    Example:
        >>> allgather_v(jnp.full(rank() + 1, rank()), "ragged")
        Array([0, 1, 1], dtype=int32)
    """
    if compat.is_traced(array):
        raise TypeError(
            "allgather_v works eagerly only: under jit shapes are static. "
            f"Received: {array}. Use allgather with equal shapes there."
        )
    (array,) = _check([array], [name], _MOVED, "all-gather")
    rows = jnp.atleast_1d(array)
    counts = allgather(jnp.asarray(len(rows), jnp.int32), f"{name}/rows")
    total = int(np.sum(np.asarray(counts), dtype=np.int64))
    return _allgather(name, total, rows)


def _check(
    arrays: Sequence[jax.Array],
    names: Sequence[str],
    dtypes: frozenset[str],
    operation: str,
) -> tuple[jax.Array, ...]:
    """Checks a call, loads the library, and makes arrays of the values."""
    library.load()
    if len(names) != len(arrays) or len(set(names)) != len(names):
        raise ValueError(
            f"The {operation} needs a name of its own for each array. "
            f"Received: names={list(names)} for {len(arrays)} arrays."
        )
    for name in names:
        if not name or "\n" in name:
            raise ValueError(
                f"The {operation} needs names of one line, not empty. "
                f"Received: names={list(names)}."
            )
    checked = tuple(jnp.asarray(array) for array in arrays)
    for name, array in zip(names, checked, strict=True):
        if array.dtype.name not in dtypes:
            raise TypeError(
                f"The {operation} does not support this dtype. "
                f"Received: dtype={array.dtype.name} for {name!r}. "
                f"Convert it to one of: {', '.join(sorted(dtypes))}."
            )
    return checked


# The `jit`s below make an eager call one computation. Inside another `jit`
# they leave no trace.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
@functools.partial(jax.jit, static_argnums=0, inline=True)
def _allreduce(
    names: tuple[str, ...], arrays: tuple[jax.Array, ...]
) -> tuple[jax.Array, ...]:
    wire = [
        array.astype(_SUMMED_AS.get(array.dtype.name, array.dtype))
        for array in arrays
    ]
    sums = compat.call_target(
        library.ALLREDUCE,
        [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in wire],
        wire,
        {"names": "\n".join(names)},
    )
    return tuple(
        total.astype(array.dtype)
        for total, array in zip(sums, arrays, strict=True)
    )


def _allreduce_forward(
    names: tuple[str, ...], arrays: tuple[jax.Array, ...]
) -> tuple[tuple[jax.Array, ...], None]:
    return _allreduce(names, arrays), None


def _allreduce_backward(
    names: tuple[str, ...], _: None, cotangents: tuple[jax.Array, ...]
) -> tuple[tuple[jax.Array, ...]]:
    """The sum's transpose is the sum, of the cotangents of all replicas."""
    reduced = list(cotangents)
    indices = [
        index
        for index, cotangent in enumerate(cotangents)
        if not compat.has_no_gradient(cotangent)
    ]
    sums = allreduce(
        [cotangents[index] for index in indices],
        [f"{names[index]}/grad" for index in indices],
    )
    for index, total in zip(indices, sums, strict=True):
        reduced[index] = total
    return (tuple(reduced),)


_allreduce.defvjp(_allreduce_forward, _allreduce_backward)


@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)
def _broadcast(
    names: tuple[str, ...], root_rank: int, arrays: tuple[jax.Array, ...]
) -> tuple[jax.Array, ...]:
    received = compat.call_target(
        library.BROADCAST,
        [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays],
        arrays,
        {"names": "\n".join(names), "root_rank": np.int32(root_rank)},
    )
    return tuple(received)


@functools.partial(jax.jit, static_argnums=(0, 1), inline=True)
def _allgather(name: str, total: int, rows: jax.Array) -> jax.Array:
    """Gathers rows whose total number over all replicas is known."""
    result = jax.ShapeDtypeStruct((total, *rows.shape[1:]), rows.dtype)
    (gathered,) = compat.call_target(
        library.ALLGATHER, [result], [rows], {"name": name}
    )
    return gathered


def _join_rows(stacked: jax.Array) -> jax.Array:
    size, rows, *rest = stacked.shape
    return stacked.reshape(size * rows, *rest)
