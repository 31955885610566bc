"""The training hooks on JAX."""

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
from keras_mwms.training import step as steps
from keras_mwms.training.backend import DENSE
from keras_mwms.training.backend import NONE
from keras_mwms.training.backend import Backend
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

    def wait_for_step(self, model: Any) -> None:
        """Waits for the program of the last step, which runs on its own.

        Its exchanges would meet those of the host in another order on
        another replica.
        """
        jax.block_until_ready(_keras.jax_state_of(model))

    def sync_state(self, model: Any) -> None:
        """Puts the state of the last step into the variables."""
        model.jax_state_sync()

    def train_step(
        self, model: Any, ring: Collectives, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Makes a `train_step` that knows its share."""

        def train_step(state: Any, data: Any) -> Any:
            logs, new_state, step = _run(model, ring, original, state, data)
            trained = any(
                new is not old
                for new, old in zip(new_state[0], state[0], strict=True)
            )
            check_reduced(step, trained)
            trainable, non_trainable, optimizer, metrics = new_state
            return logs, (
                trainable,
                _unless_empty(step, non_trainable, state[1]),
                optimizer,
                _unless_empty(step, metrics, state[3]),
            )

        return train_step

    def test_step(
        self, model: Any, ring: Collectives, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Makes a `test_step` that knows its share."""

        def test_step(state: Any, data: Any) -> Any:
            logs, new_state, step = _run(model, ring, original, state, data)
            trainable, non_trainable, metrics = new_state
            return logs, (
                trainable,
                _unless_empty(step, non_trainable, state[1]),
                _unless_empty(step, metrics, state[2]),
            )

        return test_step


def _run(
    model: Any,
    ring: Collectives,
    original: Callable[..., Any],
    state: Any,
    data: Any,
) -> tuple[Any, Any, steps.Step]:
    data, step = steps.opened(ring, data)
    with losses.entered(step):
        logs, new_state = original(state, data)
        of_metrics = zip(model.metrics_variables, new_state[-1], strict=True)
        with keras.StatelessScope(state_mapping=list(of_metrics)):
            logs = metrics.of_all_rows(step, model, logs)
    return logs, new_state, step


def _unless_empty(step: steps.Step, new: Any, old: Any) -> Any:
    """A step without rows leaves no trace in this state."""
    if not step.may_be_empty:
        return new
    return [
        jnp.where(step.share > 0, n, o) for n, o in zip(new, old, strict=True)
    ]


BACKEND = JaxBackend()
