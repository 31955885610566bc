"""Who takes part in a cluster, as immutable values."""

import collections
import dataclasses
import enum

from keras_mwms.errors import ClusterConfigError


class Origin(enum.Enum):
    """Where the description of a cluster came from."""

    ALONE = "alone"
    LAUNCHER = "launcher"
    TF_CONFIG = "TF_CONFIG"
    RESOLVER = "resolver"


@dataclasses.dataclass(frozen=True)
class Address:
    """A host (name, IPv4 or IPv6 address without brackets) and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclasses.dataclass(frozen=True)
class Member:
    """One replica of the ring: its rank, its task, and its address."""

    rank: int
    task_type: str
    task_id: int
    address: Address

    @property
    def task(self) -> str:
        """The task as people write it, for example `worker 1`."""
        return f"{self.task_type} {self.task_id}"

    def __str__(self) -> str:
        return f"{self.task} ({self.address})"


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where a replica stands among the replicas of its host.

    Attributes:
        local_rank: number of the replica on its host, from 0.
        local_size: number of replicas on that host.
        cross_rank: number of its host among the hosts that have a replica of
            this local rank.
        cross_size: number of those hosts.
    """

    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The ring of replicas, seen from one of them.

    Attributes:
        origin: where the description came from.
        rank: this replica's number, chief 0.
        size: the number of replicas.
        placement: this replica among those of its host.
        members: all replicas in the order of their ranks. Empty when a
            launcher started the ring, which knows the addresses itself.
        task_type: this process's task type, for example `"worker"`; `None`
            where there is none (a launcher, a world of one without
            `TF_CONFIG`).
        task_id: this process's index in its task type, or `None`.
    """

    origin: Origin
    rank: int = 0
    size: int = 1
    placement: Placement = Placement()
    members: tuple[Member, ...] = ()
    task_type: str | None = None
    task_id: int | None = None

    @property
    def in_ring(self) -> bool:
        """Whether this process may train: all may but a parameter server.

        An evaluator is a ring of its own, which has nobody else in it.
        """
        return self.task_type != "ps"

    @property
    def is_chief(self) -> bool:
        """Whether this replica writes what all share."""
        return self.in_ring and self.rank == 0

    @property
    def me(self) -> Member | None:
        """This replica's own entry, `None` when addresses are not known."""
        return self.members[self.rank] if self.members else None

    def require_ring(self) -> None:
        """Checks that this process may train.

        Raises:
            ClusterConfigError: it may not, see `in_ring`.
        """
        if not self.in_ring:
            raise ClusterConfigError(
                "A parameter server takes no part in synchronous training. "
                f"Received: task type={self.task_type!r}, "
                f"index={self.task_id}. Run the training on the tasks of "
                "type 'chief' and 'worker' only."
            )

    def describe(self, rank: int) -> str:
        """The replica `rank` in words, with what is known of it."""
        if self.members:
            return f"rank {rank}, {self.members[rank]}"
        return f"rank {rank}"


def place(hosts: tuple[str, ...], rank: int) -> Placement:
    """Computes where `rank` stands, from the host of every rank in order.

    Args:
        hosts: the host of each rank.
        rank: the rank to place.

    Returns:
        The `Placement` of that rank.
    """
    counts: collections.Counter[str] = collections.Counter()
    local_ranks = []
    for host in hosts:
        local_ranks.append(counts[host])
        counts[host] += 1
    mine = local_ranks[rank]
    return Placement(
        local_rank=mine,
        local_size=counts[hosts[rank]],
        cross_rank=local_ranks[:rank].count(mine),
        cross_size=local_ranks.count(mine),
    )
