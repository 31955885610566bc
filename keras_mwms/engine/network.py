"""Addresses of hosts, and the network interface that joins a cluster."""

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterable
from collections.abc import Iterator
from ipaddress import IPv4Address
from ipaddress import IPv6Address

import psutil

from keras_mwms.cluster.spec import Cluster
from keras_mwms.errors import StartError

IP = IPv4Address | IPv6Address

INTERFACE = "HOROVOD_GLOO_IFACE"

_LOOPBACK = IPv4Address("127.0.0.1")


def parse_ip(text: str) -> IP:
    """Reads an address as sockets report it.

    Args:
        text: an IPv4 or IPv6 address, with or without a zone.

    Returns:
        The address without its zone; an IPv4 address that is mapped into
        IPv6 as the IPv4 address.

    Raises:
        ValueError: the text is not an address.

    Example:
    >>> parse_ip("::ffff:10.0.0.1")
    IPv4Address('10.0.0.1')
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def resolve(host: str) -> tuple[IP, ...]:
    """The addresses of a host, in the resolver's order.

    Args:
        host: a name or an address.

    Raises:
        OSError: the name does not resolve.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host!r} is not a host name: {error}") from error
    addresses = (parse_ip(str(info[4][0])) for info in found)
    return tuple(dict.fromkeys(addresses))


def resolve_v4(host: str) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses of a host.

    Args:
        host: a name or an address.

    Raises:
        OSError: the name does not resolve.
        StartError: it has IPv6 addresses alone. Gloo can use these, but
            Horovod's client of the rendezvous cannot.
    """
    addresses = resolve(host)
    v4 = tuple(ip for ip in addresses if isinstance(ip, IPv4Address))
    if not v4:
        raise StartError(
            f"The chief's host {host!r} has no IPv4 address, and Horovod "
            "can reach its rendezvous over IPv4 alone. Give the chief's "
            "IPv4 address, or a name that has one, in the cluster. "
            f"Received: {', '.join(map(str, addresses))}"
        )
    return v4


def local_interfaces() -> dict[IP, str]:
    """The addresses of this machine and the interfaces that hold them."""
    return {
        parse_ip(address.address): name
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    }


def is_here(host: str, local: Iterable[IP]) -> bool:
    """Whether a host is this machine.

    Args:
        host: a name or an address; one that does not resolve is elsewhere.
        local: the addresses of this machine.
    """
    try:
        addresses = resolve(host)
    except OSError:
        return False
    local = frozenset(local)
    return any(ip.is_loopback or ip in local for ip in addresses)


def source_toward(ip: IP) -> IP:
    """The address from which this machine would talk to another.

    Args:
        ip: the other's address. Nothing is sent to it.

    Raises:
        OSError: there is no route.
    """
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing: it picks the route.
        probe.connect((str(ip), 9))
        return parse_ip(probe.getsockname()[0])


def choose_interface(cluster: Cluster) -> str:
    """The interface through which this member joins the ring.

    The user's `HOROVOD_GLOO_IFACE` wins. Without it Gloo would bind what
    the host name resolves to, often 127.0.1.1, which no one else reaches.

    Args:
        cluster: the cluster, with the addresses of its members.

    Returns:
        The loopback interface when all members are on this machine, else
        the one that holds the chief's address (on the chief) or leads to
        it.

    Raises:
        StartError: there is none.
    """
    chosen = os.environ.get(INTERFACE)
    if chosen:
        return chosen
    interfaces = local_interfaces()
    hosts = list(
        dict.fromkeys(member.address.host for member in cluster.members)
    )
    away = [host for host in hosts if not is_here(host, interfaces)]
    # A host's own name may stand for 127.0.1.1: then any other host shows
    # the way out.
    sources = _sources([hosts[0], *away]) if away else [_LOOPBACK]
    for source in sources:
        if source in interfaces and not (away and source.is_loopback):
            return interfaces[source]
    raise StartError(
        "No network interface of this machine leads to the other members. "
        f"Name it in {INTERFACE}. Received: members on {', '.join(hosts)}; "
        f"interfaces {', '.join(sorted(set(interfaces.values())))}."
    )


def _sources(hosts: Iterable[str]) -> Iterator[IP]:
    """Where this machine stands, seen from each of the hosts."""
    for host in hosts:
        # No name or no route: another host may still show the way.
        with contextlib.suppress(OSError):
            for ip in resolve(host):
                yield source_toward(ip)
