"""`tf.data`, on every backend: which policy, and what each replica gets."""

import secrets
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


class TensorFlowBatches(Batches):
    """The batches of a `tf.data.Dataset`.

    Args:
        dataset: the dataset.
    """

    def __init__(self, dataset: tf.data.Dataset):
        self.dataset = dataset
        number = int(dataset.cardinality())
        self.num_batches = number if number >= 0 else None
        self.is_endless = number == tf.data.INFINITE_CARDINALITY
        leaf = keras.tree.flatten(dataset.element_spec)[0]
        self.batch_size = leaf.shape[0] if leaf.shape.rank else None
        # Static where batches drop a remainder.
        self.fixed_rows = self.batch_size

    def start(self) -> Iterator[Any]:
        """Starts a pass."""
        return iter(self.dataset)

    def example(self) -> Any:
        """A symbolic batch."""
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
    part = dataset
    if policy is not AutoShardPolicy.OFF:
        pipeline = _Pipeline(ring, dataset)
        policy = _chosen(ring, pipeline, policy)
        if in_order and policy is AutoShardPolicy.FILE:
            policy = AutoShardPolicy.DATA
        if policy is AutoShardPolicy.DATA:
            batches = TensorFlowBatches(pipeline.in_one_order())
            return Sliced(batches, ring.size, ring.rank, steps)
        part = tf_graph.sharded(
            pipeline.dataset, int(policy), ring.size, ring.rank
        )
    return Own(
        TensorFlowBatches(part),
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
    for spec in keras.tree.flatten(dataset.element_spec):
        if spec is not None and spec.shape.rank == 0:
            raise ValueError(
                "The dataset is not batched. Batch it by the global batch "
                "size: dataset.batch(batch_size). "
                f"Received: elements of {dataset.element_spec}"
            )


class _Pipeline:
    """A dataset, which draws the same order on every replica.

    Args:
        ring: the collectives; every replica makes one.
        dataset: the user's dataset.

    Raises:
        ValueError: the pipelines differ, or one must be changed and cannot.
    """

    def __init__(self, ring: Collectives, dataset: tf.data.Dataset):
        self._ring = ring
        self.dataset = dataset
        seeds = tf_graph.seeds_of_arrays(dataset)
        self._graph: tf_graph.Graph | None = None
        if seeds is None:
            self._graph = _graph_of(ring, dataset)
            seeds = self._graph.seeds()
        self._draw_alike(seeds)

    def files(self) -> list[int]:
        """How many files each of its readers reads. Every replica calls.

        Raises:
            ValueError: the replicas have different files.
        """
        files = [] if self._graph is None else self._graph.files()
        of_all = self._ring.gather_values(files)
        if any(other != of_all[0] for other in of_all):
            raise ValueError(
                "The replicas list different files, or in another order, so "
                "that dealing them out would leave files out and read others "
                "twice. Sort the list, and have all files on every worker; "
                "or set auto_shard_policy to OFF if each worker has files of "
                "its own. Received, in rank order: "
                f"{[sum(map(len, each)) for each in of_all]} files"
            )
        return [len(each) for each in files]

    def has_hint(self) -> bool:
        """Whether it says where it is to be sharded."""
        return self._graph is not None and self._graph.has_hint()

    def in_one_order(self) -> tf.data.Dataset:
        """The dataset, whose parallel operations keep the order."""
        dataset = self.dataset
        if self._graph is not None and self._graph.make_deterministic():
            dataset = self._graph.dataset()
        options = tf.data.Options()
        options.deterministic = True
        return dataset.with_options(options)

    def _draw_alike(self, seeds: list[list[int] | None]) -> None:
        of_all = self._ring.gather_values(seeds)
        if any(len(other) != len(seeds) for other in of_all):
            raise ValueError(
                "The replicas have different tf.data pipelines. Received, in "
                "rank order, pipelines with this number of shuffles: "
                f"{[len(each) for each in of_all]}"
            )
        drawn = [[_seed(), _seed()] for _ in seeds]
        drawn = self._ring.gather_values(drawn)[0]
        wanted = [
            None
            if any(pair is None for pair in pairs)
            else (drawn[i] if pairs[0] == [0, 0] else pairs[0])
            for i, pairs in enumerate(zip(*of_all, strict=True))
        ]
        if all(each == wanted for each in of_all):
            return
        notes.tell(
            self._ring,
            "A shuffle of the tf.data pipeline has no seed, or not the same "
            "on all replicas: it has a common one now, so that each row is "
            "used once in an epoch.",
        )
        self._graph = self._graph or _graph_of(self._ring, self.dataset)
        self._graph.set_seeds(wanted)
        self.dataset = self._graph.dataset()


def _graph_of(ring: Collectives, dataset: tf.data.Dataset) -> tf_graph.Graph:
    graph, reason = None, ""
    try:
        graph = tf_graph.Graph(dataset)
    except tf.errors.OpError as error:
        reason = str(error)
    # One replica may fail for want of memory, say.
    reasons = ring.gather_values(reason)
    if graph is None or any(reasons):
        raise ValueError(
            "The tf.data pipeline cannot be read, which is needed to find "
            "its files and to shuffle alike on all replicas. Give its "
            "shuffles a seed, or set auto_shard_policy to OFF if each replica "
            f"has data of its own. Received, in rank order: {reasons}"
        )
    return graph


def _chosen(
    ring: Collectives, pipeline: _Pipeline, policy: AutoShardPolicy
) -> AutoShardPolicy:
    """The policy that is used, told to the user."""
    if policy is AutoShardPolicy.HINT and not pipeline.has_hint():
        raise ValueError(
            "auto_shard_policy=HINT needs dataset.shard(tf.data.experimental."
            "SHARD_HINT, tf.data.experimental.SHARD_HINT) in the pipeline. "
            "Received: a pipeline without it"
        )
    if policy not in (AutoShardPolicy.AUTO, AutoShardPolicy.FILE):
        return policy
    files, size = pipeline.files(), ring.size
    few = min(files, default=0)
    if few >= size:
        notes.tell(
            ring,
            f"auto_shard_policy={policy.name}: each of {size} replicas reads "
            f"its own of {few} files (policy FILE).",
        )
        return AutoShardPolicy.FILE
    if policy is AutoShardPolicy.FILE:
        raise ValueError(
            "auto_shard_policy=FILE needs a pipeline that reads files "
            "(tf.data.TFRecordDataset, say), at least one for each replica. "
            "Split the data into more files, use fewer replicas, or use the "
            f"policy DATA. Received: {few} files for {size} replicas"
        )
    reason = f"reads {few} files for {size} replicas" if few else "reads none"
    notes.tell(
        ring,
        f"auto_shard_policy=AUTO: the tf.data pipeline {reason}, so every "
        "worker runs the whole pipeline and takes its slice of each batch "
        "(policy DATA). Files, at least one a replica, would be dealt out "
        "(policy FILE).",
    )
    return AutoShardPolicy.DATA


def _sizes(batch_size: int, replicas: int, replica: int) -> list[int]:
    """How many rows a replica takes of its own files, step by step.

    All replicas together take a global batch in each step, and each takes one
    in as many steps as there are replicas. As in `tf.distribute`.
    """
    sizes = np.full(replicas, batch_size // replicas)
    sizes[: batch_size % replicas] += 1
    return [int(size) for size in np.roll(sizes, -replica)]


def _seed() -> int:
    # Not from a generator that is part of what the user seeds.
    return secrets.randbits(62) + 1


def _symbol(spec: Any) -> Any:
    if spec is None or not hasattr(spec, "shape"):
        return None
    return keras.KerasTensor(tuple(spec.shape), spec.dtype.name)
