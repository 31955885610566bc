"""Which adapter feeds a replica from which kind of data."""

import itertools
import warnings
from typing import Any
from typing import TypeGuard

import keras

from keras_mwms.collectives import Collectives
from keras_mwms.data import sources
from keras_mwms.data.arrays import ShardedArrays
from keras_mwms.data.policy import AutoShardPolicy
from keras_mwms.data.source import Sliced
from keras_mwms.data.source import Source
from keras_mwms.data.stream import ShardedStream

# Names on the wire: enough that none is still in use when it comes again.
_CHANNELS = 64
_numbers = itertools.count()


def shard(
    ring: Collectives,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    policy: AutoShardPolicy = AutoShardPolicy.AUTO,
    with_share: bool = True,
    steps: int | None = None,
    epochs: int = 1,
    steps_per_execution: int = 1,
    **options: Any,
) -> Any:
    """Makes the adapter that feeds a replica with its part of the data.

    Args:
        ring: the collectives; every replica calls.
        x: data as `fit` takes it.
        y: targets likewise.
        sample_weight: weights likewise.
        policy: how data are split that do not say so themselves.
        with_share: whether batches come with the replica's share, as `fit`
            and `evaluate` need them. Without, the rows of all replicas are
            those of one process in its order.
        steps: steps of an epoch, `None` for as many as there are.
        epochs: number of epochs for which the steps go on in one pass.
        steps_per_execution: how many steps Keras takes at a time.
        **options: `batch_size`, `shuffle` and `class_weight`, as `fit` takes
            them.

    Returns:
        A Keras data adapter.

    Raises:
        ValueError: the data cannot be split so, or the replicas have
            different ones, or their end is not known.
    """
    if isinstance(x, ShardedArrays | ShardedStream):
        return x
    if sources.are_split_arrays((x, y, sample_weight), policy):
        arrays = ShardedArrays(
            ring,
            x,
            y,
            sample_weight,
            with_share=with_share,
            steps=steps,
            **options,
        )
        words = f"arrays in {arrays.num_batches} batches of "
        _agree(ring, f"{words}{arrays.batch_size}", None)
        return arrays
    with warnings.catch_warnings():
        if ring.rank:
            # The chief has told it.
            warnings.simplefilter("ignore")
        source, kind = sources.source_of(
            ring,
            x,
            y,
            sample_weight,
            policy=policy,
            steps=steps,
            in_order=not with_share,
            **options,
        )
    if source.is_endless and steps is None:
        raise ValueError(
            f"The data, {kind}, have no end. Say how many steps an epoch has: "
            "pass steps_per_epoch to fit, validation_steps for validation "
            "data, steps to evaluate and predict. Received: no number of steps"
        )
    channel, num_batches = _agree(ring, _words(source, kind), source)
    if with_share and _is_for_tensorflow(source, kind):
        from keras_mwms.data import sliced_dataset

        return sliced_dataset.SlicedDataset(ring, source)
    return ShardedStream(
        ring,
        channel,
        source,
        num_batches=num_batches,
        with_share=with_share,
        limit=None if steps is None else steps * epochs,
        spans_passes=epochs > 1,
        steps_per_execution=steps_per_execution,
    )


def _words(source: Source, kind: str) -> str:
    """What must be the same on all replicas."""
    if source.is_known and source.num_batches is not None:
        return f"{kind} of {source.num_batches} batches"
    return kind


def _agree(
    ring: Collectives, words: str, source: Source | None
) -> tuple[str, int | None]:
    """Compares what kinds of data the replicas have.

    Args:
        ring: the collectives; every replica calls.
        words: what must be the same.
        source: this replica's part, if it is a `Source`.

    Returns:
        `(channel, num_batches)`: a name for exchanges, and the number of
        steps that Keras is told.

    Raises:
        ValueError: on every replica, if they differ.
    """
    mine = [words, next(_numbers), source and source.num_batches]
    of_all = ring.gather_values(mine)
    if len({theirs[0] for theirs in of_all}) > 1:
        raise ValueError(
            "The replicas must be given the same data: each takes its part of "
            "them. If each has data of its own, pass auto_shard_policy='OFF' "
            "to distribute(). Received, in rank order: "
            f"{'; '.join(theirs[0] for theirs in of_all)}"
        )
    numbers = [theirs[2] for theirs in of_all]
    return (
        f"data.{max(theirs[1] for theirs in of_all) % _CHANNELS}",
        None if None in numbers else max(numbers),
    )


def _is_for_tensorflow(source: Source, kind: str) -> TypeGuard[Sliced]:
    """Whether TensorFlow can slice the batches in its own pipeline."""
    return (
        keras.backend.backend() == "tensorflow"
        and kind == sources.TF_DATASET
        and isinstance(source, Sliced)
        and source.is_known
    )
