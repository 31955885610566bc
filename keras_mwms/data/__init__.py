"""What each replica reads: shards and slices of the user's data."""

from typing import Any

import keras

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.data.arrays import ShardedArrays


def shard(
    ring: Collectives,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    with_share: bool = True,
    **options: Any,
) -> Any:
    """Makes the adapter that feeds a replica with its part of the data.

    Args:
        ring: the collectives; every replica calls.
        x: data as `fit` takes it.
        y: targets likewise.
        sample_weight: weights likewise.
        with_share: whether batches come with the replica's share, as `fit`
            and `evaluate` need them.
        **options: `batch_size`, `steps`, `shuffle` and `class_weight`, as
            `fit` takes them.

    Returns:
        A Keras data adapter.

    Raises:
        TypeError: the data is of a kind that cannot be split here.
    """
    if isinstance(x, ShardedArrays):
        return x
    if _keras.can_convert_arrays((x, y, sample_weight)):
        return ShardedArrays(
            ring, x, y, sample_weight, with_share=with_share, **options
        )
    on_tensorflow = keras.backend.backend() == "tensorflow"
    if on_tensorflow and with_share and _keras.is_tf_dataset(x):
        from keras_mwms.data import tf_data

        return tf_data.ShardedDataset(
            ring, _keras.data_adapter(x, y, sample_weight, **options)
        )
    raise TypeError(
        "On several replicas the data must be arrays (NumPy arrays, pandas "
        "frames, tensors, or dictionaries, tuples and lists of them) or, for "
        "fit and evaluate on TensorFlow, a tf.data.Dataset. Turn the data "
        f"into arrays, or run in a world of one. Received: x of type "
        f"{type(x).__module__}.{type(x).__qualname__}"
    )
