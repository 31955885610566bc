"""What users should know of how their data are split, told once."""

import warnings

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
