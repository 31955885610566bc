"""Makes each loss term, and each mean, the one of the global batch.

A term is a sum over rows by a divisor. The optimizer scales what comes out of
a step by the replica's share of the rows, which makes means over rows right.
A term with another divisor is corrected here, so that its value (for the
logs) and its gradient both come out right: it is multiplied by its own share
by the share of the rows.

A loss or metric function that returns one number has reduced the rows in a
way of its own. It is given the rows of all replicas.

A `Mean` that is given one number a step (a loss, say) counts steps. One
replica counts its share of a step, so that all together count it once.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_mwms import _keras
from keras_mwms.training import step as steps
from keras_mwms.training.step import Step

MEANS = ("sum_over_batch_size", "mean")
NOT_REDUCED = (None, "none")


@contextlib.contextmanager
def entered(step: Step) -> Iterator[None]:
    """Makes `step` the current one, and losses and means those of all rows."""
    _adapt_keras()
    with steps.entered(step):
        yield


@functools.cache
def _adapt_keras() -> None:
    """Once a process; what stands in changes nothing outside of steps."""
    _keras.adapt_losses(_of_all_rows, _corrected)
    _keras.adapt_means(_metric_of_all_rows, _by_share)


def _of_all_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    """Stands in for `Loss.__call__`."""

    @functools.wraps(original)
    def call(
        self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        step = _joining(self, y_true, y_pred)
        if step is None:
            return original(self, y_true, y_pred, sample_weight)
        joined = _joined(step, (y_true, y_pred, sample_weight))
        with steps.entered(None):
            loss = original(self, *joined)
        # Each replica has the whole loss, and its own part of the gradient.
        return _with_gradient_times(loss, step.inverse_share)

    return call


def _corrected(original: Callable[..., Any]) -> Callable[..., Any]:
    """Stands in for Keras's `reduce_weighted_values`."""

    @functools.wraps(original)
    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        loss = original(values, sample_weight, mask, reduction, dtype)
        step = steps.current()
        if step is None or len(ops.shape(values)) == 0:
            return loss
        if reduction in NOT_REDUCED:
            # The gradient is that of the sum, the logs show the mean.
            return _with_gradient_times(loss, step.inverse_share)
        if reduction == "sum":
            return loss * ops.cast(step.inverse_share, loss.dtype)
        divisor = _divisor(step, values, sample_weight, mask, reduction)
        if divisor is None:
            return loss
        return loss * ops.cast(_ratio(step, divisor), loss.dtype)

    return reduce_weighted_values


def _metric_of_all_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    """Stands in for `MeanMetricWrapper.update_state`."""

    @functools.wraps(original)
    def update_state(
        self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        step = _joining(self, y_true, y_pred)
        if step is None or sample_weight is not None:
            return original(self, y_true, y_pred, sample_weight)
        # Every replica counts all rows: its share of them makes them once.
        # Keras itself takes no weights for one number.
        return original(self, *_joined(step, (y_true, y_pred)), step.share)

    return update_state


def _by_share(original: Callable[..., Any]) -> Callable[..., Any]:
    """Stands in for Keras's `reduce_to_samplewise_values`."""

    @functools.wraps(original)
    def reduce_to_samplewise_values(
        values: Any, sample_weight: Any, reduce_fn: Any, dtype: Any
    ) -> Any:
        step = steps.current()
        is_number = len(getattr(values, "shape", ())) == 0
        if (
            step is not None
            and sample_weight is None
            and is_number
            and reduce_fn is ops.mean
        ):
            sample_weight = step.share
        return original(values, sample_weight, reduce_fn, dtype)

    return reduce_to_samplewise_values


# Whether the rows of a batch are mixed, by loss or metric.
_MIXES: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def _joining(of: Any, y_true: Any, y_pred: Any) -> Step | None:
    """The step in which a loss or metric needs the rows of all replicas."""
    step = steps.current()
    if step is None or not step.can_gather:
        return None
    return step if _mixes_rows(of, y_true, y_pred) else None


def _mixes_rows(of: Any, y_true: Any, y_pred: Any) -> bool:
    """Whether what a loss or metric computes is not one value a row."""
    if of not in _MIXES:
        values = _keras.values_of(of, y_true, y_pred)
        # A row's circle loss is taken over its pairs with all others.
        _MIXES[of] = len(ops.shape(values)) == 0 or isinstance(
            of, keras.losses.Circle
        )
    return _MIXES[of]


def _joined(step: Step, arguments: Any) -> Any:
    """The rows of all replicas of a loss's arguments, masks included."""
    leaves = keras.tree.flatten(arguments)
    with_masks = [(leaf, _keras.mask_of(leaf)) for leaf in leaves]
    parts = [
        ops.convert_to_tensor(part)
        for pair in with_masks
        for part in pair
        if part is not None
    ]
    joined = iter(step.gather(parts, "loss.rows"))
    results = []
    for leaf, mask in with_masks:
        results.append(None if leaf is None else next(joined))
        if mask is not None:
            _keras.set_mask(results[-1], next(joined))
    return keras.tree.pack_sequence_as(arguments, results)


def _divisor(
    step: Step,
    values: Any,
    sample_weight: Any,
    mask: Any,
    reduction: str | None,
) -> Any | None:
    """What the sum is divided by, where that is not the number of rows."""
    if reduction in MEANS and mask is not None:
        return ops.sum(ops.cast(mask, "float32"))
    if reduction == "mean_with_sample_weight" and (
        mask is not None or sample_weight is not None
    ):
        if sample_weight is not None:
            # A copy: Keras multiplies the mask into what it is given.
            sample_weight = ops.cast(sample_weight, "float32") * 1.0
        weight = _keras.apply_mask(
            sample_weight, mask, dtype="float32", reduction=reduction
        )
        _, weight = _keras.squeeze_or_expand_to_same_rank(
            ops.convert_to_tensor(values), ops.cast(weight, "float32")
        )
        return ops.sum(weight)
    if not step.is_sliced and len(ops.shape(values)) > 1:
        # Sequences may be longer on another replica.
        return ops.sum(ops.ones_like(values, "float32"))
    return None


def _ratio(step: Step, divisor: Any) -> Any:
    divisor = ops.stop_gradient(divisor)
    # A replica that holds a filler row has no part in the divisor.
    mine = ops.where(
        ops.cast(step.share, "float32") > 0, divisor, ops.zeros_like(divisor)
    )
    (total,) = step.all_reduce([mine], "loss.divisor")
    total = ops.stop_gradient(total)
    return ops.divide_no_nan(mine, total) * step.inverse_share


def _with_gradient_times(value: Any, factor: Any) -> Any:
    """The value, with a gradient `factor` times as large."""
    scaled = value * ops.cast(factor, value.dtype)
    return ops.stop_gradient(value) + (scaled - ops.stop_gradient(scaled))
