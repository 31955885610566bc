"""What replicas agree on about gradients that some of them do not have."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from keras_mwms.collectives import Collectives
from keras_mwms.training.backend import NONE
from keras_mwms.training.backend import Backend


class Agreement:
    """Makes None (and sparse) the same on all replicas.

    A gradient is dense if one replica's is dense, sparse if one has a sparse
    one, and None if it is None on all.

    Args:
        ring: the collectives.
        backend: what differs between backends.
        order: gives positions of variables in an order that is the same on
            every replica.
    """

    def __init__(
        self,
        ring: Collectives,
        backend: Backend,
        order: Callable[[Sequence[Any]], list[int]],
    ):
        self._ring = ring
        self._backend = backend
        self._order = order
        # By identity: positions in the model tell nothing of variables that
        # are not the model's. The variables are held, so that none is
        # mistaken for another that had its place in memory.
        self._settled: dict[
            tuple[int, ...], tuple[Sequence[Any], list[int]]
        ] = {}

    def forget(self) -> None:
        """Lets the replicas agree anew. Every replica calls."""
        self._settled.clear()

    def made_uniform(
        self, grads: Sequence[Any], variables: Sequence[Any]
    ) -> list[Any]:
        """Turns gradients into the kinds agreed on the first time.

        A graph cannot change its mind later, so this is settled once for a
        set of variables.

        Args:
            grads: gradients of this replica, or None.
            variables: the variables they belong to.

        Returns:
            The gradients; zeros where only others have one.

        Raises:
            ValueError: a gradient is there that was None on all.
        """
        if self._backend.never_none:
            return list(grads)
        kinds = self._agreed(grads, variables)
        for grad, variable, kind in zip(grads, variables, kinds, strict=True):
            if kind == NONE and grad is not None:
                raise ValueError(
                    "A gradient that was None on every replica when training "
                    "began is there now, on this replica; the others cannot "
                    "know of it. Compile the model anew on every replica "
                    "when the trained parts change. Received: a gradient for "
                    f"{_path(variable)}."
                )
        return [
            self._backend.as_kind(grad, variable, kind)
            for grad, variable, kind in zip(
                grads, variables, kinds, strict=True
            )
        ]

    def _agreed(
        self, grads: Sequence[Any], variables: Sequence[Any]
    ) -> list[int]:
        key = tuple(map(id, variables))
        if key not in self._settled:
            self._settled[key] = variables, self._agree(grads, variables)
        return self._settled[key][1]

    def _agree(
        self, grads: Sequence[Any], variables: Sequence[Any]
    ) -> list[int]:
        mine = [self._backend.kind(g) for g in grads]
        order = self._order(variables)
        of_all = self._backend.outside_graph(
            lambda: self._ring.gather_values([mine[i] for i in order])
        )
        agreed = list(mine)
        for i, column in zip(order, zip(*of_all, strict=True), strict=True):
            agreed[i] = max(column)
        return agreed


def _path(variable: Any) -> str:
    return str(getattr(variable, "path", getattr(variable, "name", variable)))
