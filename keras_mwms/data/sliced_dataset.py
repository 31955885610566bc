"""`tf.data` on TensorFlow, where all replicas know the number of steps."""

from typing import Any

import keras
import tensorflow as tf

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.data.batches import SparseShard
from keras_mwms.data.source import Sliced


class SlicedDataset(_keras.DataAdapter):  # type: ignore[misc]
    """Feeds `fit` and `evaluate` with slices, cut by TensorFlow itself.

    Args:
        ring: the collectives; every replica makes one.
        source: slices of the batches of a `tf.data.Dataset`.
    """

    def __init__(self, ring: Collectives, source: Sliced):
        self._source = source
        dataset = source.batches.dataset  # type: ignore[attr-defined]
        self._dataset = dataset.map(
            lambda *batch: _slice(
                batch[0] if len(batch) == 1 else batch, ring.size, ring.rank
            ),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        ).prefetch(tf.data.AUTOTUNE)

    @property
    def num_batches(self) -> int | None:
        """Number of global batches, `None` if it is not known."""
        return self._source.num_batches

    @property
    def batch_size(self) -> int | None:
        """The global batch size, `None` if it is not known."""
        return self._source.batch_size

    @property
    def has_partial_batch(self) -> bool | None:
        """Not known."""
        return None

    @property
    def partial_batch_size(self) -> int | None:
        """Not known."""
        return None

    def sample(self) -> Any:
        """A symbolic batch, to build a model with."""
        return self._source.example()

    def peek(self) -> Any:
        """A symbolic batch, to build a model with."""
        return self._source.example()

    def get_tf_dataset(self) -> tf.data.Dataset:
        """The dataset of this replica's slices."""
        return self._dataset


def _slice(batch: Any, size: int, rank: int) -> SparseShard:
    leaves = [x for x in keras.tree.flatten(batch) if x is not None]
    total = _rows(leaves[0])
    for leaf in leaves[1:]:
        tf.debugging.assert_equal(
            _rows(leaf),
            total,
            "The arrays of a batch must have the same number of rows, on "
            "their first axis. Batch the data by the global batch size.",
        )
    each = -(-total // size)
    starts = tf.minimum(tf.range(size) * each, total)
    rows = tf.minimum(starts + each, total) - starts
    # The first row stands in where the replica has none.
    start = tf.where(rows[rank] > 0, starts[rank], 0)
    stop = start + tf.maximum(rows[rank], tf.minimum(total, 1))
    data = keras.tree.map_structure(
        lambda x: None if x is None else take(x, start, stop), batch
    )
    return SparseShard(data, rows)


def _rows(leaf: Any) -> Any:
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int32)
    return tf.shape(leaf)[0]


def take(leaf: Any, start: Any, stop: Any) -> Any:
    """Some rows of a tensor, dense, sparse or ragged, also in a graph."""
    if isinstance(leaf, tf.SparseTensor):
        # TensorFlow cuts a tensor that it does not know the shape of by the
        # rows of its entries.
        shape = leaf.dense_shape
        begin = tf.concat([[tf.cast(start, tf.int64)], shape[1:] * 0], 0)
        size = tf.concat([[tf.cast(stop - start, tf.int64)], shape[1:]], 0)
        return tf.sparse.slice(leaf, begin, size)
    return leaf[start:stop]
