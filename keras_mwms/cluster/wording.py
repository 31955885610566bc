"""How errors about the cluster are worded."""

import reprlib

from keras_mwms.errors import ClusterConfigError

_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 6
_SHORT.maxstring = _SHORT.maxother = 120
_SHORT.maxlong = 40


def quote(value: object) -> str:
    """Quotes any value on one line, shortened when it is long or deep."""
    return _SHORT.repr(value)


def config_error(wrong: str, received: str, advice: str) -> ClusterConfigError:
    """Makes the error from its three parts.

    Args:
        wrong: the sentence that says what is wrong.
        received: the bad part, quoted, without a full stop.
        advice: the sentence that says what to do.

    Returns:
        The error, to be raised.
    """
    return ClusterConfigError(f"{wrong} Received: {received}. {advice}")
