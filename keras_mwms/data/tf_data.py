"""`tf.data`, on every backend: which policy, and what each replica gets."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_mwms.collectives import Collectives
from keras_mwms.data import notes
from keras_mwms.data import tf_graph
from keras_mwms.data.policy import AutoShardPolicy
from keras_mwms.data.policy import policy_of
from keras_mwms.data.source import Batches
from keras_mwms.data.source import Own
from keras_mwms.data.source import Sliced
from keras_mwms.data.source import Source
from keras_mwms.data.tf_pipeline import Pipeline

Renew = Callable[[], tf.data.Dataset]


class TensorFlowBatches(Batches):
    """The batches of a `tf.data.Dataset`.

    Args:
        make: makes the dataset.
        is_renewed: whether to make another one for each pass.
    """

    def __init__(self, make: Renew, is_renewed: bool = False):
        self._make = make
        self._is_renewed = is_renewed
        self.dataset = make()
        number = int(self.dataset.cardinality())
        self.num_batches = number if number >= 0 and not is_renewed else None
        self.is_endless = number == tf.data.INFINITE_CARDINALITY
        shape = next(_shapes(self.dataset), None)
        self.batch_size = shape[0] if shape is not None and shape.rank else None
        # Static where batches drop a remainder.
        self.fixed_rows = self.batch_size

    def start(self) -> Iterator[Any]:
        """Starts a pass."""
        dataset = self._make() if self._is_renewed else self.dataset
        if keras.backend.backend() == "tensorflow":
            return iter(dataset)
        return map(_padded, dataset)

    def example(self) -> Any:
        """A symbolic batch, or the first one if nothing tells its shapes."""
        if any(shape.rank is None for shape in _shapes(self.dataset)):
            return next(self.start())
        return keras.tree.map_structure(_symbol, self.dataset.element_spec)


def source(
    ring: Collectives,
    dataset: tf.data.Dataset,
    policy: AutoShardPolicy,
    *,
    steps: int | None,
    in_order: bool,
) -> Source:
    """This replica's part of a dataset.

    Args:
        ring: the collectives; every replica calls.
        dataset: the whole dataset, batched by the global batch size.
        policy: what the user says; the dataset's own options go before.
        steps: steps of an epoch if the user says so.
        in_order: whether the rows must come in the order of one process, as
            `predict` needs them: then files are not dealt out.

    Returns:
        The `Source`.

    Raises:
        ValueError: the dataset cannot be split by the policy.
    """
    check_batched(dataset)
    own = policy_of(dataset.options().experimental_distribute.auto_shard_policy)
    policy = policy if own is AutoShardPolicy.AUTO else own
    size = tf_graph.batch_size_of(dataset)
    if policy is AutoShardPolicy.OFF:
        batches = TensorFlowBatches(lambda: dataset)
    else:
        pipeline = Pipeline(ring, dataset)
        if in_order:
            policy = AutoShardPolicy.DATA
        policy, renew = _chosen(ring, pipeline, policy)
        batches = TensorFlowBatches(renew, pipeline.is_renewed())
        if policy is AutoShardPolicy.DATA:
            return Sliced(batches, ring.size, ring.rank, steps)
    return Own(
        batches,
        None if size is None else _sizes(size, ring.size, ring.rank),
        pieces=ring.size,
        first=ring.rank,
    )


def check_batched(dataset: tf.data.Dataset) -> None:
    """Raises if a dataset's elements are no batches.

    Args:
        dataset: the dataset.

    Raises:
        ValueError: so it is.
    """
    for shape in _shapes(dataset):
        if shape.rank == 0:
            raise ValueError(
                "The dataset is not batched. Batch it by the global batch "
                "size: dataset.batch(batch_size). "
                f"Received: elements of {dataset.element_spec}"
            )


def _chosen(
    ring: Collectives, pipeline: Pipeline, policy: AutoShardPolicy
) -> tuple[AutoShardPolicy, Renew]:
    """The policy that is used, and what makes the dataset for a pass."""
    if policy is AutoShardPolicy.AUTO and pipeline.has_hint():
        policy = AutoShardPolicy.HINT
    if policy is AutoShardPolicy.DATA:
        return policy, pipeline.in_one_order()
    if policy is AutoShardPolicy.HINT:
        if not pipeline.has_hint():
            raise ValueError(
                "auto_shard_policy=HINT needs dataset.shard(tf.data."
                "experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT) in "
                "the pipeline. Received: a pipeline without it"
            )
        return policy, pipeline.by_hints()
    files = min(pipeline.files(), default=0)
    part, reason = _of_files(ring, pipeline, files)
    if part is not None:
        if policy is AutoShardPolicy.AUTO:
            notes.tell(
                ring,
                f"auto_shard_policy=AUTO: each of {ring.size} workers reads "
                f"its own of {files} files of the tf.data pipeline (policy "
                "FILE).",
            )
        return AutoShardPolicy.FILE, part
    if policy is AutoShardPolicy.FILE:
        raise ValueError(
            "auto_shard_policy=FILE needs a pipeline that reads files "
            "(tf.data.TFRecordDataset, say), at least one for each worker. "
            "Split the data into more files, use fewer workers, or use the "
            f"policy DATA. Received: a pipeline that {reason}"
        )
    notes.tell(
        ring,
        f"auto_shard_policy=AUTO: the tf.data pipeline {reason}, so every "
        "worker runs the whole pipeline and takes its slice of each batch "
        "(policy DATA). Files, at least one a worker, would be dealt out "
        "(policy FILE).",
    )
    return AutoShardPolicy.DATA, pipeline.in_one_order()


def _of_files(
    ring: Collectives, pipeline: Pipeline, files: int
) -> tuple[Renew | None, str]:
    """What makes this replica's part by files, or why nothing can."""
    if files < ring.size:
        words = "1 file" if files == 1 else f"{files or 'no'} files"
        return None, f"reads {words} for {ring.size} workers"
    part, reason = None, ""
    try:
        part = pipeline.by_files()
    except tf.errors.OpError as error:
        # For example, what it reads is grouped or sampled.
        reason = f"{error.message.splitlines()[0]}"
    reasons = ring.gather_values(reason)
    if any(reasons):
        return None, (
            f"reads {files} files that TensorFlow cannot deal out "
            f"({next(filter(None, reasons))})"
        )
    return part, ""


def _sizes(batch_size: int, replicas: int, replica: int) -> list[int]:
    """How many rows a replica takes of its own files, step by step.

    All replicas together take a global batch in each step, and each takes one
    in as many steps as there are replicas. As in `tf.distribute`.
    """
    sizes = np.full(replicas, batch_size // replicas)
    sizes[: batch_size % replicas] += 1
    return [int(size) for size in np.roll(sizes, -replica)]


def _shapes(dataset: tf.data.Dataset) -> Iterator[Any]:
    """The shapes of the arrays of an element; places may hold none."""
    for spec in keras.tree.flatten(dataset.element_spec):
        if hasattr(spec, "shape"):
            yield spec.shape


def _symbol(spec: Any) -> Any:
    if spec is None or not hasattr(spec, "shape"):
        return None
    return keras.KerasTensor(tuple(spec.shape), spec.dtype.name)


def _padded(batch: Any) -> Any:
    """A batch whose ragged arrays are dense, as wide as their longest row.

    Other backends take no others, and each replica's are as wide as those of
    the global batch.
    """
    return keras.tree.map_structure(
        lambda leaf: (
            leaf.to_tensor() if isinstance(leaf, tf.RaggedTensor) else leaf
        ),
        batch,
    )
