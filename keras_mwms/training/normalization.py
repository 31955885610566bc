"""The statistics of `BatchNormalization(synchronized=True)`.

In a step they are those of the global batch. Each replica takes count, mean
and variance of its own rows, the replicas tell each other, and each pools
them:

    n = sum_r n_r
    mean = sum_r n_r mean_r / n
    variance = sum_r n_r (variance_r + (mean_r - mean)^2) / n

No difference of large sums is taken, so no digits are lost where the mean is
far from zero. Gathering them costs one exchange a layer.

The gradient costs another. A replica's gradient is that of the mean loss over
its own rows; the optimizer multiplies it by the share s_r of the replica and
sums over the replicas. What flows through the statistics is therefore

    gradient_r = 1 / s_r * sum_q s_q upstream_q

of all replicas q, of which each takes what its own moments have a part in.

A replica whose share is 0 runs on a filler row: it takes part in both
exchanges, with zeros.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_mwms import _keras
from keras_mwms.training import backend as backends
from keras_mwms.training import step as steps
from keras_mwms.training.step import Step

# Rows of the tensors below, which have one column a channel.
COUNT, MEAN, VARIANCE = range(3)


def enable() -> None:
    """Makes synchronized layers use what is here."""
    _keras.wrap_moments(_synchronized)


def _synchronized(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def moments(layer: Any, inputs: Any, mask: Any) -> Any:
        backend = backends.load(keras.backend.backend())
        if not layer.synchronized or backend.has_strategy():
            return original(layer, inputs, mask)
        mean, variance = _keras.local_moments(layer, inputs, mask)
        step = steps.current()
        # In a symbolic call only shapes matter, and others do not take part.
        if step is None or _keras.in_symbolic_scope():
            return mean, variance
        count = _counted(layer, inputs, mask)
        own = ops.stack(
            [count, *(ops.reshape(m, (-1,)) for m in (mean, variance))]
        )
        pooled = _of_all_replicas(backend, step, own)
        return pooled[MEAN], pooled[VARIANCE]

    return moments


def _counted(layer: Any, inputs: Any, mask: Any) -> Any:
    """How many values of each channel the local statistics are made of."""
    axes = _keras.reduction_axes_of(layer)
    shape = ops.shape(inputs)
    if mask is None:
        # Without a pass over the inputs.
        count = ops.ones((shape[layer.axis],), inputs.dtype)
        for axis in axes:
            count = count * ops.cast(shape[axis], inputs.dtype)
        return count
    mask = ops.cast(ops.expand_dims(mask, axis=-1), "bool")
    counted = ops.cast(ops.broadcast_to(mask, shape), inputs.dtype)
    return ops.sum(counted, axis=axes)


def _of_all_replicas(backend: backends.Backend, step: Step, own: Any) -> Any:
    """Pools the moments of all replicas.

    Args:
        backend: what differs between backends.
        step: the step.
        own: this replica's moments, of shape `(3, channels)`.

    Returns:
        The moments of the global batch, likewise.
    """
    name = step.new_name("moments")
    share = ops.cast(step.share, own.dtype)

    def if_rows(value: Any) -> Any:
        # Not a product: what comes from a filler row may be nan.
        return ops.where(share > 0, value, ops.zeros_like(value))

    def forward(own: Any, link: Any) -> tuple[Any, Any]:
        of_all, link = step.all_gather(if_rows(own), name, link)
        return _pooled(of_all), link

    def backward(own: Any, pooled: Any, upstream: Any) -> Any:
        (total,) = step.all_reduce(
            [if_rows(share * upstream[MEAN:])], "moments.gradient"
        )
        of_mean, of_variance = ops.unstack(ops.divide_no_nan(total, share), 2)
        part = ops.divide_no_nan(own[COUNT], pooled[COUNT])
        away = own[MEAN] - pooled[MEAN]
        gradient = ops.stack(
            [
                ops.zeros_like(part),
                part * (of_mean + 2.0 * away * of_variance),
                part * of_variance,
            ]
        )
        return if_rows(gradient)

    return backend.differentiable(step, name, forward, backward, own)


def _pooled(of_all: Any) -> Any:
    """From moments of shape `(replicas, 3, channels)` to those of all."""
    count, mean, variance = (of_all[:, row] for row in range(3))
    total = ops.sum(count, axis=0)
    mean_of_all = ops.divide_no_nan(ops.sum(count * mean, axis=0), total)
    away = mean - mean_of_all
    variance_of_all = ops.divide_no_nan(
        ops.sum(count * (variance + ops.square(away)), axis=0), total
    )
    return ops.stack([total, mean_of_all, variance_of_all])
