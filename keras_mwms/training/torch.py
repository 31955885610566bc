"""The training hooks on PyTorch."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.training import losses
from keras_mwms.training import metrics
from keras_mwms.training import state
from keras_mwms.training import step as steps
from keras_mwms.training.backend import DENSE
from keras_mwms.training.backend import NONE
from keras_mwms.training.backend import SPARSE
from keras_mwms.training.backend import Backend
from keras_mwms.training.backend import Backward
from keras_mwms.training.backend import Forward
from keras_mwms.training.backend import check_reduced
from keras_mwms.training.state import SEED_STRIDE


class TorchBackend(Backend):
    """PyTorch runs eagerly: every step may differ from the last."""

    none_varies = True

    def __init__(self) -> None:
        self._known_to_reduce: set[int] = set()

    def kind(self, grad: Any) -> int:
        """`NONE`, `SPARSE` or `DENSE`."""
        if grad is None:
            return NONE
        return SPARSE if grad.is_sparse else DENSE

    def as_kind(self, grad: Any, variable: Any, kind: int) -> Any:
        """Turns a gradient into a dense one, unless all have none."""
        if kind == NONE:
            return None
        if grad is None:
            return torch.zeros_like(_native(variable))
        return grad.to_dense() if grad.is_sparse else grad

    def scale(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        share: Any,
        may_be_empty: bool,
    ) -> list[Any]:
        """Multiplies gradients by the share.

        Not in place: gradients may share memory, as those of the biases of
        two parallel branches do for a single row.
        """
        share = float(share)
        there = [g for g in grads if g is not None]
        with torch.no_grad():
            if share == 0.0:
                # Not a product: a filler row's gradient may be nan.
                scaled = [torch.zeros_like(g) for g in there]
            else:
                scaled = list(torch._foreach_mul(there, share)) if there else []
        values = iter(scaled)
        return [None if g is None else next(values) for g in grads]

    def differentiable(
        self,
        step: Any,
        name: str,
        forward: Forward,
        backward: Backward,
        tensor: Any,
    ) -> Any:
        """Calls a function that has a gradient of its own."""
        return _Differentiable.apply(forward, backward, tensor)

    def paths_of(self, model: Any) -> dict[int, str]:
        """Paths of the parameters of PyTorch modules inside of the model.

        Keras numbers them in the order of their creation (keras issue
        19885); the module knows them by the attributes they stand in.
        """
        paths: dict[int, str] = {}
        for path, tensor in _named_tensors(model):
            if _keras.TORCH_VARIABLES not in path:
                paths.setdefault(id(tensor), path)
        return {
            id(v): paths[id(v.value)]
            for v in model.variables
            if id(v.value) in paths
        }

    def spread_random_state(self, rank: int) -> None:
        """Layers without a seed draw from PyTorch's global generator."""
        drawn = int(torch.randint(2**31, ()))
        torch.manual_seed(drawn + rank * SEED_STRIDE)

    def train_step(
        self, model: Any, ring: Collectives, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Makes a `train_step` that knows its share."""

        def train_step(data: Any) -> Any:
            data, step = steps.opened(ring, data)
            known = id(original) in self._known_to_reduce
            before = None if known else _versions(model)
            with losses.entered(step), _no_trace_of_fillers(model, step):
                logs = metrics.of_all_rows(step, model, original(data))
            if before is not None:
                check_reduced(step, before != _versions(model))
                if step.reductions:
                    self._known_to_reduce.add(id(original))
            return logs

        return train_step

    def test_step(
        self, model: Any, ring: Collectives, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Makes a `test_step` that knows its share."""

        def test_step(data: Any) -> Any:
            data, step = steps.opened(ring, data)
            with losses.entered(step), _no_trace_of_fillers(model, step):
                return metrics.of_all_rows(step, model, original(data))

        return test_step


def _native(variable: Any) -> Any:
    """The tensor of a variable, which may be one itself."""
    return getattr(variable, "value", variable)


class _Differentiable(torch.autograd.Function):  # type: ignore[misc]
    """See `Backend.differentiable`."""

    @staticmethod
    def forward(
        ctx: Any, forward: Forward, backward: Backward, tensor: Any
    ) -> Any:
        result, _ = forward(tensor, None)
        ctx.of_result = backward
        ctx.save_for_backward(tensor, result)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Any) -> Any:
        return None, None, ctx.of_result(*ctx.saved_tensors, gradient)


def _named_tensors(model: Any) -> Iterator[tuple[str, Any]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


@contextmanager
def _no_trace_of_fillers(model: Any, step: steps.Step) -> Iterator[None]:
    """Puts back what depends on rows after a step without rows."""
    if not step.may_be_empty or float(step.share) > 0:
        yield
        return
    variables = state.that_depend_on_rows(model)
    before = [v.value.detach().clone() for v in variables]
    yield
    with torch.no_grad():
        for variable, value in zip(variables, before, strict=True):
            variable.value.copy_(value)


def _versions(model: Any) -> list[int]:
    """Counters that PyTorch raises whenever a tensor is changed in place."""
    return [v.value._version for v in model.trainable_variables]


BACKEND = TorchBackend()
