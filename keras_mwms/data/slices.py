"""Which rows of a global batch belong to which replica."""

import numpy as np


def slice_of(rows: int, replicas: int, replica: int) -> slice:
    """The rows of a global batch that one replica takes.

    As `tf.distribute` rebatches: each replica in turn takes
    `ceil(rows / replicas)` rows until none are left.

    Args:
        rows: number of rows of the global batch.
        replicas: number of replicas.
        replica: rank of the replica.

    Returns:
        A slice within `0..rows`, empty when nothing is left for the replica.

    Example:
        >>> [slice_of(5, 2, r) for r in range(2)]
        [slice(0, 3, None), slice(3, 5, None)]
        >>> slice_of(4, 3, 2)
        slice(4, 4, None)
    """
    each = -(-rows // replicas)
    start = min(replica * each, rows)
    return slice(start, min(start + each, rows))


def rows_of(rows: int, replicas: int) -> np.ndarray:
    """How many rows of a global batch each replica takes.

    Args:
        rows: number of rows of the global batch.
        replicas: number of replicas.

    Returns:
        int32 of shape `(replicas,)`.

    Example:
        >>> rows_of(4, 3).tolist()
        [2, 2, 0]
    """
    parts = [slice_of(rows, replicas, r) for r in range(replicas)]
    return np.array([part.stop - part.start for part in parts], np.int32)


def leaves_someone_empty(rows: int, batch_size: int, replicas: int) -> bool:
    """Whether some replica has no rows in some step of an epoch.

    Args:
        rows: number of rows of the data.
        batch_size: the global batch size.
        replicas: number of replicas.

    Returns:
        True if so.
    """
    kinds = {min(batch_size, rows), rows % batch_size or batch_size}
    return any(rows_of(kind, replicas)[-1] == 0 for kind in kinds)
