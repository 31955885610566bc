"""Clusters and views for tests, as values."""

from collections.abc import Sequence

from keras_mwms.cluster.spec import Address
from keras_mwms.cluster.spec import Cluster
from keras_mwms.cluster.spec import Member
from keras_mwms.cluster.spec import Origin
from keras_mwms.cluster.spec import place
from keras_mwms.engine.views import View

VERSIONS = {"keras": "3.15.1", "python": "3.11.2"}


def make_cluster(hosts: Sequence[str], rank: int = 0, port: int = 1) -> Cluster:
    """Workers on these hosts; the ports count up from `port`."""
    members = tuple(
        Member(i, "worker", i, Address(host, port + i))
        for i, host in enumerate(hosts)
    )
    return Cluster(
        Origin.TF_CONFIG,
        rank,
        len(hosts),
        place(tuple(hosts), rank),
        members,
        "worker",
        rank,
    )


def make_view(
    rank: int,
    hosts: Sequence[str] = ("a", "b", "c"),
    **versions: str,
) -> View:
    return View.of(make_cluster(hosts, rank), VERSIONS | versions)
