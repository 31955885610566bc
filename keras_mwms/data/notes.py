"""What users should know of how their data are split, told once."""

import contextlib
import warnings
from collections.abc import Iterator

from keras_mwms.collectives import Collectives

_told: set[str] = set()


def tell(ring: Collectives, text: str) -> None:
    """Warns on the chief, once in a process.

    Args:
        ring: the collectives.
        text: one line.
    """
    if ring.rank == 0 and text not in _told:
        _told.add(text)
        warnings.warn(text, stacklevel=2)


@contextlib.contextmanager
def quiet_unless_chief(ring: Collectives) -> Iterator[None]:
    """Hears Keras's warning that data ran out from the chief alone."""
    if ring.rank == 0:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data")
        yield
