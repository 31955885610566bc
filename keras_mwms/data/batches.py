"""What an adapter hands to a step: a replica's rows and their share.

The share travels as data, so that a compiled step needs no new trace when it
changes. Whether a share can be zero is told by the type, so that only steps
of such data pay for it.
"""

from typing import Any
from typing import NamedTuple


class Shard(NamedTuple):
    """A replica's rows of a global batch; every replica has some.

    Attributes:
        data: the batch as `train_step` gets it: `(x,)`, `(x, y)` or
            `(x, y, sample_weight)`.
        share: own rows by rows of the global batch, a float32 scalar.
    """

    data: Any
    share: Any


class SparseShard(NamedTuple):
    """Like `Shard`, of data where a replica may have no rows in a step.

    Such a replica gets the first row of the global batch as a filler, and a
    share of 0: it takes part in the step and leaves no trace.
    """

    data: Any
    share: Any
