"""A bounded store of small values, which Horovod's members fill and read."""

import threading


class StoreFullError(RuntimeError):
    """A value does not fit: there are too many, or it is too large."""


class Store:
    """Keys and values in memory. Safe to use from many threads.

    Args:
        most_keys: how many keys fit.
        most_bytes: how large one value may be.
    """

    def __init__(self, most_keys: int, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._most_keys = most_keys
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], bytes] = {}

    @classmethod
    def for_members(cls, size: int) -> "Store":
        """A store large enough for Horovod's start with `size` members.

        Each of its rendezvous (global, host, across hosts, process sets)
        writes two keys a member; a value holds some 150 bytes a member.
        """
        return cls(most_keys=1024 + 64 * size, most_bytes=65536 + 512 * size)

    def put(self, scope: str, key: str, value: bytes) -> None:
        """Stores a value, in place of an older one.

        Raises:
            StoreFullError: it does not fit.
        """
        with self._lock:
            full = len(self._values) >= self._most_keys
            if len(value) > self.most_bytes or (
                full and (scope, key) not in self._values
            ):
                raise StoreFullError
            self._values[scope, key] = value

    def get(self, scope: str, key: str) -> bytes | None:
        """The value, or `None`."""
        with self._lock:
            return self._values.get((scope, key))

    def delete(self, scope: str, key: str) -> None:
        """Forgets a value, if it is there."""
        with self._lock:
            self._values.pop((scope, key), None)
