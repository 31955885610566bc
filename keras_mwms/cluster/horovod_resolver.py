"""The cluster that a launcher started."""

import os
from collections.abc import Mapping

from keras_mwms.cluster.horovod_env import launched_cluster
from keras_mwms.cluster.resolver import ClusterResolver
from keras_mwms.cluster.spec import Cluster
from keras_mwms.cluster.spec import Origin


class HorovodClusterResolver(ClusterResolver):
    """Reads the cluster from what `horovodrun` or `mpirun` set.

    These launchers do not tell the addresses, so `cluster_spec()` is empty.

    Args:
        environ: the environment to read; that of the process by default.

    Example:
    >>> environ = {"PMI_RANK": "0", "PMI_SIZE": "1"}
    >>> HorovodClusterResolver(environ).cluster().size
    1
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ

    def cluster(self) -> Cluster:
        """Returns the ring, as this process sees it.

        Returns:
            The `Cluster`; a world of one when no launcher started this
            process, as in Horovod.

        Raises:
            ClusterConfigError: the launcher's variables are wrong.
        """
        launched = launched_cluster(self._environ)
        return Cluster(Origin.ALONE) if launched is None else launched
