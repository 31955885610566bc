"""Which adapter feeds a replica from which kind of data."""

import contextlib
import itertools
import types
import warnings
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple
from typing import TypeGuard

import keras

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.data import ahead
from keras_mwms.data import sources
from keras_mwms.data.arrays import ShardedArrays
from keras_mwms.data.given import Given
from keras_mwms.data.given import Once
from keras_mwms.data.plan import Plan
from keras_mwms.data.plan import rows_of_steps
from keras_mwms.data.policy import AutoShardPolicy
from keras_mwms.data.source import Sliced
from keras_mwms.data.source import Source
from keras_mwms.data.stream import ShardedStream

# Names on the wire: enough that none is still in use when it comes again.
_CHANNELS = 64
_numbers = itertools.count()

# Rows of a batch of arrays where nobody says how many, as in Keras.
_ROWS = 32


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
    is_given: bool = False,
    needs_end: bool = True,
    **options: Any,
) -> Any:
    """Makes the adapter that feeds a replica with its part of the data.

    Args:
        ring: the collectives; every replica calls.
        x: data as `fit` takes it, or a `DistributedDataset`.
        y: targets likewise.
        sample_weight: weights likewise.
        policy: how data are split that do not say so themselves.
        with_share: whether batches come with the replica's share, as `fit`
            and `evaluate` need them. Without, the rows of all replicas are
            those of one process in its order.
        steps: steps of an epoch, `None` for as many as there are.
        epochs: number of epochs for which the steps go on in one pass.
        steps_per_execution: how many steps Keras takes at a time.
        is_given: whether this replica's batches are used as they are.
        needs_end: whether data without an end need a number of steps.
        **options: `batch_size`, `shuffle` and `class_weight`, as `fit` takes
            them.

    Returns:
        A Keras data adapter.

    Raises:
        ValueError: the data cannot be split so, or the replicas have
            different ones, or their end is not known.
        RuntimeError: another replica has raised.
    """
    if isinstance(x, ShardedArrays | ShardedStream):
        return x
    if isinstance(x, Given):
        weights = options.get("class_weight")
        x.refuse(y=y, sample_weight=sample_weight, class_weight=weights)
        return shard(
            ring,
            *x.data,
            policy=x.policy,
            with_share=with_share,
            steps=steps,
            epochs=epochs,
            steps_per_execution=steps_per_execution,
            is_given=x.is_own,
            batch_size=_ROWS,
        )
    sources.agree_on_pipelines(ring, x)
    if sources.are_split_arrays((x, y, sample_weight), policy):
        return _arrays(
            ring, x, y, sample_weight, steps, with_share=with_share, **options
        )
    generator = _generator_of(x)
    with _failure_told(ring, x), warnings.catch_warnings():
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
            is_given=is_given,
            **options,
        )
    agreed = _agree(ring, _words(source, kind), source)
    if needs_end and agreed.is_endless and steps is None:
        raise ValueError(
            f"The data, {kind}, have no end. Say how many steps an epoch has: "
            "pass steps_per_epoch to fit, validation_steps for validation "
            "data, steps to evaluate and predict. Received: no number of steps"
        )
    if with_share and _is_for_tensorflow(source, kind):
        from keras_mwms.data import sliced_dataset

        return sliced_dataset.SlicedDataset(ring, source)
    return ShardedStream(
        ring,
        agreed.channel,
        source,
        num_batches=agreed.num_batches,
        someone_has_none=agreed.someone_has_none,
        plans=agreed.plans,
        generator=generator,
        with_share=with_share,
        limit=None if steps is None else steps * epochs,
        spans_passes=epochs > 1,
        steps_per_execution=steps_per_execution,
    )


def _arrays(
    ring: Collectives,
    x: Any,
    y: Any,
    sample_weight: Any,
    steps: int | None,
    **options: Any,
) -> ShardedArrays:
    """The adapter for arrays whose rows the replicas share."""
    with _failure_told(ring, x):
        arrays = ShardedArrays(
            ring, x, y, sample_weight, steps=steps, **options
        )
    words = f"arrays in {arrays.num_batches} batches of {arrays.batch_size}"
    _agree(ring, words, None)
    return arrays


def _generator_of(x: Any) -> Any:
    """The generator that data are, not read by anybody; `None` for others."""
    generator = x.generator if isinstance(x, Once) else x
    if not isinstance(generator, types.GeneratorType):
        return None
    ahead.wait_for(generator)
    return generator


def new_channel(ring: Collectives) -> str:
    """A name for exchanges that no others have. Every replica calls."""
    return _channel(max(ring.gather_values(next(_numbers))))


def _channel(number: int) -> str:
    return f"data.{number % _CHANNELS}"


def _words(source: Source, kind: str) -> str:
    """What must be the same on all replicas."""
    if source.is_known and source.num_batches is not None:
        return f"{kind} of {source.num_batches} batches"
    return kind


@contextlib.contextmanager
def _failure_told(ring: Collectives, x: Any) -> Iterator[None]:
    """Tells the others, who wait in `_agree`, that this replica raises."""
    try:
        yield
    except Exception:
        # Pipelines of tf.data are compared on the way: they raise on all.
        if not _keras.is_tf_dataset(x):
            ring.gather_values(None)
        raise


class _Agreed(NamedTuple):
    """What the replicas know of each other's data.

    Attributes:
        channel: a name for exchanges.
        num_batches: the number of steps that Keras is told, `None` if not
            known.
        is_endless: whether the data of some replica have no end.
        someone_has_none: whether some replica has no batch at all.
        plans: the steps of each replica if those of all are sure.
    """

    channel: str
    num_batches: int | None
    is_endless: bool
    someone_has_none: bool
    plans: list[Plan] | None


def _agree(ring: Collectives, words: str, source: Source | None) -> _Agreed:
    """Compares what kinds of data the replicas have.

    Args:
        ring: the collectives; every replica calls.
        words: what must be the same.
        source: this replica's part, if it is a `Source`.

    Returns:
        What they have.

    Raises:
        ValueError: on every replica, if they differ.
        RuntimeError: on the others, if one has raised.
    """
    mine: list[Any] = [words, next(_numbers), None, False, None]
    if source is not None:
        mine[2:] = source.num_batches, source.is_endless, source.plan
    of_all = ring.gather_values(mine)
    if None in of_all:
        raise RuntimeError(
            "Another replica cannot use its data: see the error in its "
            f"output. Received: a failure on rank {of_all.index(None)}"
        )
    sources.require_same([theirs[0] for theirs in of_all])
    numbers = [theirs[2] for theirs in of_all]
    plans = _plans([theirs[4] for theirs in of_all])
    if plans is not None:
        numbers = [sum(1 for _ in rows_of_steps(plans))]
    return _Agreed(
        _channel(max(theirs[1] for theirs in of_all)),
        None if None in numbers else max(numbers),
        any(theirs[3] for theirs in of_all),
        0 in numbers,
        plans,
    )


def _plans(of_all: list[Any]) -> list[Plan] | None:
    """The plans of all replicas, if each has one and a batch at least."""
    if None in of_all:
        return None
    plans = [Plan(*each) for each in of_all]
    return plans if all(plan.batches for plan in plans) else None


def _is_for_tensorflow(source: Source, kind: str) -> TypeGuard[Sliced]:
    """Whether TensorFlow can slice the batches in its own pipeline."""
    return (
        keras.backend.backend() == "tensorflow"
        and kind == sources.TF_DATASET
        and isinstance(source, Sliced)
        and source.is_known
    )
