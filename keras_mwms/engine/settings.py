"""How long to wait, from the environment."""

import dataclasses
import math
import os
from collections.abc import Mapping

from keras_mwms.errors import ClusterConfigError

START_TIMEOUT = "KERAS_MWMS_START_TIMEOUT"
TIMEOUT = "KERAS_MWMS_TIMEOUT"

# Gloo counts milliseconds in 32 bits in places: 23 days still fit.
_LONGEST = 2_000_000.0


@dataclasses.dataclass(frozen=True)
class Settings:
    """The two deadlines, in seconds.

    Attributes:
        start_timeout: for the arrival of all members.
        timeout: for one collective operation, once the ring runs.
    """

    start_timeout: float = 300.0
    timeout: float = 600.0

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] = os.environ
    ) -> "Settings":
        """Reads `KERAS_MWMS_START_TIMEOUT` and `KERAS_MWMS_TIMEOUT`.

        Args:
            environment: the variables to read.

        Returns:
            The settings, with the defaults for variables that are not set
            or empty.

        Raises:
            ClusterConfigError: a value is not a number of seconds above 0
                and up to 2000000 (23 days).

        Example:
        >>> Settings.from_environment({"KERAS_MWMS_TIMEOUT": "90"}).timeout
        90.0
        """
        return cls(
            start_timeout=_seconds(
                environment, START_TIMEOUT, cls.start_timeout
            ),
            timeout=_seconds(environment, TIMEOUT, cls.timeout),
        )


def _seconds(
    environment: Mapping[str, str], name: str, default: float
) -> float:
    text = environment.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= _LONGEST:
        raise ClusterConfigError(
            f"{name} must be a number of seconds above 0 and up to "
            f"{_LONGEST:.0f}. Received: {name}={text!r}"
        )
    return value
