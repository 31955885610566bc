"""The `cluster` part of `TF_CONFIG`: jobs and the addresses of their tasks."""

import dataclasses
import itertools
import re
import types
from collections.abc import Iterator
from collections.abc import Mapping

from keras_mwms.cluster.address import parse_address
from keras_mwms.cluster.spec import Address
from keras_mwms.cluster.wording import config_error
from keras_mwms.cluster.wording import quote

RING_JOBS = ("chief", "worker")  # in the order of the ranks
OUTSIDE_JOBS = ("ps", "evaluator")
JOBS = RING_JOBS + OUTSIDE_JOBS

# Nine digits are more than any cluster has, and never slow to convert.
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclasses.dataclass(frozen=True)
class Job:
    """The tasks of one type.

    Attributes:
        name: the task type.
        indices: the indices of the tasks, ascending.
        addresses: the addresses of the tasks, in the same order.
    """

    name: str
    indices: tuple[int, ...] = ()
    addresses: tuple[Address, ...] = ()

    def __str__(self) -> str:
        count = len(self.indices)
        text = f"job {self.name!r} has {count} task{'' if count == 1 else 's'}"
        if self.indices != tuple(range(count)):
            text += f", with the indices {quote(list(self.indices))}"
        return text


def current_name(name: object) -> object:
    """Returns the name of a job or task type today: `master` is `chief`."""
    return "chief" if name == "master" else name


def parse_index(value: object) -> int | None:
    """Returns the index of a task, `None` when `value` is not one.

    Strings of digits are fine: the keys of the sparse form are strings.
    """
    if isinstance(value, str):
        return int(value) if _INDEX.fullmatch(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def ring(jobs: Mapping[str, Job]) -> Iterator[tuple[str, int, Address]]:
    """Yields type, index and address of the tasks of the ring, by rank."""
    for name in RING_JOBS:
        job = jobs.get(name, Job(name))
        for index, address in zip(job.indices, job.addresses, strict=True):
            yield name, index, address


def parse_jobs(cluster: object) -> Mapping[str, Job]:
    """Parses and checks the `cluster` part of `TF_CONFIG`.

    Args:
        cluster: the parsed JSON. Every job is a list of addresses, or the
            sparse form: an object with the index of each task as its key.

    Returns:
        The jobs by name, `master` as `chief`.

    Raises:
        ClusterConfigError: it does not describe a cluster.
    """
    if not isinstance(cluster, dict):
        raise config_error(
            "TF_CONFIG 'cluster' is not a JSON object.",
            f"TF_CONFIG cluster={quote(cluster)}",
            'Write {"worker": ["host1:5001", "host2:5001"]}.',
        )
    if "chief" in cluster and "master" in cluster:
        raise config_error(
            "TF_CONFIG names the chief twice.",
            f"TF_CONFIG cluster={quote(cluster)}",
            "Keep 'chief' and drop 'master', its old name.",
        )
    jobs: dict[str, Job] = {}
    for key, tasks in cluster.items():
        name = current_name(key)
        if not isinstance(name, str) or name not in JOBS:
            raise config_error(
                "TF_CONFIG 'cluster' has an unknown job.",
                f"TF_CONFIG cluster={{{quote(key)}: {quote(tasks)}}}",
                f"The jobs are {', '.join(JOBS)}, in lower case.",
            )
        jobs[name] = _parse_job(name, tasks)
    _check_at_most_one(jobs, "chief")
    _check_at_most_one(jobs, "evaluator")
    _check_addresses_differ(jobs)
    return types.MappingProxyType(jobs)


def _parse_job(name: str, tasks: object) -> Job:
    if isinstance(tasks, list):
        found = dict(enumerate(tasks))
    elif isinstance(tasks, dict):
        found = {_sparse_index(name, key): tasks[key] for key in tasks}
    else:
        raise config_error(
            f"TF_CONFIG job {name!r} is not a list of addresses.",
            f"TF_CONFIG {name}={quote(tasks)}",
            f'Write "{name}": ["host1:5001"], with one string for every task.',
        )
    indices = sorted(found)
    return Job(
        name,
        tuple(indices),
        tuple(
            parse_address(found[i], f"TF_CONFIG {name} {i}") for i in indices
        ),
    )


def _sparse_index(name: str, key: str) -> int:
    index = parse_index(key)
    if index is None:
        raise config_error(
            f"TF_CONFIG job {name!r} has a key that is no task index.",
            f"TF_CONFIG {name} key={quote(key)}",
            'Write {"0": "host1:5001", "2": "host3:5001"}, or a list.',
        )
    return index


def _check_at_most_one(jobs: Mapping[str, Job], name: str) -> None:
    addresses = jobs.get(name, Job(name)).addresses
    if len(addresses) > 1:
        raise config_error(
            f"TF_CONFIG has more than one {name}.",
            f"TF_CONFIG {name}={quote([str(a) for a in addresses])}",
            f"Keep one {name}.",
        )


def _check_addresses_differ(jobs: Mapping[str, Job]) -> None:
    by_address = sorted(
        ring(jobs), key=lambda task: (task[2].host, task[2].port)
    )
    for one, other in itertools.pairwise(by_address):
        if one[2] == other[2]:
            raise config_error(
                "TF_CONFIG gives two tasks the same address.",
                f"TF_CONFIG address {quote(str(one[2]))} of both "
                f"{one[0]} {one[1]} and {other[0]} {other[1]}",
                "Give every task its own port on its host.",
            )
