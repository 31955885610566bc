"""All-reduce, broadcast, gather and barrier on the backend's tensors.

One small interface (`base.Collectives`), one file a backend, and the world
of one, which needs no Horovod.
"""

import importlib

from keras_mwms.collectives.alone import AloneCollectives
from keras_mwms.collectives.base import Collectives

_CLASSES = {
    "jax": "JaxCollectives",
    "tensorflow": "TensorFlowCollectives",
    "torch": "TorchCollectives",
}


def for_backend(backend: str) -> Collectives:
    """Makes the collectives of a backend whose Horovod is initialized.

    Args:
        backend: `"tensorflow"`, `"torch"` or `"jax"`.

    Returns:
        The `Collectives` of that backend.
    """
    module = importlib.import_module(f"keras_mwms.collectives.{backend}")
    collectives: Collectives = getattr(module, _CLASSES[backend])()
    return collectives


__all__ = ["AloneCollectives", "Collectives", "for_backend"]
