"""The `task` part of `TF_CONFIG`: which task this process is."""

import dataclasses
from collections.abc import Mapping

from keras_mwms.cluster.jobs import JOBS
from keras_mwms.cluster.jobs import OUTSIDE_JOBS
from keras_mwms.cluster.jobs import Job
from keras_mwms.cluster.jobs import current_name
from keras_mwms.cluster.jobs import parse_index
from keras_mwms.cluster.wording import config_error
from keras_mwms.cluster.wording import quote


@dataclasses.dataclass(frozen=True)
class Task:
    """The task of this process."""

    type: str
    index: int


def parse_task(task: object, jobs: Mapping[str, Job]) -> Task:
    """Parses the `task` part of `TF_CONFIG` beside a cluster.

    Args:
        task: the parsed JSON.
        jobs: the jobs of the cluster.

    Returns:
        The task, which is one of the cluster's, or the evaluator: that one
        need not be listed.

    Raises:
        ClusterConfigError: it names no task of the cluster.
    """
    if not isinstance(task, dict):
        raise config_error(
            "TF_CONFIG has a cluster but does not say which task this is.",
            f"TF_CONFIG task={quote(task)} and {_in_words(jobs)}",
            'Add "task": {"type": "worker", "index": 0}, with the type and '
            "the index of this process.",
        )
    job = _find_job(task, jobs)
    index = parse_index(task.get("index"))
    if index is None or index not in job.indices:
        found = f"={quote(task['index'])}" if "index" in task else " missing"
        raise config_error(
            "TF_CONFIG names a task that the cluster does not have.",
            f"TF_CONFIG task index{found} but {job}",
            "Indices are whole numbers that count from 0 in every type.",
        )
    return Task(job.name, index)


def parse_task_alone(task: object) -> Task | None:
    """Parses the `task` part where there is no cluster.

    A task of the ring means nothing then. The others do: they must not take
    themselves for a chief.

    Args:
        task: the parsed JSON.

    Returns:
        The task when its type is one outside the ring, else `None`.
    """
    if isinstance(task, dict) and task.get("type") in OUTSIDE_JOBS:
        return Task(task["type"], parse_index(task.get("index")) or 0)
    return None


def _find_job(task: dict[str, object], jobs: Mapping[str, Job]) -> Job:
    name = current_name(task.get("type"))
    job = jobs.get(name) if isinstance(name, str) else None
    if name == "evaluator" and (job is None or not job.indices):
        # tf.distribute's documents leave it out of the cluster, its code
        # wants it there (tensorflow#30121): both are fine here.
        return Job("evaluator", indices=(0,))
    if job is not None:
        return job
    found = "=" + quote(task["type"]) if "type" in task else " missing"
    raise config_error(
        "TF_CONFIG has a task whose type is not in the cluster.",
        f"TF_CONFIG task type{found}, index={quote(task.get('index'))} "
        f"but {_in_words(jobs)}",
        f"The types are {', '.join(JOBS)}, in lower case.",
    )


def _in_words(jobs: Mapping[str, Job]) -> str:
    return f"a cluster of {', '.join(map(repr, jobs))}"
