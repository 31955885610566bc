"""Logs of the global batch, from the metrics of all replicas."""

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_mwms.collectives import Collectives


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
        A dictionary from names to numbers. Values that a `train_step` made
        itself, which no metric holds, are averaged over the replicas.
    """
    with merged(ring, model):
        result = original(logs)
        results = {k: _number(v) for k, v in dict(result).items()}
    if result is not logs:
        return results
    return _averaged(ring, results)


def _totals(ring: Collectives, variables: list[Any]) -> list[np.ndarray]:
    """Each variable's value over all replicas, as its aggregation says."""
    own = [keras.ops.convert_to_numpy(v.value) for v in variables]
    sums = ring.sum_arrays(own)
    chiefs = ring.sum_arrays(
        [v if ring.rank == 0 else np.zeros_like(v) for v in own]
    )
    totals = []
    for variable, total, chief in zip(variables, sums, chiefs, strict=True):
        aggregation = getattr(variable, "aggregation", "sum")
        if aggregation == "mean":
            total = (total / ring.size).astype(total.dtype)
        elif aggregation == "only_first_replica":
            total = chief
        totals.append(total)
    return totals


def _averaged(ring: Collectives, logs: dict[str, Any]) -> dict[str, Any]:
    """Means over the replicas of the values that all have."""
    numbers = {k: v for k, v in logs.items() if isinstance(v, float)}
    of_all = ring.gather_values(numbers)
    shared = set.intersection(*(set(each) for each in of_all))
    means = {k: sum(each[k] for each in of_all) / ring.size for k in shared}
    return {**logs, **means}


def _number(value: Any) -> Any:
    """A scalar as a Python float, anything else as it is."""
    array = keras.ops.convert_to_numpy(value)
    return float(array) if np.ndim(array) == 0 else value
