"""`tf.data` on TensorFlow: each replica takes its slice of every batch.

Every replica runs the whole pipeline (the DATA policy of `tf.distribute`),
which must give the same batches on all.
"""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.data.batches import SparseShard

_Policy = tf.data.experimental.AutoShardPolicy


class ShardedDataset(_keras.DataAdapter):  # type: ignore[misc]
    """Feeds `fit` and `evaluate` with slices of a dataset's batches.

    Args:
        ring: the collectives; every replica makes one.
        adapter: Keras's own adapter for the dataset.

    Raises:
        ValueError: the dataset is not batched, asks for another policy, or
            shuffles differently on different replicas.
    """

    def __init__(self, ring: Collectives, adapter: Any):
        self._adapter = adapter
        dataset = adapter.get_tf_dataset()
        _check_policy(dataset)
        _check_batched(dataset)
        _check_shuffles(ring, dataset)
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
        return self._adapter.num_batches  # type: ignore[no-any-return]

    @property
    def batch_size(self) -> int | None:
        """The global batch size, `None` if it is not known."""
        return self._adapter.batch_size  # type: ignore[no-any-return]

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
        spec = self._adapter.get_tf_dataset().element_spec
        return keras.tree.map_structure(
            lambda s: keras.KerasTensor(tuple(s.shape), s.dtype.name), spec
        )

    def get_tf_dataset(self) -> tf.data.Dataset:
        """The dataset of this replica's slices."""
        return self._dataset


def _slice(batch: Any, size: int, rank: int) -> SparseShard:
    leaves = [x for x in keras.tree.flatten(batch) if x is not None]
    total = tf.shape(leaves[0])[0]
    each = -(-total // size)
    starts = tf.minimum(tf.range(size) * each, total)
    rows = tf.minimum(starts + each, total) - starts
    # The first row stands in where the replica has none.
    start = tf.where(rows[rank] > 0, starts[rank], 0)
    stop = start + tf.maximum(rows[rank], tf.minimum(total, 1))
    data = keras.tree.map_structure(lambda x: x[start:stop], batch)
    return SparseShard(data, rows)


def _check_policy(dataset: tf.data.Dataset) -> None:
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy not in (_Policy.AUTO, _Policy.DATA):
        raise ValueError(
            "A tf.data.Dataset is split here by slicing its batches, the "
            "DATA policy. Set auto_shard_policy to DATA or AUTO. "
            f"Received: {policy}"
        )


def _check_batched(dataset: tf.data.Dataset) -> None:
    for spec in keras.tree.flatten(dataset.element_spec):
        if spec.shape.rank == 0:
            raise ValueError(
                "The dataset is not batched. Batch it by the global batch "
                "size: dataset.batch(batch_size). "
                f"Received: elements of {dataset.element_spec}"
            )


def _check_shuffles(ring: Collectives, dataset: tf.data.Dataset) -> None:
    """A shuffle must give the same order on every replica."""
    seeds = [list(pair) for pair in _shuffle_seeds(dataset)]
    of_all = ring.gather_values(seeds)
    if [0, 0] in seeds or any(other != seeds for other in of_all):
        raise ValueError(
            "The dataset is shuffled differently on different replicas, so "
            "that rows would be left out and others seen twice. Give "
            "shuffle() a seed, or call keras.utils.set_random_seed() with "
            "the same number on all before the dataset is made. Received: "
            f"shuffles with seeds {seeds} on rank {ring.rank}"
        )


def _shuffle_seeds(dataset: tf.data.Dataset) -> Iterator[tuple[int, int]]:
    """The seeds of all shuffles of a pipeline, `(0, 0)` for none."""
    for source in dataset._inputs():
        yield from _shuffle_seeds(source)
    if hasattr(dataset, "_seed") and hasattr(dataset, "_seed2"):
        yield int(dataset._seed), int(dataset._seed2)
