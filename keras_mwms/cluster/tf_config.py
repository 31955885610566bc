"""`TF_CONFIG`, from its text to a `Cluster`."""

import dataclasses
import types
import warnings
from collections.abc import Mapping
from typing import Any

from keras_mwms.cluster.jobs import OUTSIDE_JOBS
from keras_mwms.cluster.jobs import Job
from keras_mwms.cluster.jobs import parse_jobs
from keras_mwms.cluster.jobs import ring
from keras_mwms.cluster.spec import Cluster
from keras_mwms.cluster.spec import Member
from keras_mwms.cluster.spec import Origin
from keras_mwms.cluster.spec import place
from keras_mwms.cluster.task import Task
from keras_mwms.cluster.task import parse_task
from keras_mwms.cluster.task import parse_task_alone
from keras_mwms.cluster.tf_config_json import load_tf_config
from keras_mwms.cluster.wording import config_error
from keras_mwms.cluster.wording import quote


@dataclasses.dataclass(frozen=True)
class TFConfig:
    """What `TF_CONFIG` says.

    Attributes:
        jobs: the jobs of the cluster by name, also those outside the ring.
            Empty without a cluster.
        task: the task of this process; `None` without a cluster, unless it
            is a task outside the ring.
    """

    jobs: Mapping[str, Job]
    task: Task | None

    def cluster(self) -> Cluster:
        """Returns the ring, as this process sees it."""
        if self.task is None:
            return Cluster(Origin.ALONE)
        if self.task.type in OUTSIDE_JOBS:
            return Cluster(
                Origin.TF_CONFIG,
                task_type=self.task.type,
                task_id=self.task.index,
            )
        members = tuple(
            Member(rank, task_type, task_id, address)
            for rank, (task_type, task_id, address) in enumerate(
                ring(self.jobs)
            )
        )
        rank = _rank_of(self.task, members)
        return Cluster(
            Origin.TF_CONFIG,
            rank=rank,
            size=len(members),
            placement=place(tuple(m.address.host for m in members), rank),
            members=members,
            task_type=self.task.type,
            task_id=self.task.index,
        )


def read_tf_config(text: str | None) -> TFConfig:
    """Parses and checks the text of `TF_CONFIG`.

    Args:
        text: the text, or `None` when the variable is unset.

    Returns:
        What it says.

    Raises:
        ClusterConfigError: it makes no sense; nothing else is ever raised.
    """
    config = load_tf_config(text)
    cluster: Any = config.get("cluster")
    task: Any = config.get("task")
    if cluster is None or cluster == {}:
        _refuse_other_sparse_form(config)
        return TFConfig(types.MappingProxyType({}), parse_task_alone(task))
    jobs = parse_jobs(cluster)
    result = TFConfig(jobs, parse_task(task, jobs))
    if "master" in cluster or task["type"] == "master":
        warnings.warn(
            "TF_CONFIG says 'master', which is an old name: write 'chief'.",
            DeprecationWarning,
            stacklevel=2,
        )
    return result


def parse_tf_config(text: str | None) -> Cluster:
    """Parses the text of `TF_CONFIG` into the ring that it describes.

    Ranks follow tf.distribute: the chief first, then the workers in the
    order of their indices. Parameter servers are not counted.

    Args:
        text: the text, or `None` when the variable is unset.

    Returns:
        The `Cluster`: a world of one without a cluster and for an evaluator;
        one with `in_ring` false for a parameter server.

    Raises:
        ClusterConfigError: it makes no sense; nothing else is ever raised.

    Example:
    >>> cluster = parse_tf_config(
    ...     '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]},'
    ...     ' "task": {"type": "worker", "index": 0}}'
    ... )
    >>> cluster.rank, cluster.size
    (1, 2)
    """
    return read_tf_config(text).cluster()


def _rank_of(task: Task, members: tuple[Member, ...]) -> int:
    """Returns the rank of a task that is known to be in the ring."""
    return next(
        m.rank
        for m in members
        if (m.task_type, m.task_id) == (task.type, task.index)
    )


def _refuse_other_sparse_form(config: dict[str, Any]) -> None:
    """Refuses Kubeflow's `sparseCluster`: training alone is not meant there.

    It lists a worker's own address and the parameter servers, so the others
    of the ring are unknown (kubeflow/trainer#1763).
    """
    if "sparseCluster" in config:
        raise config_error(
            "TF_CONFIG has a 'sparseCluster' and no 'cluster'.",
            f"TF_CONFIG sparseCluster={quote(config['sparseCluster'])}",
            "List all workers under 'cluster': on Kubeflow, leave "
            "enableDynamicWorker off.",
        )
