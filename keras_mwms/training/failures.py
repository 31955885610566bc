"""Tells a lost replica from other errors."""

import contextlib
from collections.abc import Iterator

from keras_mwms.collectives import Collectives
from keras_mwms.errors import WorkerLostError

# How Horovod and Gloo word it, whatever the type a backend wraps it in.
_SIGNS = (
    "Horovod has been shut down",
    "closed by peer",
    "Connection reset",
    "Broken pipe",
    "Timed out waiting",
)


@contextlib.contextmanager
def told_as_lost(ring: Collectives) -> Iterator[None]:
    """Raises `WorkerLostError` where an operation failed for a lost replica.

    Args:
        ring: the collectives that are used inside.

    Raises:
        WorkerLostError: in place of the backend's own error, which is kept
            as its cause.
    """
    try:
        yield
    except WorkerLostError:
        raise
    except Exception as error:
        if not any(sign in str(error) for sign in _SIGNS):
            raise
        raise WorkerLostError(
            "Another replica ended or cannot be reached: look for the first "
            "error in the output of the others. Start all replicas again. "
            f"Received, on rank {ring.rank} of {ring.size}: {error}"
        ) from error
