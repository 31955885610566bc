"""Iterators of a distributed dataset that TensorFlow's graphs can use."""

from collections.abc import Iterator
from typing import TYPE_CHECKING
from typing import Any

import tensorflow as tf

from keras_mwms.data.sliced_dataset import SlicedDataset
from keras_mwms.data.sliced_dataset import take

if TYPE_CHECKING:
    from keras_mwms.data.distributed import DistributedDataset


def iterator(dataset: "DistributedDataset") -> Iterator[Any]:
    """Starts a pass. Every replica calls.

    Args:
        dataset: the dataset.

    Returns:
        An iterator of `tf.data`.

    Raises:
        RuntimeError: it is called in a graph.
    """
    if not tf.executing_eagerly():
        raise RuntimeError(
            "A distributed dataset is iterated over outside of tf.function. "
            "Make the iterator there, iterator = iter(dataset), pass it to "
            "the function and use next(iterator) in it. Received: a loop over "
            "the dataset itself in a tf.function"
        )
    is_alone, x = dataset.is_alone, dataset.data[0]
    if is_alone and isinstance(x, tf.data.Dataset):
        return iter(x)
    if not is_alone and isinstance(dataset.adapter(), SlicedDataset):
        return iter(_own_rows(dataset))
    # Each pass has exchanges of its own, and so a dataset of its own.
    steps = tf.data.Dataset.from_generator(
        dataset.start(), output_signature=dataset.spec_of_all()
    )
    options = tf.data.Options()
    # No reading ahead: replicas would not have read the same steps when a
    # loop breaks off, and wait.
    options.experimental_optimization.inject_prefetch = False
    return iter(steps.with_options(options))


def spec_of(batches: list[Any]) -> Any:
    """The type of batches of tensors, of any number of rows."""
    types = [
        tf.nest.map_structure(tf.type_spec_from_value, batch)
        for batch in batches
    ]
    return any_rows(
        tf.nest.map_structure(
            lambda first, *rest: first.most_specific_common_supertype(rest),
            *types,
        )
    )


def any_rows(spec: Any) -> Any:
    """A structure of types with the size of the batch axis left open."""
    return tf.nest.map_structure(_any_rows, spec)


def _any_rows(spec: Any) -> Any:
    if spec.shape.rank is None:
        return spec
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(
            shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype
        )
    return type(spec)(shape, spec.dtype)


def _own_rows(dataset: "DistributedDataset") -> tf.data.Dataset:
    """The slices without the rows that stand in where there are none."""

    def own(shard: Any) -> Any:
        rows = shard.rows[dataset.rank]
        return tf.nest.map_structure(lambda x: take(x, 0, rows), shard.data)

    return dataset.adapter().get_tf_dataset().map(own)
