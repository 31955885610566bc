"""The checks that every rank of a ring runs, by name."""

from collections.abc import Callable

SIZE = 3

# Takes the rank.
Check = Callable[[int], None]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Registers a check under its own name."""
    CHECKS[function.__name__] = function
    return function
