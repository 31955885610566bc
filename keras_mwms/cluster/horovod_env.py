"""What `horovodrun` and `mpirun` tell a process in its environment."""

import dataclasses
import re
from collections.abc import Mapping

from keras_mwms.cluster.spec import Cluster
from keras_mwms.cluster.spec import Origin
from keras_mwms.cluster.spec import Placement
from keras_mwms.cluster.wording import config_error
from keras_mwms.cluster.wording import quote
from keras_mwms.errors import ClusterConfigError

_NUMBER = re.compile(r"[0-9]{1,9}")
_ALONE = (0, 1)


@dataclasses.dataclass(frozen=True)
class _Launcher:
    """A launcher and the pairs of variables (rank, size) that it sets."""

    name: str
    ring: tuple[str, str]
    local: tuple[str, str]
    cross: tuple[str, str] | None = None

    @property
    def variables(self) -> tuple[str, ...]:
        return (*self.ring, *self.local, *(self.cross or ()))


# The first one that left a trace counts: horovodrun can run under another.
_LAUNCHERS = (
    _Launcher(
        "horovodrun",
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        ("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE"),
    ),
    _Launcher(
        "mpirun (Open MPI)",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ),
    _Launcher(
        "mpirun (MPICH)",
        ("PMI_RANK", "PMI_SIZE"),
        ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ),
)


def launched_cluster(environ: Mapping[str, str]) -> Cluster | None:
    """Reads the cluster that a launcher made this process a part of.

    Args:
        environ: the environment variables.

    Returns:
        The `Cluster`, without members since launchers do not tell the
        addresses; `None` when no launcher started this process. For `mpirun`,
        which does not number the hosts, the placement supposes that hosts
        are filled one after the other with equally many processes.

    Raises:
        ClusterConfigError: variables are missing or do not fit together.

    Example:
    >>> launched_cluster({}) is None
    True
    """
    for launcher in _LAUNCHERS:
        if any(variable in environ for variable in launcher.variables):
            return _read(launcher, environ)
    return None


def _read(launcher: _Launcher, environ: Mapping[str, str]) -> Cluster:
    rank, size = _pair(launcher, launcher.ring, environ)
    local_rank, local_size = _pair(launcher, launcher.local, environ, size)
    if launcher.cross is None:
        cross_rank, cross_size = rank // local_size, -(-size // local_size)
    else:
        cross_rank, cross_size = _pair(launcher, launcher.cross, environ, size)
    return Cluster(
        Origin.LAUNCHER,
        rank=rank,
        size=size,
        placement=Placement(local_rank, local_size, cross_rank, cross_size),
    )


def _pair(
    launcher: _Launcher,
    pair: tuple[str, str],
    environ: Mapping[str, str],
    world_size: int | None = None,
) -> tuple[int, int]:
    """Reads one pair of variables and checks it.

    In a world of one the other pairs may be absent: `srun` sets `PMI_RANK` and
    `PMI_SIZE` alone, also for a single process.
    """
    if world_size == 1 and not any(variable in environ for variable in pair):
        return _ALONE
    rank, size = (_number(launcher, variable, environ) for variable in pair)
    if rank >= size:
        raise _error(launcher, f"{pair[0]} is not below {pair[1]}", environ)
    if world_size is not None and size > world_size:
        wrong = f"{pair[1]} is above {launcher.ring[1]}"
        raise _error(launcher, wrong, environ)
    return rank, size


def _number(
    launcher: _Launcher, variable: str, environ: Mapping[str, str]
) -> int:
    text = environ.get(variable)
    if text is None:
        raise _error(launcher, f"{variable} is missing", environ)
    if not _NUMBER.fullmatch(text):
        raise _error(launcher, f"{variable} is not a whole number", environ)
    return int(text)


def _error(
    launcher: _Launcher, wrong: str, environ: Mapping[str, str]
) -> ClusterConfigError:
    found = (
        f"{variable}={quote(environ[variable])}"
        for variable in launcher.variables
        if variable in environ
    )
    return config_error(
        f"The variables of {launcher.name} are wrong: {wrong}.",
        ", ".join(found),
        f"Start the script with {launcher.name.split()[0]}, or unset these "
        "variables, or give a cluster resolver.",
    )
