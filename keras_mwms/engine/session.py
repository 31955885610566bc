"""The one ring that a process can be part of: its start and its end."""

import atexit
import dataclasses
import os
import threading
from collections.abc import Mapping

from keras_mwms.cluster.spec import Cluster
from keras_mwms.engine import environment
from keras_mwms.engine.library import HorovodLibrary
from keras_mwms.engine.meeting import Meeting
from keras_mwms.engine.meeting import meet
from keras_mwms.engine.network import choose_interface
from keras_mwms.engine.settings import Settings
from keras_mwms.errors import StartError


@dataclasses.dataclass(frozen=True)
class _Session:
    cluster: Cluster
    horovod: HorovodLibrary
    meeting: Meeting | None
    pid: int


_lock = threading.Lock()
_session: _Session | None = None


def start(
    cluster: Cluster,
    horovod: HorovodLibrary,
    versions: Mapping[str, str],
    *,
    settings: Settings | None = None,
) -> None:
    """Makes this process a member of a running ring.

    Does nothing in a cluster of one, and nothing when the same cluster
    runs already. The ring ends with the process or with `stop`.

    Args:
        cluster: the cluster.
        horovod: the library of the backend in use.
        versions: what must be the same on all members, for example
            `{"python": "3.11.2", "keras": "3.15.1"}`. Where a launcher made
            the ring it is not compared here: gather `View.of(cluster,
            versions)` and give all of them to `views.compare`.
        settings: the deadlines; from the environment when `None`.

    Raises:
        StartError: the members do not fit together, a port is taken, or
            this process is a member of another ring.
        StartTimeoutError: a member did not arrive.
        ClusterConfigError: a deadline in the environment makes no sense.
    """
    global _session
    with _lock:
        if _session is not None and _session.pid == os.getpid():
            _check_same(_session.cluster, cluster)
            return
        if cluster.size == 1:
            return
        settings = settings or Settings.from_environment()
        _session = _begin(cluster, horovod, versions, settings)


def stop() -> None:
    """Leaves the ring, if there is one. Runs at the end of the process."""
    global _session
    with _lock:
        session, _session = _session, None
    # A forked child has inherited the session, but is no member.
    if session is None or session.pid != os.getpid():
        return
    _end(session)


def current() -> Cluster | None:
    """The cluster whose ring this process is a member of, or `None`."""
    session = _session
    if session is None or session.pid != os.getpid():
        return None
    return session.cluster


def _check_same(running: Cluster, wanted: Cluster) -> None:
    if running != wanted:
        raise StartError(
            "This process is a member of a ring already, and a process can "
            "be in one ring alone. Call keras_mwms.engine.session.stop() "
            "first, or use a new process. "
            f"Received: {wanted} while in {running}."
        )


def _begin(
    cluster: Cluster,
    horovod: HorovodLibrary,
    versions: Mapping[str, str],
    settings: Settings,
) -> _Session:
    meeting = None
    if cluster.members:
        meeting = meet(cluster, versions, settings)
    session = _Session(cluster, horovod, meeting, os.getpid())
    try:
        with environment.applied(_variables(session, settings)):
            horovod.init()
        _check_ring(cluster, horovod)
    except BaseException:
        _end(session)
        raise
    return session


def _variables(session: _Session, settings: Settings) -> dict[str, str]:
    if session.meeting is None:
        return environment.for_launcher(settings)
    return environment.for_member(
        session.cluster,
        session.meeting.address,
        choose_interface(session.cluster),
        settings,
    )


def _check_ring(cluster: Cluster, horovod: HorovodLibrary) -> None:
    found = (horovod.rank(), horovod.size())
    if found != (cluster.rank, cluster.size):
        raise StartError(
            "Horovod runs another ring than the cluster describes. Leave "
            "hvd.init() to this package, set no HOROVOD_CONTROLLER, and "
            "when a launcher starts the script let its number of processes "
            f"be the cluster's. Received: rank {found[0]} of {found[1]} from "
            f"Horovod, rank {cluster.rank} of {cluster.size} from the "
            "cluster."
        )


def _end(session: _Session) -> None:
    try:
        # Returns when all members have heard of it, so that none needs the
        # rendezvous any more.
        session.horovod.shutdown()
    finally:
        if session.meeting:
            session.meeting.leave()


atexit.register(stop)
