"""Sends a row of one replica to another that has none."""

import pickle
from typing import Any

import keras

from keras_mwms import _keras
from keras_mwms.data import feeding


def packed(row: Any) -> bytes:
    """A batch of one row as bytes.

    Args:
        row: a structure of arrays of any framework.

    Returns:
        Bytes for `unpacked`.
    """
    return pickle.dumps(
        keras.tree.map_structure(
            lambda leaf: None if leaf is None else _Leaf(leaf),
            feeding.to_numpy(row),
        )
    )


def unpacked(data: bytes) -> Any:
    """The batch that another replica of this ring has `packed`."""
    return keras.tree.map_structure(
        lambda leaf: leaf.array() if isinstance(leaf, _Leaf) else leaf,
        pickle.loads(data),
    )


class _Leaf:
    """An array; of what TensorFlow has sparse or ragged, its parts."""

    def __init__(self, array: Any):
        self._spec: Any = None
        self._parts = [array]
        if _keras.is_tf_composite(array):
            import tensorflow as tf

            self._spec = tf.type_spec_from_value(array)
            parts = tf.nest.flatten(array, expand_composites=True)
            self._parts = [part.numpy() for part in parts]

    def array(self) -> Any:
        """The array, or the sparse or ragged tensor."""
        if self._spec is None:
            return self._parts[0]
        import tensorflow as tf

        return tf.nest.pack_sequence_as(
            self._spec,
            [tf.constant(part) for part in self._parts],
            expand_composites=True,
        )
