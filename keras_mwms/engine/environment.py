"""What Horovod reads from the environment when it starts."""

import contextlib
import math
import os
import re
from collections.abc import Iterator
from collections.abc import Mapping

from keras_mwms.cluster.spec import Address
from keras_mwms.cluster.spec import Cluster
from keras_mwms.cluster.spec import place
from keras_mwms.engine.settings import Settings

_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
_STALL_CHECK = "HOROVOD_STALL_CHECK_TIME_SECONDS"
_STALL_SHUTDOWN = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
_LONGEST_STALL_CHECK = 60


def for_launcher(
    settings: Settings, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The variables to add where a launcher has set the others.

    Args:
        settings: the deadlines.
        environment: what is set already, which wins.

    Returns:
        Names and values to set before Horovod starts.
    """
    seconds = math.ceil(settings.timeout)
    check = environment.get(_STALL_CHECK) or str(_check_every(seconds))
    every = int(check) if check.isdigit() else 0
    # A stall is noticed in up to three checks more than this. Horovod
    # ignores a time below that of the check, and would wait for ever.
    shutdown = max(seconds - 3 * every, every, 1)
    return _unset_only(
        {
            _GLOO_TIMEOUT: str(seconds),
            _STALL_CHECK: check,
            _STALL_SHUTDOWN: str(shutdown),
        },
        environment,
    )


def for_member(
    cluster: Cluster,
    rendezvous: Address,
    interface: str,
    settings: Settings,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The variables for a member that no launcher started.

    Args:
        cluster: the cluster, with the addresses of its members.
        rendezvous: where the chief's rendezvous listens, an IPv4 address.
        interface: the network interface that joins the ring.
        settings: the deadlines.
        environment: what is set already. It wins, except for what says who
            this member is and where the rendezvous stands.

    Returns:
        Names and values to set before Horovod starts.
    """
    hosts = tuple(member.address.host for member in cluster.members)
    # From the members' common list, so that all hosts count alike.
    placement = place(hosts, cluster.rank)
    return {
        **for_launcher(settings, environment),
        **_unset_only(
            {
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_GLOO_IFACE": interface,
            },
            environment,
        ),
        "HOROVOD_HOSTNAME": _host_key(hosts, cluster.rank),
        "HOROVOD_RANK": str(cluster.rank),
        "HOROVOD_SIZE": str(cluster.size),
        "HOROVOD_LOCAL_RANK": str(placement.local_rank),
        "HOROVOD_LOCAL_SIZE": str(placement.local_size),
        "HOROVOD_CROSS_RANK": str(placement.cross_rank),
        "HOROVOD_CROSS_SIZE": str(placement.cross_size),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": rendezvous.host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(rendezvous.port),
    }


@contextlib.contextmanager
def applied(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for the time of a `with` block.

    Horovod reads them once, when it starts. Left behind they would tell
    the processes that this one starts, and the next reading of the
    cluster, that a launcher had been at work.

    Args:
        variables: names and values.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _check_every(seconds: int) -> int:
    """How often to look for stalled operations."""
    return min(max(seconds // 12, 1), _LONGEST_STALL_CHECK)


def _unset_only(
    variables: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    return {
        name: environment.get(name) or value
        for name, value in variables.items()
    }


def _host_key(hosts: tuple[str, ...], rank: int) -> str:
    """A name of the host that is its own and safe in Horovod's URLs."""
    host = hosts[rank]
    return f"{re.sub(r'[^A-Za-z0-9.-]', '-', host)}-{hosts.index(host)}"
