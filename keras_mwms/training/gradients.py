"""All-reduces gradients where an optimizer applies them.

What a step computed is the gradient of the mean over the replica's own rows.
Times the replica's share, summed over the replicas, it is the gradient over
the global batch. Clipping, finite checks, weight decay and so on come after
and see that.

With `gradient_accumulation_steps`, each micro-step is scaled by its share and
accumulated locally; the sum over replicas is taken once an update, just
before clipping.

The memory of gradients is used for the result where the backend can.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.training import overwriting
from keras_mwms.training import step as steps
from keras_mwms.training.agreement import Agreement
from keras_mwms.training.backend import DENSE
from keras_mwms.training.backend import Backend

# An optimizer may hold another one (loss scaling): only the outermost reduces.
_INSIDE: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "keras_mwms_inside_apply", default=False
)


class GradientReducer:
    """Hooked into one optimizer, which stays the object it was.

    Args:
        ring: the collectives.
        backend: what differs between backends.
        optimizer: the user's optimizer.
        label: the optimizer's name on the wire, the same on every replica.
        index_of: the position of a variable in the order that all replicas
            share, `None` for a variable that is not the model's.
    """

    def __init__(
        self,
        ring: Collectives,
        backend: Backend,
        optimizer: keras.optimizers.Optimizer,
        label: str,
        index_of: Callable[[Any], int | None],
    ):
        self.ring = ring
        self.optimizer = optimizer
        self._backend = backend
        self._label = label
        self._index_of = index_of
        self._agreement = Agreement(ring, backend, self._order)
        self._accumulated: list[Any] = []
        self._inner = getattr(optimizer, "inner_optimizer", optimizer)
        self._accumulates = bool(self._inner.gradient_accumulation_steps)

    def hook(self) -> None:
        """Puts the reduction into the optimizer's `apply`."""
        optimizer = self.optimizer
        optimizer.apply = self._around_apply(optimizer.apply)
        scales_loss = self._inner is not optimizer
        if scales_loss and keras.backend.backend() == "jax":
            # Loss scaling never calls its own `apply` there.
            optimizer.stateless_apply = self._around_stateless_apply(
                optimizer.stateless_apply
            )
        if self._accumulates:
            _keras.wrap_clipping(self._inner, self._around_clip)
            if scales_loss:
                optimizer.check_finite = self._around_check_finite(
                    optimizer.check_finite
                )

    def forget(self) -> None:
        """Lets the replicas agree anew on what is None, after a compile."""
        self._agreement.forget()

    def _around_apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def apply(grads: Any, trainable_variables: Any = None) -> Any:
            grads = list(grads)
            if trainable_variables is not None:
                trainable_variables = list(trainable_variables)
            if _INSIDE.get() or not grads:
                return original(grads, trainable_variables)
            variables = trainable_variables
            if variables is None:
                variables = _keras.trainable_variables_of(self.optimizer)
                if len(grads) != len(variables):
                    return original(grads)  # Keras says what is wrong.
            with _inside():
                return original(
                    self._of_global_batch(grads, variables),
                    trainable_variables,
                )

        return apply

    def _around_stateless_apply(
        self, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        @functools.wraps(original)
        def stateless_apply(
            optimizer_variables: Any, grads: Any, trainable_variables: Any
        ) -> Any:
            variables = _keras.trainable_variables_of(self.optimizer)
            grads = self._of_global_batch(list(grads), variables)
            with _inside():
                return original(optimizer_variables, grads, trainable_variables)

        return stateless_apply

    def _around_clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def clip(grads: Any) -> Any:
            reduced = self._backend.on_update(
                self._inner,
                list(grads),
                lambda g: self._sum(g, self._accumulated),
            )
            return original(reduced)

        return clip

    def _around_check_finite(
        self, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        @functools.wraps(original)
        def check_finite(grads: Any) -> Any:
            # All must skip an update together, or none.
            infinite = keras.ops.cast(
                keras.ops.logical_not(original(grads)), "float32"
            )
            (total,) = self._all_reduce([infinite], "finite")
            return keras.ops.equal(total, 0.0)

        return check_finite

    def _of_global_batch(
        self, grads: list[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """From the replica's gradients to those of the global batch."""
        step = steps.current()
        if step is not None:
            step.reductions += 1
        overwritten = [
            i
            for i in self._order(variables)
            if overwriting.is_overwritten(variables[i])
        ]
        others = [i for i in range(len(grads)) if i not in set(overwritten)]
        result: list[Any] = [None] * len(grads)
        for positions, reduce in (
            (others, self._reduced),
            (overwritten, self._maxima),
        ):
            if not positions:
                continue
            reduced = reduce(
                [grads[i] for i in positions],
                [variables[i] for i in positions],
                step,
            )
            for i, grad in zip(positions, reduced, strict=True):
                result[i] = grad
        return result

    def _maxima(
        self, grads: list[Any], variables: list[Any], step: steps.Step | None
    ) -> list[Any]:
        return overwriting.maxima(
            self.ring,
            grads,
            variables,
            1.0 if step is None else step.share,
            lambda tables: self._all_reduce(tables, "max"),
        )

    def _reduced(
        self, grads: list[Any], variables: list[Any], step: steps.Step | None
    ) -> list[Any]:
        share = 1.0 / self.ring.size if step is None else step.share
        may_be_empty = step is not None and step.may_be_empty
        grads = self._backend.scale(grads, variables, share, may_be_empty)
        if self._accumulates:
            grads = self._to_accumulate(grads, variables)
            self._accumulated = [
                v
                for g, v in zip(grads, variables, strict=True)
                if g is not None
            ]
            return grads
        if self._backend.none_varies:
            return self._sum_with_presence(grads, variables)
        grads = self._agreement.made_uniform(grads, variables)
        return self._sum(grads, variables)

    def _to_accumulate(
        self, grads: list[Any], variables: list[Any]
    ) -> list[Any]:
        if self._backend.none_varies:
            every = self._inner.gradient_accumulation_steps
            if (int(_keras.micro_steps_of(self._inner)) + 1) % every:
                # Zeros add nothing; what is None counts in the update alone.
                return self._filled(grads, variables)
            self._agreement.forget()
        return self._agreement.made_uniform(grads, variables)

    def _filled(
        self, grads: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        return [
            self._backend.as_kind(g, v, DENSE)
            for g, v in zip(grads, variables, strict=True)
        ]

    def _sum(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Sums over the replicas; None, which is None on all, stays."""
        order = [i for i in self._order(variables) if grads[i] is not None]
        sums = self._all_reduce([grads[i] for i in order], "sum")
        result: list[Any] = [None] * len(grads)
        for i, total in zip(order, sums, strict=True):
            result[i] = total
        return result

    def _sum_with_presence(
        self, grads: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Like `_sum` where None may differ by replica and step.

        The number of replicas that have each gradient travels in the same
        group, so it costs no round of its own.
        """
        filled = self._filled(grads, variables)
        present = keras.ops.convert_to_tensor(
            [0.0 if g is None else 1.0 for g in grads], dtype="float32"
        )
        order = self._order(variables)
        *sums, counts = self._all_reduce(
            [filled[i] for i in order] + [present[order]], "sum"
        )
        result: list[Any] = [None] * len(grads)
        for i, total, count in zip(order, sums, counts.tolist(), strict=True):
            result[i] = total if count else None
        return result

    def _order(self, variables: Sequence[Any]) -> list[int]:
        """Positions in an order that is the same on every replica."""
        indices = [self._index_of(v) for v in variables]
        if any(index is None for index in indices):
            return list(range(len(variables)))
        return sorted(range(len(variables)), key=lambda i: indices[i] or 0)

    def _all_reduce(self, tensors: list[Any], operation: str) -> list[Any]:
        base = f"{self._label}.{operation}"
        step = steps.current()
        if step is None:
            return self.ring.start_all_reduce(tensors, base).wait()
        # Accumulated sums are taken in a branch, that of the update.
        in_branch = self._accumulates and operation == "sum"
        return step.all_reduce(
            tensors, base, in_branch=in_branch, may_overwrite=True
        )


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    token = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(token)
