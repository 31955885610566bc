"""Merges state that has no gradient before it is read."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_mwms.collectives import Collectives
from keras_mwms.training import state


def merged_variables(model: keras.Model) -> list[Any]:
    """All that is merged: moving statistics, and what says how."""
    found = [
        *state.moving_statistics_of(model),
        *state.aggregated_variables(model),
    ]
    return list({id(v): v for v in found}.values())


class Merger:
    """Merges what the replicas hold apart from each other.

    Moving statistics of batch normalization become their mean. The variables
    of a user's layers follow their `aggregation`: the mean; the sum of what
    each replica has added since all were equal; or the chief's value.

    Args:
        ring: the collectives.
        model: the model.
        index_of: the position of a variable in the order that all replicas
            share, `None` for one that is not known yet.
    """

    def __init__(
        self,
        ring: Collectives,
        model: keras.Model,
        index_of: Callable[[Any], int | None],
    ):
        self._ring = ring
        self._model = model
        self._index_of = index_of
        self._trained = False
        self._equal: dict[int, np.ndarray] = {}

    def start(self) -> None:
        """Notes what sums go on from. The replicas are equal now."""
        self._equal = {
            id(v): _array(v)
            for v in state.aggregated_variables(self._model)
            if v.aggregation == "sum"
        }

    def before_step(self) -> None:
        """Notes that a step outside of `fit` comes, on every replica."""
        if not self._trained:
            self.start()
        self._trained = True

    def before_read(self) -> None:
        """Merges if such a step came. Every replica calls."""
        if self._trained:
            self.merge(merged_variables(self._model))
        self._trained = False

    def merge(self, variables: list[Any]) -> None:
        """Merges variables. Every replica calls."""
        indices = {id(v): self._index_of(v) for v in variables}
        if None not in indices.values():
            variables = sorted(variables, key=lambda v: indices[id(v)] or 0)
        values = [_array(v) for v in variables]
        sums = self._ring.sum_arrays(
            [self._part(v, a) for v, a in zip(variables, values, strict=True)]
        )
        for variable, value, total in zip(variables, values, sums, strict=True):
            merged = self._whole(variable, total)
            variable.assign(merged.astype(value.dtype))
        self.start()

    def _part(self, variable: Any, value: np.ndarray) -> np.ndarray:
        """What this replica adds."""
        own = _widened(value)
        if variable.aggregation == "sum":
            # What was frozen meanwhile has not changed.
            own -= _widened(self._equal.setdefault(id(variable), value))
        elif variable.aggregation == "only_first_replica" and self._ring.rank:
            own[...] = 0
        return own

    def _whole(self, variable: Any, total: np.ndarray) -> np.ndarray:
        """What all have added, as the variable's new value."""
        if variable.aggregation == "sum":
            total += _widened(self._equal[id(variable)])
        elif variable.aggregation != "only_first_replica":
            mean = np.asarray(total / self._ring.size)
            return np.rint(mean) if total.dtype.kind == "i" else mean
        return total


def _array(variable: Any) -> np.ndarray:
    # A copy: on PyTorch it would be the variable's own memory.
    return np.array(keras.ops.convert_to_numpy(variable.value))


def _widened(array: np.ndarray) -> np.ndarray:
    """Exact to sum up."""
    return array.astype(np.int64 if array.dtype.kind in "iub" else np.float64)
