"""The source of a replica's rows for each kind of data."""

import types
from typing import Any

from keras_mwms import _keras
from keras_mwms.collectives import Collectives
from keras_mwms.data import policy as policies
from keras_mwms.data.adapters import AdapterBatches
from keras_mwms.data.generators import GeneratorBatches
from keras_mwms.data.generators import GrainBatches
from keras_mwms.data.policy import AutoShardPolicy
from keras_mwms.data.py_dataset import PyDatasetBatches
from keras_mwms.data.source import Batches
from keras_mwms.data.source import Own
from keras_mwms.data.source import Sliced
from keras_mwms.data.source import Source

TF_DATASET = "a tf.data.Dataset"
_KINDS = {
    _keras.TensorFlowAdapter: TF_DATASET,
    _keras.PyDatasetAdapter: "a PyDataset",
    _keras.LoaderAdapter: "a DataLoader",
    _keras.GrainAdapter: "a Grain dataset",
    _keras.GeneratorAdapter: "a generator",
    _keras.ArrayAdapter: "arrays",
}


def are_split_arrays(data: Any, policy: AutoShardPolicy) -> bool:
    """Whether data are arrays whose rows the replicas share.

    Args:
        data: `(x, y, sample_weight)`.
        policy: how data are split. Arrays are no files and take no hints.

    Returns:
        True if so.
    """
    return policy is not AutoShardPolicy.OFF and bool(
        _keras.can_convert_arrays(data)
    )


def agree_on_pipelines(ring: Collectives, x: Any) -> None:
    """Finds whether data are pipelines of `tf.data` on some replicas only.

    Only those are compared by exchanges of their own, so it comes first.

    Args:
        ring: the collectives; every replica calls.
        x: the replica's data.

    Raises:
        ValueError: on every replica, if so.
    """
    of_all = ring.gather_values([_keras.is_tf_dataset(x), _name_of(x)])
    if len({is_pipeline for is_pipeline, _ in of_all}) > 1:
        require_same([name for _, name in of_all])


def _name_of(x: Any) -> str:
    if _keras.is_tf_dataset(x):
        return TF_DATASET
    if isinstance(x, types.GeneratorType):
        return "a generator"
    if _keras.can_convert_arrays((x, None, None)):
        return "arrays"
    return f"a {type(x).__module__}.{type(x).__qualname__}"


def require_same(of_all: list[str]) -> None:
    """Raises if replicas have different data.

    Args:
        of_all: what the data of each are, in rank order.

    Raises:
        ValueError: they differ.
    """
    if len(set(of_all)) > 1:
        raise ValueError(
            "The replicas must be given the same data: each takes its part of "
            "them. If each has data of its own, pass auto_shard_policy='OFF' "
            f"to distribute(). Received, in rank order: {'; '.join(of_all)}"
        )


def source_of(
    ring: Collectives,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    policy: AutoShardPolicy,
    steps: int | None,
    in_order: bool,
    is_given: bool = False,
    batch_size: int | None = None,
    shuffle: bool | str = False,
    class_weight: dict[int, float] | None = None,
) -> tuple[Source, str]:
    """This replica's part of data that are no shared arrays.

    Args:
        ring: the collectives; every replica calls.
        x: data as `fit` takes it.
        y: targets likewise.
        sample_weight: weights likewise.
        policy: how data are split that do not say so themselves.
        steps: steps of an epoch if the user says so.
        in_order: whether the rows must be in the order of one process.
        is_given: whether this replica's batches are used as they are, with
            the policy `OFF`: those of `tf.data` are cut otherwise.
        batch_size: as `fit` takes it.
        shuffle: as `fit` takes it.
        class_weight: as `fit` takes it.

    Returns:
        `(source, kind)`: the part, and what the data are, in words.
    """
    if policy is AutoShardPolicy.HINT and not _keras.is_tf_dataset(x):
        x, policy = _sharded_by_itself(ring, x), AutoShardPolicy.OFF
    is_own = policy is AutoShardPolicy.OFF
    adapter = _keras.data_adapter(
        x,
        y,
        sample_weight,
        steps=steps,
        batch_size=batch_size,
        shuffle=shuffle,
        class_weight=class_weight,
    )
    kind = _KINDS.get(type(adapter), "a data adapter")
    if kind == TF_DATASET:
        from keras_mwms.data import tf_data

        if is_given:
            dataset = adapter.get_tf_dataset()
            tf_data.check_batched(dataset)
            return Own(tf_data.TensorFlowBatches(lambda: dataset)), kind
        return tf_data.source(
            ring,
            adapter.get_tf_dataset(),
            policy,
            steps=steps,
            in_order=in_order,
        ), kind
    policies.require(policy, policies.ALL_BUT_FILE, kind)
    if kind == "a DataLoader":
        from keras_mwms.data import loader

        is_own = is_own or loader.splits_itself(ring, x)
        if not is_own and loader.can_choose(x, adapter):
            return loader.LoadedRows(ring, x, adapter), kind
        batches: Batches = loader.LoaderBatches(
            None if is_own else ring, x, adapter
        )
    elif kind == "a PyDataset":
        batches = PyDatasetBatches(
            None if is_own else ring, x, bool(shuffle), class_weight
        )
    elif kind == "a Grain dataset":
        batches = GrainBatches(x, adapter)
    elif kind == "a generator":
        batches = GeneratorBatches(x, adapter)
    else:
        batches = AdapterBatches(adapter)
    if is_own:
        return Own(batches), kind
    return Sliced(batches, ring.size, ring.rank, steps), kind


def _sharded_by_itself(ring: Collectives, x: Any) -> Any:
    if not callable(getattr(x, "shard", None)):
        raise ValueError(
            "auto_shard_policy=HINT asks the data to shard themselves, by a "
            "method shard(num_shards, index). Received: an object without "
            f"it, of type {type(x).__module__}.{type(x).__qualname__}"
        )
    return x.shard(ring.size, ring.rank)
