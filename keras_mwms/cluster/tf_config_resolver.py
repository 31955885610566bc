"""The cluster that `TF_CONFIG` describes."""

import os
from collections.abc import Mapping

from keras_mwms.cluster.resolver import ClusterResolver
from keras_mwms.cluster.spec import Cluster
from keras_mwms.cluster.tf_config import TFConfig
from keras_mwms.cluster.tf_config import read_tf_config


class TFConfigClusterResolver(ClusterResolver):
    """Reads the cluster from the environment variable `TF_CONFIG`.

    The variable is read on every call, so it may be set late.

    Args:
        environ: the environment to read; that of the process by default.

    Example:
    >>> import json
    >>> config = {
    ...     "cluster": {"worker": ["host1:5001", "host2:5001"]},
    ...     "task": {"type": "worker", "index": 1},
    ... }
    >>> resolver = TFConfigClusterResolver({"TF_CONFIG": json.dumps(config)})
    >>> resolver.cluster().rank
    1
    >>> resolver.cluster_spec()
    {'worker': ['host1:5001', 'host2:5001']}
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ

    def cluster(self) -> Cluster:
        """Returns the ring, as this process sees it.

        Returns:
            The `Cluster`; a world of one when `TF_CONFIG` is unset.

        Raises:
            ClusterConfigError: `TF_CONFIG` is wrong.
        """
        return self._read().cluster()

    def cluster_spec(self) -> dict[str, list[str]]:
        """Returns the addresses of every job, also of those outside the ring.

        Raises:
            ClusterConfigError: `TF_CONFIG` is wrong.
        """
        return {
            name: [str(address) for address in job.addresses]
            for name, job in self._read().jobs.items()
        }

    def _read(self) -> TFConfig:
        return read_tf_config(self._environ.get("TF_CONFIG"))
