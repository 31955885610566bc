"""Variables whose "gradient" is their new value: those of float8 training.

Keras computes the scales of float8 numbers, and the histories of the largest
values they come from, as gradients, and overwrites the variables with them
(`overwrite_with_gradient`). No share is theirs: what the global batch gives
is the maximum over the replicas.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_mwms.collectives import Collectives


def is_overwritten(variable: Any) -> bool:
    """Whether an optimizer sets a variable to its gradient."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def maxima(
    ring: Collectives,
    grads: Sequence[Any],
    variables: Sequence[Any],
    share: Any,
    all_reduce: Callable[[list[Any]], list[Any]],
) -> list[Any]:
    """The maximum over the replicas of each value that is to be set.

    Args:
        ring: the collectives.
        grads: this replica's new values; None if it has none.
        variables: the variables they are for.
        share: this replica's share; with 0 its values do not count.
        all_reduce: sums tensors over the replicas.

    Returns:
        The new values. A variable that no replica has one for keeps its own.
    """
    rows = [
        _in_row(ring, _counted(grad, variable, share))
        for grad, variable in zip(grads, variables, strict=True)
    ]
    largest = [ops.max(table, axis=0) for table in all_reduce(rows)]
    return [
        value if grad is not None else _or_own(value, variable)
        for value, grad, variable in zip(largest, grads, variables, strict=True)
    ]


def _counted(grad: Any, variable: Any, share: Any) -> Any:
    if grad is None:
        return ops.full_like(variable, -math.inf)
    nothing = ops.full_like(grad, -math.inf)
    return ops.where(ops.cast(share, "float32") > 0, grad, nothing)


def _in_row(ring: Collectives, value: Any) -> Any:
    """A table of zeros but for this replica's row: the sum has all rows."""
    zeros = ops.zeros_like(value)
    return ops.stack(
        [value if rank == ring.rank else zeros for rank in range(ring.size)]
    )


def _or_own(value: Any, variable: Any) -> Any:
    own = ops.convert_to_tensor(variable)
    return ops.where(value > -math.inf, value, own)
