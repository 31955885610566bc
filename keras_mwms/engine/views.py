"""What each member believes the cluster to be, and whether they agree."""

import dataclasses
import json
import os
import socket
import uuid
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from keras_mwms.cluster.spec import Cluster
from keras_mwms.errors import StartError

PROTOCOL = 1

# More lines than this help nobody; the first ones lead to the cause.
_MOST_LINES = 10


class ProtocolError(ValueError):
    """A view came from a version of this package that speaks differently."""


@dataclasses.dataclass(frozen=True)
class View:
    """The cluster in the eyes of one member.

    Attributes:
        rank: the member's own rank.
        size: the number of members.
        label: the member in words, for example `worker 1 (b:5001)`.
        members: all members in words, in the order of their ranks; empty
            when a launcher made the ring.
        process: a random name of this start of the process.
        host: the name that the member's machine gives itself.
        pid: the process id on that machine.
        versions: names and versions of what the member runs, sorted.
    """

    rank: int
    size: int
    label: str
    members: tuple[str, ...]
    process: str
    host: str
    pid: int
    versions: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, cluster: Cluster, versions: Mapping[str, str]) -> "View":
        """The view of this process.

        Args:
            cluster: the cluster as this process reads it.
            versions: what must be the same on all members, for example
                `{"python": "3.11.2", "keras": "3.15.1"}`.

        Returns:
            The view, with a new random name of the process.
        """
        me = cluster.me
        return cls(
            rank=cluster.rank,
            size=cluster.size,
            label=str(me) if me else cluster.describe(cluster.rank),
            members=tuple(str(member) for member in cluster.members),
            process=uuid.uuid4().hex,
            host=socket.gethostname(),
            pid=os.getpid(),
            versions=tuple(sorted(versions.items())),
        )

    @property
    def where(self) -> str:
        """The process in words."""
        return f"process {self.pid} on host {self.host!r}"

    def to_json(self) -> bytes:
        """The view as JSON, with the protocol's version."""
        return json.dumps(
            {"protocol": PROTOCOL, **dataclasses.asdict(self)}
        ).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "View":
        """Reads a view that another member wrote.

        Args:
            text: what `to_json` made.

        Returns:
            The view.

        Raises:
            ProtocolError: the writer speaks another protocol version.
            ValueError: the text is not a view.
        """
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("A view is a JSON object.")
        protocol = data.pop("protocol", None)
        if isinstance(protocol, int) and protocol != PROTOCOL:
            raise ProtocolError(
                f"This process speaks protocol {PROTOCOL} of keras_mwms, "
                f"{data.get('label')} protocol {protocol}. Install the same "
                "version of keras_mwms on all members."
            )
        return cls(
            rank=_take(data, "rank", int),
            size=_take(data, "size", int),
            label=_take(data, "label", str),
            members=tuple(_strings(_take(data, "members", list))),
            process=_take(data, "process", str),
            host=_take(data, "host", str),
            pid=_take(data, "pid", int),
            versions=tuple(
                _pair(item) for item in _take(data, "versions", list)
            ),
        )


def _take(data: dict[str, Any], name: str, kind: type) -> Any:
    value = data.get(name)
    if type(value) is not kind:
        raise ValueError(f"A view's {name!r} is not a {kind.__name__}.")
    return value


def _strings(values: list[Any]) -> list[str]:
    if not all(isinstance(value, str) for value in values):
        raise ValueError("A view lists names as strings.")
    return values


def _pair(value: Any) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("A view's versions are pairs.")
    name, version = _strings(value)
    return name, version


def differences(views: Sequence[View]) -> list[str]:
    """What members disagree on, in sentences.

    Args:
        views: the views, the one that others are held against first.

    Returns:
        One sentence a disagreement, with both members and both values.
        Empty when all agree.
    """
    first = views[0]
    return [
        sentence
        for other in views[1:]
        for sentence in (
            _cluster_difference(first, other)
            or _version_differences(first, other)
        )
    ]


def duplicates(views: Sequence[View]) -> list[str]:
    """Which tasks were started twice, in sentences.

    Args:
        views: the views, from one or more processes a task.

    Returns:
        One sentence a task, with both processes.
    """
    seen: dict[int, View] = {}
    sentences = []
    for view in views:
        other = seen.setdefault(view.rank, view)
        if other.process != view.process:
            sentences.append(
                f"{view.label} was started twice: each task of the cluster "
                "must be started once. "
                f"Received: {other.where} and {view.where}."
            )
    return sentences


def compare(views: Sequence[View]) -> None:
    """Checks that the members of a cluster fit together.

    Args:
        views: one view of each process that takes part, the chief's first.

    Raises:
        StartError: the members disagree on the cluster, its size or the
            versions they run, or one task was started twice.
    """
    sentences = differences(views) + duplicates(views)
    if sentences:
        raise StartError(summary(sentences))


def summary(sentences: Sequence[str]) -> str:
    """One message of many sentences, the most useful lines alone."""
    lines = list(sentences[:_MOST_LINES])
    if len(sentences) > _MOST_LINES:
        lines.append(f"... and {len(sentences) - _MOST_LINES} more.")
    return "\n".join(
        ["The members of the cluster do not fit together.", *lines]
    )


def _cluster_difference(first: View, other: View) -> list[str]:
    if first.size != other.size:
        return [
            "The number of members differs: correct TF_CONFIG so that all "
            f"have the same cluster. Received: {first.size} on "
            f"{first.label} ({first.where}), {other.size} on {other.label} "
            f"({other.where})."
        ]
    for rank, pair in enumerate(
        zip(first.members, other.members, strict=False)
    ):
        if pair[0] != pair[1]:
            return [
                f"The member of rank {rank} differs: correct TF_CONFIG so "
                f"that all have the same cluster. Received: {pair[0]} on "
                f"{first.label} ({first.where}), {pair[1]} on {other.label} "
                f"({other.where})."
            ]
    return []


def _version_differences(first: View, other: View) -> list[str]:
    ours, theirs = dict(first.versions), dict(other.versions)
    return [
        f"{name} differs: install the same everywhere. Received: "
        f"{ours.get(name, 'none')} on {first.label}, "
        f"{theirs.get(name, 'none')} on {other.label}."
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]
