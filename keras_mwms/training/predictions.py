"""Puts the predictions of all replicas in the order of the input rows."""

from typing import Any

import keras
import numpy as np

from keras_mwms.collectives import Collectives


def joined(ring: Collectives, steps: list[np.ndarray], outputs: Any) -> Any:
    """Joins what each replica predicted for its own rows.

    Args:
        ring: the collectives; every replica calls.
        steps: for each step that was predicted, how many rows each replica
            has of it. One without any was fed a filler row.
        outputs: arrays of shape `(rows, ...)`, or a structure of them: this
            replica's predictions, filler rows included.

    Returns:
        Arrays like `outputs`, with every row of the input once: step by step,
        and in a step in rank order.
    """
    own = [int(rows[ring.rank]) for rows in steps]
    real = np.repeat([rows > 0 for rows in own], np.maximum(own, 1))
    order = _order(np.array(steps, np.int64).reshape(-1, ring.size))

    def join(output: Any) -> np.ndarray:
        if not isinstance(output, np.ndarray) or len(output) != len(real):
            raise ValueError(
                "predict on several replicas needs one output row for each "
                "input row, as arrays. Received: an output of type "
                f"{type(output).__name__} and shape "
                f"{getattr(output, 'shape', None)} for {len(real)} rows"
            )
        rows: np.ndarray = ring.gather_array(output[real])[order]
        return rows

    return keras.tree.map_structure(join, outputs)


def _order(rows: np.ndarray) -> np.ndarray:
    """From rank by rank to step by step.

    Args:
        rows: of shape `(steps, replicas)`.

    Returns:
        For each place the number of the row that belongs there.
    """
    counts = rows.ravel()
    starts = (np.cumsum(counts) - counts).reshape(rows.shape)
    places = [
        np.arange(start, start + count)
        for start, count in zip(starts.T.ravel(), rows.T.ravel(), strict=True)
    ]
    return np.argsort(np.concatenate(places))
