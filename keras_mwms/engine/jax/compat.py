"""Everything here that depends on JAX's moving internals."""

import ctypes
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import jax

_PLATFORM = "cpu"


def register_target(name: str, function: Any) -> None:
    """Makes a handler of a loaded library known to XLA on the CPU.

    Args:
        name: the name by which computations call it.
        function: the handler, a function of a `ctypes.CDLL`.
    """
    address = ctypes.cast(function, ctypes.c_void_p)
    jax.ffi.register_ffi_target(
        name, jax.ffi.pycapsule(address.value), platform=_PLATFORM
    )


def call_target(
    name: str,
    results: Sequence[jax.ShapeDtypeStruct],
    arrays: Sequence[jax.Array],
    attributes: Mapping[str, Any],
) -> list[jax.Array]:
    """Calls a registered handler, eagerly or in a computation.

    The call counts as a side effect: it is neither dropped when its result is
    not used, nor merged with an equal one. A replica that left out a call
    would leave the others waiting.

    Args:
        name: the name of the handler.
        results: shapes and dtypes of the results.
        arrays: the arguments.
        attributes: constants that the handler reads, strings or NumPy scalars.

    Returns:
        The results.
    """
    call = jax.ffi.ffi_call(name, list(results), has_side_effect=True)
    return list(call(*arrays, **attributes))


def allow_recomputation() -> None:
    """Lets handlers with side effects stand inside `jax.checkpoint`.

    They are called again there in the backward pass, by all replicas alike.
    """
    from jax._src import effects
    from jax._src import ffi

    effects.remat_allowed_effects.add_type(ffi.FfiEffect)


def require_cpu() -> None:
    """Checks that computations run where the binding is registered.

    Raises:
        NotImplementedError: JAX's default backend is not the CPU.
    """
    backend = jax.default_backend()
    if backend != _PLATFORM:
        raise NotImplementedError(
            "Collectives between JAX processes are supported on the CPU only; "
            "copying every gradient through the host behind your back would "
            f"be slow. Received: jax.default_backend()={backend!r}. Set "
            "JAX_PLATFORMS=cpu before JAX starts, or use the TensorFlow or "
            "PyTorch backend of Keras for accelerators."
        )


def is_traced(array: Any) -> bool:
    """Whether `array` stands for a value that is not known yet."""
    return isinstance(array, jax.core.Tracer)


def have_one_trace(array: Any, other: Any) -> bool:
    """Whether both are known, or stand for values of one and the same trace.

    False if one is inside of a `jax.checkpoint`, a `jit` of its own or a
    derivative, and the other is not.
    """
    return getattr(array, "_trace", None) is getattr(other, "_trace", None)


def has_no_gradient(cotangent: Any) -> bool:
    """Whether `cotangent` belongs to a value that is not differentiable."""
    return bool(cotangent.dtype == jax.dtypes.float0)
