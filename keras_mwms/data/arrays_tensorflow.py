"""A replica's batches as `tf.data`, which Keras's TensorFlow trainer wants."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_mwms import _keras
from keras_mwms.data import taking

if TYPE_CHECKING:
    from keras_mwms.data.arrays import ShardedArrays


class EpochDatasets:
    """Looks like a dataset to Keras: each `iter` starts an epoch.

    The order of an epoch is agreed on in the thread that calls `iter`, not in
    the threads of `tf.data`. Keras starts epochs that it never reads: their
    order is kept for the next.
    """

    def __init__(self, adapter: "ShardedArrays"):
        self._adapter = adapter
        self._batches: Iterator[np.ndarray] = iter(())
        self._started = True
        # tf.data would make tensors of lists.
        example = keras.tree.lists_to_tuples(
            adapter.local_batch(np.arange(adapter.first_batch), _to_tf_data)
        )
        # As with Keras's own, a batch has a static size if all have the same.
        is_static = adapter.num_batches == 1 or not adapter.has_partial_batch
        leaves = _leaves(example)
        self._dataset = tf.data.Dataset.from_generator(
            self._rows,
            output_signature=tuple(_spec(leaf, is_static) for leaf in leaves),
        ).map(lambda *flat: _rebuild(example, list(flat)))
        # Left to itself, tf.data may hold any number of batches.
        self._dataset = self._dataset.prefetch(2)

    def __iter__(self) -> Any:
        if self._started:
            self._started = False
            batches = self._adapter.start_epoch()
            self._batches = itertools.chain([next(batches)], batches)
        return iter(self._dataset)

    @property
    def element_spec(self) -> Any:
        """The type of a batch."""
        return self._dataset.element_spec

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        self._started = True
        for batch in self._batches:
            yield tuple(_leaves(self._adapter.local_batch(batch, _to_tf_data)))


def _to_tf_data(sliceable: Any, part: Any) -> Any:
    """Makes of rows what Keras gives to steps: sparse and ragged stay so."""
    if isinstance(part, tf.SparseTensor | tf.RaggedTensor):
        return part
    if _keras.is_scipy_sparse(part):
        return _keras.scipy_to_tf(part)
    return taking.to_numpy(sliceable, part)


def _leaves(batch: Any) -> list[Any]:
    return [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]


def _spec(leaf: Any, is_static: bool) -> tf.TypeSpec:
    if isinstance(leaf, tf.RaggedTensor):
        return tf.RaggedTensorSpec(
            (None, *leaf.shape[1:]),
            leaf.dtype,
            leaf.ragged_rank,
            leaf.row_splits.dtype,
        )
    is_sparse = isinstance(leaf, tf.SparseTensor)
    tensor = leaf if is_sparse else tf.convert_to_tensor(leaf)
    shape = tensor.shape
    if shape.rank and not is_static:
        shape = (None, *shape[1:])
    kind = tf.SparseTensorSpec if is_sparse else tf.TensorSpec
    return kind(shape, tensor.dtype)


def _rebuild(example: Any, flat: list[Any]) -> Any:
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else flat.pop(0), example
    )
