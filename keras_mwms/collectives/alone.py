"""The collectives of a world of one: nothing to do, no Horovod."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_mwms.collectives.base import Collectives
from keras_mwms.collectives.base import Done


class AloneCollectives(Collectives):
    """A ring with a single replica."""

    rank = 0
    size = 1

    def start_all_reduce(self, tensors: Sequence[Any], name: str) -> Done:
        """Returns the tensors: a sum over one replica."""
        return Done(list(tensors))

    def broadcast(
        self, tensors: Sequence[Any], name: str, root: int = 0
    ) -> list[Any]:
        """Returns the tensors."""
        return list(tensors)

    def all_gather(self, tensor: Any, name: str) -> Any:
        """Returns the tensor, a scalar as one row."""
        return tensor if len(tensor.shape) else keras.ops.reshape(tensor, (1,))

    def to_host(self, tensor: Any) -> np.ndarray:
        """Returns the array: the host's values stay NumPy arrays."""
        return np.asarray(tensor)

    def from_host(self, array: np.ndarray) -> np.ndarray:
        """Returns the array."""
        return array
