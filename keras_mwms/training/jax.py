"""The training hooks on JAX."""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.training import losses
from keras_mwms.training import metrics
from keras_mwms.training import state
from keras_mwms.training import step as steps
from keras_mwms.training.backend import DENSE
from keras_mwms.training.backend import NONE
from keras_mwms.training.backend import Backend
from keras_mwms.training.backend import Backward
from keras_mwms.training.backend import Forward
from keras_mwms.training.backend import Reduce
from keras_mwms.training.backend import check_reduced


class JaxBackend(Backend):
    """JAX traces a pure function from state to state."""

    never_none = True

    def kind(self, grad: Any) -> int:
        """`NONE` or `DENSE`."""
        return NONE if grad is None else DENSE

    def as_kind(self, grad: Any, variable: Any, kind: int) -> Any:
        """Returns the gradient: `jax.grad` has zeros where nothing flows."""
        return grad

    def scale(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        share: Any,
        may_be_empty: bool,
    ) -> list[Any]:
        """Multiplies gradients by the share."""

        def scaled(grad: Any) -> Any:
            if grad is None:
                return None
            if may_be_empty:
                grad = jnp.where(share > 0, grad, jnp.zeros_like(grad))
            return grad * jnp.asarray(share, grad.dtype)

        return [scaled(g) for g in grads]

    def on_update(
        self, optimizer: Any, grads: list[Any], reduce: Reduce
    ) -> list[Any]:
        """Reduces in update steps: Keras's JAX optimizer asks in all."""
        every = optimizer.gradient_accumulation_steps
        is_update = (_keras.micro_steps_of(optimizer) + 1) % every == 0
        reduced: list[Any] = jax.lax.cond(is_update, reduce, list, grads)
        return reduced

    def limit_steps_ahead(self, model: Any) -> None:
        """Waits for the step before the last one.

        JAX would queue many steps (32 on the CPU), and keep the batch of each.
        """
        for kind in ("train", "test", "predict"):
            name = f"make_{kind}_function"
            setattr(model, name, _limited(model, kind, getattr(model, name)))

    def sync_state(self, model: Any) -> None:
        """Puts the state of the last step into the variables."""
        model.jax_state_sync()

    def differentiable(
        self,
        step: Any,
        name: str,
        forward: Forward,
        backward: Backward,
        tensor: Any,
    ) -> Any:
        """Calls a function that has a gradient of its own.

        JAX traces forward and backward pass one after the other: the link
        that the step has then keeps all operations of both in one row.
        """

        @jax.custom_vjp  # type: ignore[untyped-decorator]
        def call(tensor: Any, link: Any) -> Any:
            return forward(tensor, link)

        def call_forward(tensor: Any, link: Any) -> Any:
            result, link = forward(tensor, link)
            return (result, link), (tensor, result, link)

        def call_backward(kept: Any, gradients: Any) -> Any:
            tensor, result, link = kept
            gradient = backward(tensor, result, gradients[0])
            return gradient, jnp.zeros_like(link)

        call.defvjp(call_forward, call_backward)
        result, link = call(tensor, step.link)
        # The link itself has no gradient, so it is free of the derivative
        # that is being traced.
        step.follow(jax.lax.stop_gradient(link), name)
        return result

    def train_step(
        self, model: Any, ring: Collectives, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Makes a `train_step` that knows its share."""

        def train_step(before: Any, data: Any) -> Any:
            logs, after, step = _run(model, ring, original, before, data)
            trained = any(
                new is not old
                for new, old in zip(after[0], before[0], strict=True)
            )
            check_reduced(step, trained)
            return logs, _without_fillers(step, model, after, before)

        return train_step

    def test_step(
        self, model: Any, ring: Collectives, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Makes a `test_step` that knows its share."""

        def test_step(before: Any, data: Any) -> Any:
            logs, after, step = _run(model, ring, original, before, data)
            return logs, _without_fillers(step, model, after, before)

        return test_step


class _Execution:
    """Keras's function for a step, with two steps under way at most."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._last: Any = None
        self._before: Any = None

    def __call__(self, *args: Any) -> Any:
        jax.block_until_ready(self._before)
        result = self._function(*args)
        # What a step returns first, logs or predictions, nobody donates.
        self._before, self._last = self._last, result[0]
        return result


def _limited(
    model: Any, kind: str, make: Callable[..., None]
) -> Callable[..., None]:
    name = f"{kind}_function"

    @functools.wraps(make)
    def make_function(*args: Any, **kwargs: Any) -> None:
        make(*args, **kwargs)
        function = getattr(model, name)
        if not isinstance(function, _Execution):
            setattr(model, name, _Execution(function))

    return make_function


def _run(
    model: Any,
    ring: Collectives,
    original: Callable[..., Any],
    before: Any,
    data: Any,
) -> tuple[Any, Any, steps.Step]:
    data, step = steps.opened(ring, data)
    with losses.entered(step):
        logs, new_state = original(before, data)
        of_metrics = zip(model.metrics_variables, new_state[-1], strict=True)
        with keras.StatelessScope(state_mapping=list(of_metrics)):
            logs = metrics.of_all_rows(step, model, logs)
    return logs, new_state, step


def _without_fillers(
    step: steps.Step, model: Any, after: Any, before: Any
) -> Any:
    """A step without rows leaves no trace in what depends on them.

    Args:
        step: the finished step.
        model: the model.
        after: the state after the step: trainable and other variables, in
            training those of the optimizer, metrics.
        before: the state before it.

    Returns:
        The state to go on with.
    """
    if not step.may_be_empty:
        return after
    depend = {id(v) for v in state.that_depend_on_rows(model)}

    def put_back(variables: Sequence[Any], new: Any, old: Any) -> Any:
        return [
            jnp.where(step.share > 0, n, o) if id(v) in depend else n
            for v, n, o in zip(variables, new, old, strict=True)
        ]

    trainable, others, *of_optimizer, of_metrics = after
    return (
        trainable,
        put_back(model.non_trainable_variables, others, before[1]),
        *of_optimizer,
        put_back(model.metrics_variables, of_metrics, before[-1]),
    )


BACKEND = JaxBackend()
