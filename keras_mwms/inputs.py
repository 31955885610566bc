"""Input for `fit` and for training loops of your own, as in `tf.distribute`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from keras_mwms import world
from keras_mwms.data.distributed import DistributedDataset


@dataclasses.dataclass(frozen=True)
class InputContext:
    """Which part of the input a replica makes: what a `dataset_fn` is told.

    Attributes:
        num_input_pipelines: how many input pipelines there are: one a
            replica.
        input_pipeline_id: the number of this one, the replica's rank.
        num_replicas_in_sync: the number of replicas.

    Example:
        >>> import keras_mwms
        >>> keras_mwms.InputContext(2, 1, 2).get_per_replica_batch_size(64)
        32
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """The rows that each replica takes of a global batch.

        Args:
            global_batch_size: rows of a step on all replicas together.

        Returns:
            The rows of one replica.

        Raises:
            ValueError: the replicas cannot share them equally.
        """
        if global_batch_size % self.num_replicas_in_sync:
            raise ValueError(
                "The global batch size must be a multiple of the number of "
                "replicas. Received: "
                f"global_batch_size={global_batch_size} for "
                f"{self.num_replicas_in_sync} replicas"
            )
        return global_batch_size // self.num_replicas_in_sync


def distribute_datasets_from_function(
    dataset_fn: Callable[[InputContext], Any], options: Any = None
) -> DistributedDataset:
    """Distributes datasets that each replica makes for itself.

    Every replica calls it, and starts its ring if that does not run yet. The
    batches that a replica makes are its part of the steps, as they are: batch
    by the size of the replica's part, and choose its rows. Where one replica
    has fewer batches the others go on.

    Args:
        dataset_fn: gets an `InputContext` and returns data of any kind that
            `fit` takes: a `tf.data.Dataset`, a generator, a `PyDataset`, a
            `DataLoader`, a Grain dataset, or arrays, `x` or `(x, y)`, which
            come in batches of 32. A policy in their options does not count.
        options: a `tf.distribute.InputOptions`, or None. It says how data
            get to the many devices of a process; here a process has one, so
            it changes nothing.

    Returns:
        A `DistributedDataset`: `fit`, `evaluate` and `predict` take it, a
        loop can iterate over it, and it has an `element_spec`. `fit` does
        not shuffle it, and takes no `class_weight` beside it.

    Raises:
        TypeError: `dataset_fn` is not a function, or what it returned is
            distributed already.
        ValueError: the dataset is not batched.

    Example:
        >>> import keras_mwms
        >>> import numpy as np
        >>> def batches(context):
        ...     size = context.get_per_replica_batch_size(4)
        ...     rows = np.arange(8.0).reshape(8, 1)
        ...     mine = rows[
        ...         context.input_pipeline_id :: context.num_input_pipelines
        ...     ]
        ...     for start in range(0, len(mine), size):
        ...         yield (mine[start : start + size],)
        >>> dataset = keras_mwms.distribute_datasets_from_function(batches)
        >>> for (x,) in dataset:
        ...     print(x.shape[0])
        4
        4
    """
    if not callable(dataset_fn):
        raise TypeError(
            "dataset_fn must be a function of an InputContext that returns "
            f"data. Received: {dataset_fn!r} of type "
            f"{type(dataset_fn).__name__}"
        )
    del options  # See above.
    ring = world.join().ring
    data = dataset_fn(InputContext(ring.size, ring.rank, ring.size))
    _refuse_distributed(data)
    return DistributedDataset(ring, data, is_own=True)


def experimental_distribute_dataset(
    dataset: Any, options: Any = None
) -> DistributedDataset:
    """Splits a dataset of global batches between the replicas.

    Every replica calls it with the same data, and starts its ring if that
    does not run yet. The data are split as `fit` splits them, by the policy
    `AUTO` or by that of the dataset's own `tf.data.Options`.

    Args:
        dataset: data of any kind that `fit` takes, batched by the global
            batch size: a `tf.data.Dataset`, a generator, a `PyDataset`, a
            `DataLoader`, a Grain dataset. Arrays, `x` or `(x, y)`, come in
            global batches of 32: see `experimental_make_numpy_dataset` for
            others.
        options: as in `distribute_datasets_from_function`.

    Returns:
        A `DistributedDataset`, as `distribute_datasets_from_function` does.

    Raises:
        TypeError: `dataset` is distributed already.
        ValueError: the dataset is not batched.

    Example:
        >>> import keras_mwms
        >>> import numpy as np
        >>> rows = keras_mwms.experimental_make_numpy_dataset(
        ...     (np.zeros((6, 2)), np.zeros(6))
        ... )
        >>> dataset = keras_mwms.experimental_distribute_dataset(rows.batch(4))
        >>> for x, y in dataset:
        ...     print(tuple(x.shape), tuple(y.shape))
        (4, 2) (4,)
        (2, 2) (2,)
    """
    del options  # See above.
    _refuse_distributed(dataset)
    return DistributedDataset(world.join().ring, dataset, is_own=False)


def experimental_make_numpy_dataset(numpy_input: Any) -> Any:
    """Makes a dataset of the rows of arrays. Batch it before it is used.

    Args:
        numpy_input: an array, or a structure (tuples, dictionaries) of
            arrays, with the same number of rows. A list is one array.

    Returns:
        On TensorFlow a `tf.data.Dataset`, as `from_tensor_slices` makes it.
        On other backends an object with `shuffle(buffer_size, seed=None)` and
        `batch(batch_size, drop_remainder=False)`, see
        `keras_mwms.data.rows.Rows`; what `batch` returns can be distributed,
        or given to `fit`.

    Raises:
        ValueError: the arrays have no rows, or different numbers of rows.

    Example:
        >>> import keras_mwms
        >>> import numpy as np
        >>> rows = keras_mwms.experimental_make_numpy_dataset(np.arange(10.0))
        >>> len(rows), len(list(rows.batch(4)))
        (10, 3)
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices(numpy_input)
    from keras_mwms.data.rows import Rows

    return Rows(numpy_input)


def _refuse_distributed(data: Any) -> None:
    if isinstance(data, DistributedDataset):
        raise TypeError(
            "The data are distributed already: use them as they are. "
            f"Received: {data!r}"
        )
