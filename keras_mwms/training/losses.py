"""Makes each loss term, and each mean, the one of the global batch.

A term is a sum over rows by a divisor. The optimizer scales what comes out of
a step by the replica's share of the rows, which makes means over rows right.
A term with another divisor is corrected here, so that its value (for the
logs) and its gradient both come out right: it is multiplied by its own share
by the share of the rows.

A `Mean` that is given one number a step (a loss, say) counts steps. One
replica counts its share of a step, so that all together count it once.
"""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

from keras import ops

from keras_mwms import _keras
from keras_mwms.training import step as steps
from keras_mwms.training.step import Step

MEANS = ("sum_over_batch_size", "mean")


@contextlib.contextmanager
def entered(step: Step) -> Iterator[None]:
    """Makes `step` the current one, and losses and means those of all rows."""
    with (
        steps.entered(step),
        _keras.reductions_replaced(corrected(step), by_share(step)),
    ):
        yield


def by_share(step: Step) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a stand-in for Keras's `reduce_to_samplewise_values` in a step."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def reduce_to_samplewise_values(
            values: Any, sample_weight: Any, reduce_fn: Any, dtype: Any
        ) -> Any:
            is_number = len(getattr(values, "shape", ())) == 0
            if sample_weight is None and is_number and reduce_fn is ops.mean:
                sample_weight = step.share
            return original(values, sample_weight, reduce_fn, dtype)

        return reduce_to_samplewise_values

    return make


def corrected(
    step: Step,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a stand-in for Keras's `reduce_weighted_values` during a step.

    Args:
        step: the step in which losses are computed.

    Returns:
        A function from Keras's reduction to the corrected one.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def reduce_weighted_values(
            values: Any,
            sample_weight: Any = None,
            mask: Any = None,
            reduction: str | None = "sum_over_batch_size",
            dtype: Any = None,
        ) -> Any:
            loss = original(values, sample_weight, mask, reduction, dtype)
            if len(ops.shape(values)) == 0:
                return loss  # The user's own reduction: a mean, we assume.
            if reduction == "sum":
                return loss * ops.cast(_inverse(step.share), loss.dtype)
            divisor = _divisor(values, sample_weight, mask, reduction)
            if divisor is None:
                return loss
            return loss * ops.cast(_ratio(step, divisor), loss.dtype)

        return reduce_weighted_values

    return make


def _divisor(
    values: Any, sample_weight: Any, mask: Any, reduction: str | None
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
    return None


def _ratio(step: Step, divisor: Any) -> Any:
    divisor = ops.stop_gradient(divisor)
    # A replica that holds a filler row has no part in the divisor.
    mine = ops.where(_positive(step.share), divisor, ops.zeros_like(divisor))
    (total,) = step.all_reduce([mine + 0.0], "loss.divisor")
    total = ops.stop_gradient(total)
    return ops.divide_no_nan(mine, total) * _inverse(step.share)


def _inverse(share: Any) -> Any:
    share = ops.cast(share, "float32")
    return ops.divide_no_nan(ops.ones_like(share), share)


def _positive(share: Any) -> Any:
    return ops.greater(ops.cast(share, "float32"), 0.0)
