"""Logs of the global batch, from the metrics of all replicas."""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_mwms.collectives import Collectives
from keras_mwms.training.step import Step


@contextlib.contextmanager
def merged(ring: Collectives, model: keras.Model) -> Iterator[None]:
    """Shows the model's metrics as if one process had seen all rows.

    Nothing is written back: reading twice gives the same, and training goes
    on from the replica's own state.

    Args:
        ring: the collectives; every replica enters.
        model: the model whose metrics are read inside.
    """
    variables = list(model.metrics_variables)
    mapping = [
        (v, keras.ops.convert_to_tensor(value, dtype=v.dtype))
        for v, value in zip(variables, _totals(ring, variables), strict=True)
    ]
    with keras.StatelessScope(state_mapping=mapping):
        yield


def finished_logs(
    ring: Collectives,
    model: keras.Model,
    original: Callable[[Any], Any],
    logs: Any,
) -> Any:
    """The logs of an epoch, the same on every replica.

    Args:
        ring: the collectives; every replica calls.
        model: the model.
        original: Keras's own function: the metrics' results if `logs` has
            their names, else `logs`.
        logs: what the last step returned.

    Returns:
        A dictionary from names to numbers: metrics of all rows; what else a
        step returned is `of_all_rows` already.
    """
    with merged(ring, model):
        result = original(logs)
        if result is not logs:
            return {k: _number(v) for k, v in dict(result).items()}
        of_metrics = {
            k: _number(v) for k, v in model.get_metrics_result().items()
        }
    logs = {k: _number(v) for k, v in dict(logs).items()}
    return logs | {k: of_metrics[k] for k in _held(ring, model, logs)}


def _held(
    ring: Collectives, model: keras.Model, logs: dict[str, Any]
) -> list[str]:
    """The names of logs that are what a metric holds.

    One replica knows: where the last step had no rows, logs are not kept.
    """
    own = {k: _number(v) for k, v in model.get_metrics_result().items()}
    held = [
        k for k in sorted(own) if k in logs and np.allclose(own[k], logs[k])
    ]
    return sorted(set().union(*ring.gather_values(held)))


def of_all_rows(step: Step, model: keras.Model, logs: Any) -> Any:
    """Makes values that a step returned itself those of the global batch.

    A value of a replica is taken for the mean of a loss, say, over its rows.

    Args:
        step: the step that returned them.
        model: the model.
        logs: what the step returned.

    Returns:
        The logs; the real numbers among them that are no metric's result are
        their means over the rows of all replicas.
    """
    if not isinstance(logs, dict) or not _may_log_values_of_its_own(model):
        return logs
    results = _results(model)
    if logs.keys() == results.keys():
        return logs  # Keras takes the metrics in their place.
    names = sorted(k for k, v in logs.items() if _is_real(v))
    if not names:
        return logs
    share = ops.cast(step.share, "float32")
    values = ops.stack([ops.cast(logs[k], "float32") for k in names])
    held = ops.stack(
        [ops.cast(results.get(k, np.nan), "float32") for k in names]
    )
    # Not a product alone: what a filler row gives may be nan.
    weighted = ops.where(share > 0, values, 0.0) * share
    differs = ops.cast(ops.not_equal(values, held), "float32")
    means, differs = step.all_reduce(
        [ops.stop_gradient(weighted), ops.stop_gradient(differs)], "logs"
    )
    chosen = ops.where(differs > 0, means, values)
    return {**logs, **{k: chosen[i] for i, k in enumerate(names)}}


def _may_log_values_of_its_own(model: keras.Model) -> bool:
    """Keras's own steps return nothing but metrics."""
    return any(
        getattr(type(model), name) is not getattr(keras.Model, name)
        for name in ("train_step", "test_step", "compute_metrics")
    )


def _results(model: keras.Model) -> dict[str, Any]:
    """What the model's metrics give now, by their names in logs."""
    if not all(getattr(metric, "built", True) for metric in model.metrics):
        return {}  # Those of `compile`, which the step does not use.
    return dict(model.get_metrics_result())


def _is_real(value: Any) -> bool:
    if isinstance(value, float):
        return True
    is_float = keras.backend.is_float_dtype
    return (
        keras.ops.is_tensor(value)
        and len(value.shape) == 0
        and is_float(keras.backend.standardize_dtype(value.dtype))
    )


def _totals(ring: Collectives, variables: list[Any]) -> list[np.ndarray]:
    """Each variable's value over all replicas, as its aggregation says."""
    of_all = ring.gather_arrays(
        [keras.ops.convert_to_numpy(v.value) for v in variables]
    )
    return [
        _total(getattr(variable, "aggregation", "sum"), list(values))
        for variable, *values in zip(variables, *of_all, strict=True)
    ]


def _total(aggregation: str, values: list[np.ndarray]) -> np.ndarray:
    total = values[0]
    if aggregation == "mean":
        total = np.mean(values, axis=0).astype(total.dtype)
    elif aggregation == "sum":
        total = np.sum(values, axis=0, dtype=total.dtype)
    return total


def _number(value: Any) -> Any:
    """A scalar as a Python float, anything else as it is."""
    array = keras.ops.convert_to_numpy(value)
    return float(array) if np.ndim(array) == 0 else value
