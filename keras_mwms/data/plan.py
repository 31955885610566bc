"""Steps that a replica's own data surely make, known before they are read."""

import itertools
from collections.abc import Iterator
from collections.abc import Sequence
from typing import NamedTuple


class Plan(NamedTuple):
    """Batches of one size, and how a replica cuts them.

    Attributes:
        batches: number of batches.
        rows: rows of each batch.
        sizes: how many rows each step takes at most, again and again.
    """

    batches: int
    rows: int
    sizes: list[int]

    def own_rows(self) -> Iterator[int]:
        """How many rows each step takes.

        Example:
            >>> list(Plan(2, 3, [2, 1]).own_rows())
            [2, 1, 2, 1]
        """
        step = 0
        for _ in range(self.batches):
            left = self.rows
            while left:
                own = min(self.sizes[step % len(self.sizes)], left)
                yield own
                left -= own
                step += 1


def rows_of_steps(plans: Sequence[Plan]) -> Iterator[tuple[int, ...]]:
    """How many rows each replica has in each step.

    Args:
        plans: those of all replicas, in rank order.

    Returns:
        As many values as the longest plan has steps.

    Example:
        >>> list(rows_of_steps([Plan(1, 2, [2]), Plan(2, 1, [1])]))
        [(2, 1), (0, 1)]
    """
    return itertools.zip_longest(
        *(plan.own_rows() for plan in plans), fillvalue=0
    )
