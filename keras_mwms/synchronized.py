"""Lets `BatchNormalization(synchronized=True)` be made on every backend.

Keras refuses it on PyTorch and JAX. The class stays the one it is, so that
what is saved names nothing of this package. What such a layer computes is in
`training/normalization.py`.

Loaded with the package, before there is a framework: nothing here may import
Keras before it is there.
"""

import functools
import inspect
from types import ModuleType
from typing import Any

from keras_mwms._on_import import when_imported


def install() -> None:
    """Adapts the layer once Keras is loaded, or now if it is."""
    when_imported("keras.layers", _adapt)


def _adapt(layers: ModuleType) -> None:
    cls = layers.BatchNormalization
    original = cls.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        try:
            given = signature.bind(self, *args, **kwargs)
        except TypeError:
            original(self, *args, **kwargs)  # Which says what is wrong.
            raise
        synchronized = given.arguments.get("synchronized", False)
        if not synchronized:
            original(self, *args, **kwargs)
            return
        from keras_mwms.training import normalization

        normalization.enable()
        given.arguments["synchronized"] = False
        original(*given.args, **given.kwargs)
        self.synchronized = synchronized

    # Keras reads it by `inspect.getfullargspec`, which follows no wrappers.
    vars(__init__)["__signature__"] = signature
    cls.__init__ = __init__
