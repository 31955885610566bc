"""This process's place among the replicas. The ring starts on first use."""

import dataclasses
import importlib
import importlib.metadata
import platform
import threading
from typing import Any

import keras

from keras_mwms import cluster as clusters
from keras_mwms import collectives
from keras_mwms.cluster.spec import Cluster
from keras_mwms.cluster.spec import Origin
from keras_mwms.engine import library
from keras_mwms.engine import session
from keras_mwms.engine import views
from keras_mwms.version import __version__


@dataclasses.dataclass(frozen=True)
class World:
    """The cluster and the collectives of its ring."""

    cluster: Cluster
    ring: collectives.Collectives


_lock = threading.Lock()
_running: World | None = None


def join(resolver: Any = None) -> World:
    """Makes this process a member of its ring, if it is not one yet.

    Args:
        resolver: a cluster resolver; `None` finds the cluster by the
            environment: a launcher's variables, else `TF_CONFIG`, else a
            world of one, which needs no Horovod.

    Returns:
        The `World`.

    Raises:
        ClusterConfigError: the description of the cluster is wrong, or this
            task is no member of the ring.
        HorovodMissingError: Horovod is not installed for this backend.
        StartError: the members do not fit together.
        StartTimeoutError: a member did not arrive in time.
    """
    global _running
    with _lock:
        # A ring that runs is not left for what the environment says now.
        if resolver is None and _running and session.current():
            return _running
        cluster = clusters.choose_cluster(resolver)
        cluster.require_ring()
        if cluster.size == 1:
            return World(cluster, collectives.AloneCollectives())
        backend = keras.backend.backend()
        versions = _versions(backend)
        session.start(cluster, library.load(backend), versions)
        world = World(cluster, collectives.for_backend(backend))
        if cluster.origin is Origin.LAUNCHER:
            _compare_versions(world, versions)
        _running = world
        return world


def cluster() -> Cluster:
    """The cluster of this process. Starts nothing."""
    return session.current() or clusters.choose_cluster()


def rank() -> int:
    """This replica's number in the cluster, chief 0. Starts nothing.

    Example:
        >>> import keras_mwms
        >>> keras_mwms.rank()
        0
    """
    return cluster().rank


def world_size() -> int:
    """The number of replicas in the cluster. Starts nothing.

    Example:
        >>> import keras_mwms
        >>> keras_mwms.world_size()
        1
    """
    return cluster().size


def local_rank() -> int:
    """This replica's number among those of its host. Starts nothing."""
    return cluster().placement.local_rank


def is_chief() -> bool:
    """Whether this replica writes what all share. Starts nothing."""
    return cluster().is_chief


def barrier() -> None:
    """Returns when every replica has called it. Starts the ring.

    Raises:
        WorkerLostError: a replica was lost meanwhile.
    """
    join().ring.barrier()


def broadcast_object(value: Any, root: int = 0) -> Any:
    """Returns one replica's object on all. Every replica calls.

    Args:
        value: an object that can be pickled; only that of `root` matters.
        root: the rank whose object all get.

    Returns:
        The object.

    Example:
        >>> import keras_mwms
        >>> keras_mwms.broadcast_object({"seed": 7})
        {'seed': 7}
    """
    return join().ring.broadcast_object(value, root)


def _versions(backend: str) -> dict[str, str]:
    """What must be the same on all members."""
    framework = importlib.import_module(backend)
    return {
        "python": platform.python_version(),
        "keras": keras.__version__,
        "backend": backend,
        backend: str(framework.__version__),
        "horovod": importlib.metadata.version("horovod"),
        "keras_mwms": __version__,
    }


def _compare_versions(world: World, versions: dict[str, str]) -> None:
    """Under a launcher nobody has compared them yet."""
    mine = views.View.of(world.cluster, versions).to_json()
    gathered = world.ring.gather_bytes(mine)
    views.compare([views.View.from_json(text) for text in gathered])
