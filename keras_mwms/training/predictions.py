"""Puts the predictions of all replicas in the order of the input rows."""

from typing import Any

import keras
import numpy as np

from keras_mwms.collectives import Collectives
from keras_mwms.data.arrays import ShardedArrays


def joined(
    ring: Collectives, shard: ShardedArrays, outputs: Any, steps: int | None
) -> Any:
    """Joins what each replica predicted for its own rows.

    Args:
        ring: the collectives; every replica calls.
        shard: the data that was predicted.
        outputs: arrays of shape `(rows, ...)`, or a structure of them: this
            replica's predictions, filler rows included.
        steps: the number of global batches predicted, `None` for all.

    Returns:
        Arrays like `outputs`, with every row of the input once, in order.
    """
    rows, real = shard.fed_rows(ring.rank, steps)
    order = np.argsort(ring.gather_array(rows[real]))

    def join(output: Any) -> np.ndarray:
        if not isinstance(output, np.ndarray) or len(output) != len(rows):
            raise ValueError(
                "predict on several replicas needs one output row for each "
                "input row, as arrays. Received: an output of type "
                f"{type(output).__name__} and shape "
                f"{getattr(output, 'shape', None)} for {len(rows)} rows"
            )
        return ring.gather_array(output[real])[order]

    return keras.tree.map_structure(join, outputs)
