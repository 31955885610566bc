"""Synchronous data-parallel training on several workers for Keras 3.

Names are imported when they are first used: `keras_mwms.cluster` and the
console script need no framework.
"""

import importlib
from typing import TYPE_CHECKING
from typing import Any

from keras_mwms import synchronized as _synchronized
from keras_mwms.errors import ClusterConfigError
from keras_mwms.errors import HorovodMissingError
from keras_mwms.errors import OutOfSyncError
from keras_mwms.errors import StartError
from keras_mwms.errors import StartTimeoutError
from keras_mwms.errors import WorkerLostError
from keras_mwms.version import __version__

if TYPE_CHECKING:
    from keras_mwms.data.policy import AutoShardPolicy
    from keras_mwms.entry import check_in_sync
    from keras_mwms.entry import distribute
    from keras_mwms.inputs import InputContext
    from keras_mwms.inputs import distribute_datasets_from_function
    from keras_mwms.inputs import experimental_distribute_dataset
    from keras_mwms.inputs import experimental_make_numpy_dataset
    from keras_mwms.world import barrier
    from keras_mwms.world import broadcast_object
    from keras_mwms.world import is_chief
    from keras_mwms.world import local_rank
    from keras_mwms.world import rank
    from keras_mwms.world import world_size

_HOMES = {
    "AutoShardPolicy": "keras_mwms.data.policy",
    "distribute": "keras_mwms.entry",
    "check_in_sync": "keras_mwms.entry",
    "InputContext": "keras_mwms.inputs",
    "distribute_datasets_from_function": "keras_mwms.inputs",
    "experimental_distribute_dataset": "keras_mwms.inputs",
    "experimental_make_numpy_dataset": "keras_mwms.inputs",
    "barrier": "keras_mwms.world",
    "broadcast_object": "keras_mwms.world",
    "is_chief": "keras_mwms.world",
    "local_rank": "keras_mwms.world",
    "rank": "keras_mwms.world",
    "world_size": "keras_mwms.world",
}

__all__ = [
    "AutoShardPolicy",
    "distribute",
    "check_in_sync",
    "InputContext",
    "distribute_datasets_from_function",
    "experimental_distribute_dataset",
    "experimental_make_numpy_dataset",
    "rank",
    "world_size",
    "local_rank",
    "is_chief",
    "barrier",
    "broadcast_object",
    "ClusterConfigError",
    "HorovodMissingError",
    "OutOfSyncError",
    "StartError",
    "StartTimeoutError",
    "WorkerLostError",
    "__version__",
]

_synchronized.install()


def __getattr__(name: str) -> Any:
    """Imports a public name from its home."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "cluster":
        return importlib.import_module("keras_mwms.cluster")
    raise AttributeError(f"module 'keras_mwms' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted({*__all__, "cluster"})
