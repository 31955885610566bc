"""Compares the replicas: which variables are not the same on all."""

import dataclasses
import hashlib
import math
import warnings
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.errors import OutOfSyncError
from keras_mwms.training import merging
from keras_mwms.training import optimizers
from keras_mwms.training import state
from keras_mwms.training.backend import Backend

# Numbers that are compared at once: little memory beside the arrays.
_CHUNK = 2**20

# Differences that an error names; there may be thousands.
_NAMED = 5


@dataclasses.dataclass(frozen=True)
class Difference:
    """A variable that is not the same on all replicas.

    Attributes:
        path: the variable's path on this replica.
        groups: the ranks, in groups of the same value; the chief's first.
        difference: the largest absolute difference from the chief's value,
            over all elements and replicas; `inf` where only one of the two
            is a number.
    """

    path: str
    groups: tuple[tuple[int, ...], ...]
    difference: float

    def __str__(self) -> str:
        ranks = " | ".join(", ".join(map(str, group)) for group in self.groups)
        return (
            f"'{self.path}' differs between the ranks {ranks} "
            f"by up to {self.difference:.6g}"
        )


class Comparison:
    """The state of a model that should be the same on all replicas.

    Left out is what may differ: seeds, metrics, states of stateful RNNs,
    gradients that are accumulated, and what is merged at the end of an epoch
    only, as the moving statistics of batch normalization.

    Args:
        ring: the collectives.
        backend: what differs between backends.
        model: a model.
        optimizers: its optimizers, with names for them.
    """

    def __init__(
        self,
        ring: Collectives,
        backend: Backend,
        model: keras.Model,
        optimizers: Sequence[tuple[str, keras.optimizers.Optimizer]],
    ):
        self.ring = ring
        self.model = model
        self._backend = backend
        self._optimizers = optimizers

    def differences(self) -> tuple[Difference, ...]:
        """What differs now. Every replica calls."""
        merged_later = merging.merged_variables(self.model)
        return self._compare(leave_out=merged_later, adopt=False)

    def check(self, step: int) -> None:
        """Raises if something differs. Every replica calls.

        Args:
            step: how many steps were trained, for the message.

        Raises:
            OutOfSyncError: on every replica.
        """
        found = self.differences()
        if found:
            raise OutOfSyncError(
                f"The replicas differ after step {step} of fit, in "
                f"{_summary(found)}. Look for what runs on some replicas "
                "only and changes the model: a callback, a branch on the "
                "rank, random numbers."
            )

    def adopt_chiefs(self) -> None:
        """Gives all the chief's values where they differ after an epoch.

        Every replica calls.
        """
        found = self._compare(leave_out=(), adopt=True)
        if found and self.ring.rank == 0:
            warnings.warn(
                "At the end of fit the replicas differed: a callback on one "
                "of them alone, perhaps. All have the chief's values now. "
                f"Received: {_summary(found)}",
                stacklevel=2,
            )

    def _compare(
        self, leave_out: Sequence[Any], adopt: bool
    ) -> tuple[Difference, ...]:
        self._backend.sync_state(self.model)
        paths_of_model = self._backend.paths_of(self.model)
        of_model = list(self._variables(leave_out, paths_of_model))
        of_optimizers = list(self._optimizer_variables(paths_of_model))
        named = of_model + of_optimizers
        partner_paths = {
            id(v): path for path, v in of_model
        } | optimizers.for_pairing(of_optimizers)
        paths, variables = zip(*named, strict=True) if named else ((), ())
        digests = [_digest(_array(v)) for v in variables]
        whole = hashlib.sha256(
            "\n".join([*partner_paths.values(), *digests]).encode()
        ).hexdigest()
        if len(set(self.ring.gather_values(whole))) == 1:
            return ()
        order = state.agreed_order(self.ring, variables, partner_paths)
        of_all = self.ring.gather_values([digests[i] for i in order])
        found = []
        for i, column in zip(order, zip(*of_all, strict=True), strict=True):
            if len(set(column)) > 1:
                difference = self._distance(variables[i], adopt)
                if difference:
                    groups = _groups(column)
                    found.append(Difference(paths[i], groups, difference))
        return tuple(found)

    def _distance(self, variable: Any, adopt: bool) -> float:
        """The largest difference from the chief's value on any replica."""
        own = _array(variable)
        (chiefs,) = self.ring.broadcast_arrays([own])
        distances = self.ring.gather_values(_distance(own, chiefs))
        if adopt and self.ring.rank:
            variable.assign(chiefs)
        return float(max(distances))

    def _variables(
        self, leave_out: Sequence[Any], paths: Mapping[int, str]
    ) -> Iterator[tuple[str, Any]]:
        """What is compared of the model, by paths."""
        differ = {id(v) for v in leave_out}
        # Seeds, metrics and states of RNNs are no weights in Keras.
        for v in self.model.weights:
            if id(v) not in differ and v.dtype != "string":
                yield paths.get(id(v), v.path), v

    def _optimizer_variables(
        self, paths: Mapping[int, str]
    ) -> Iterator[tuple[str, Any]]:
        """What is compared of the optimizers, by paths."""
        own = {
            id(v)
            for _, optimizer in self._optimizers
            for v in _keras.accumulators_of(optimizer)
        }
        named = optimizers.named(self.model, self._optimizers, paths)
        yield from ((path, v) for path, v in named if id(v) not in own)


def _array(variable: Any) -> np.ndarray:
    array = keras.ops.convert_to_numpy(variable.value)
    return np.asarray(array, order="C")


def _digest(array: np.ndarray) -> str:
    data = array.reshape(-1).view(np.uint8).data
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _groups(digests: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The ranks by digest, in the order of their lowest."""
    groups: dict[str, list[int]] = {}
    for rank, digest in enumerate(digests):
        groups.setdefault(digest, []).append(rank)
    return tuple(map(tuple, groups.values()))


def _distance(own: np.ndarray, other: np.ndarray) -> float:
    """The largest absolute difference; nan equals nan, and nothing else."""
    own, other = own.reshape(-1), other.reshape(-1)
    largest = 0.0
    for start in range(0, own.size, _CHUNK):
        a = own[start : start + _CHUNK].astype(np.float64)
        b = other[start : start + _CHUNK].astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        gaps = np.abs(a[~same] - b[~same])
        if gaps.size:
            gap = float(np.nan_to_num(gaps, nan=math.inf).max())
            largest = max(largest, gap)
    return largest


def _summary(found: Sequence[Difference]) -> str:
    named = "; ".join(map(str, found[:_NAMED]))
    if len(found) <= _NAMED:
        return named
    return f"{named}; and {len(found) - _NAMED} variables more"
