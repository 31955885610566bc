"""Makes replicas start from the same state: the chief's."""

import hashlib
import json
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_mwms import _keras
from keras_mwms.collectives import Collectives

# Replica r draws its random numbers r times this far from the chief's seed.
SEED_STRIDE = 1_000_003

_AGGREGATIONS = ("mean", "sum", "only_first_replica")


def agreed_order(
    ring: Collectives, variables: Sequence[Any], paths: Mapping[int, str]
) -> list[int]:
    """Pairs this replica's variables with the chief's.

    Variables pair by path where every replica has the same paths, in
    whatever order; by position where paths differ (automatic layer names).

    Args:
        ring: the collectives; every replica calls.
        variables: this replica's variables.
        paths: from the identity of a variable to a better path than its own.

    Returns:
        For each variable of the chief, in the chief's order, the position of
        its partner in `variables`.

    Raises:
        ValueError: on every replica alike, if some replica's variables do
            not fit the chief's. The message names the first that differs.
    """
    mine = [_described(v, paths.get(id(v), v.path)) for v in variables]
    digest = hashlib.sha256(json.dumps(mine).encode()).hexdigest()
    if len(set(ring.gather_values(digest))) == 1:
        return list(range(len(mine)))
    of_all = ring.gather_values(mine)
    for rank, other in enumerate(of_all):
        problem = _mismatch(of_all[0], other)
        if problem:
            raise ValueError(
                "The replicas have different models; build the same model "
                f"on every replica. Received: {problem % rank}"
            )
    return _partners(of_all[0], mine)


def broadcast(ring: Collectives, variables: Sequence[Any]) -> None:
    """Gives every replica the chief's values.

    Args:
        ring: the collectives; every replica calls.
        variables: variables in the order that all replicas share. Those of
            strings are left alone.
    """
    numeric = [v for v in variables if v.dtype != "string"]
    values = ring.broadcast_arrays(
        [keras.ops.convert_to_numpy(v.value) for v in numeric]
    )
    if ring.rank == 0:
        return
    for variable, value in zip(numeric, values, strict=True):
        variable.assign(value)


def spread_seeds(ring: Collectives, model: keras.Model) -> None:
    """Gives each replica a stream of random numbers of its own.

    Called on all but the chief, when the seeds are the chief's everywhere.
    The chief's stays as it is, so that what it saves is what one process
    would save.
    """
    for variable in model.non_trainable_variables:
        if _keras.is_seed(variable):
            state = keras.ops.convert_to_numpy(variable.value).copy()
            shifted = int(state[0]) + ring.rank * SEED_STRIDE
            state[0] = shifted % (2**31 - 1)
            variable.assign(state)


def clear_others_accumulators(
    ring: Collectives, optimizer: keras.optimizers.Optimizer
) -> None:
    """Leaves accumulated gradients to the chief, see `merge_accumulators`."""
    if ring.rank == 0:
        return
    for variable in _keras.accumulators_of(optimizer):
        variable.assign(keras.ops.zeros_like(variable.value))


def moving_statistics_of(model: keras.Model) -> list[Any]:
    """The moving statistics of batch normalization."""
    return [
        v
        for layer in _batch_normalizations_of(model)
        for v in _moving_statistics_of(layer)
    ]


def aggregated_variables(model: keras.Model) -> list[Any]:
    """The variables without a gradient that say how replicas are merged.

    A layer says so by `add_weight(..., trainable=False, aggregation="sum")`.
    Keras's default, `"none"`, says nothing: such variables are left alone.
    """
    return [
        v
        for v in model.non_trainable_variables
        if v.aggregation in _AGGREGATIONS and v.dtype != "string"
    ]


def that_depend_on_rows(model: keras.Model) -> list[Any]:
    """The variables that hold what this replica's own rows say.

    A step in which the replica has no rows must not change them: it runs on
    a filler row. These are the metrics, the moving statistics of
    unsynchronized batch normalization, and what is merged by its
    `aggregation`. All else that has no gradient changes
    alike on every replica, with rows and without: the statistics of
    synchronized batch normalization, which are those of the global batch, or
    the vectors of spectral normalization, which come from the weights.

    Args:
        model: the model.

    Returns:
        Its variables of that kind.
    """
    statistics = [
        v
        for layer in _batch_normalizations_of(model)
        if not layer.synchronized
        for v in _moving_statistics_of(layer)
    ]
    return [
        *statistics,
        *aggregated_variables(model),
        *model.metrics_variables,
    ]


def merge_accumulators(
    ring: Collectives, optimizer: keras.optimizers.Optimizer
) -> None:
    """Moves what the replicas have accumulated locally to the chief.

    It belongs to the next update, which sums over the replicas: the chief
    then holds what one process would, and what it saves is whole.

    Args:
        ring: the collectives; every replica calls.
        optimizer: an optimizer with `gradient_accumulation_steps`.
    """
    accumulators = _keras.accumulators_of(optimizer)
    sums = ring.sum_arrays(
        [keras.ops.convert_to_numpy(v.value) for v in accumulators]
    )
    for variable, total in zip(accumulators, sums, strict=True):
        variable.assign(total if ring.rank == 0 else np.zeros_like(total))


def _batch_normalizations_of(
    model: keras.Model,
) -> list[keras.layers.BatchNormalization]:
    return [
        layer
        for layer in _keras.layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization)
    ]


def _moving_statistics_of(
    layer: keras.layers.BatchNormalization,
) -> list[Any]:
    return [
        v
        for v in layer.non_trainable_variables
        if not _keras.is_seed(v) and "float" in v.dtype
    ]


def _described(variable: Any, path: str) -> list[Any]:
    shape = [-1 if d is None else int(d) for d in variable.shape]
    return [path, shape, str(variable.dtype), variable.trainable]


def _mismatch(chief: list[Any], other: list[Any]) -> str | None:
    """What differs first, with a place for the rank, or None."""
    if _has_same_paths(chief, other):
        by_path = {d[0]: d for d in other}
        pairs = [(d, by_path[d[0]]) for d in chief]
    else:
        pairs = list(zip(chief, other, strict=False))
    for theirs, own in pairs:
        if theirs[1:] != own[1:]:
            return f"{_words(theirs)} on rank 0, {_words(own)} on rank %d."
    if len(chief) != len(other):
        longer = max(chief, other, key=len)
        extra = longer[min(len(chief), len(other))]
        return (
            f"{len(chief)} variables on rank 0, {len(other)} on rank %d; "
            f"the first without a partner is {_words(extra)}."
        )
    return None


def _words(described: list[Any]) -> str:
    path, shape, dtype, trainable = described
    kind = "" if trainable else ", not trainable"
    return f"'{path}' with shape {tuple(shape)} and dtype {dtype}{kind}"


def _has_same_paths(chief: list[Any], other: list[Any]) -> bool:
    """Whether both have the same paths, each once."""
    paths = {d[0] for d in chief}
    return len(paths) == len(chief) == len(other) and paths == {
        d[0] for d in other
    }


def _partners(chief: list[Any], mine: list[Any]) -> list[int]:
    if not _has_same_paths(chief, mine):
        return list(range(len(mine)))
    where = {d[0]: i for i, d in enumerate(mine)}
    return [where[d[0]] for d in chief]
