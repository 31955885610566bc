"""Which of several descriptions of the cluster counts."""

import os
from collections.abc import Mapping

from keras_mwms.cluster.horovod_env import launched_cluster
from keras_mwms.cluster.resolver import ClusterResolver
from keras_mwms.cluster.spec import Cluster
from keras_mwms.cluster.spec import Origin
from keras_mwms.cluster.tf_config_resolver import TFConfigClusterResolver
from keras_mwms.cluster.wording import config_error


def choose_cluster(
    resolver: ClusterResolver | None = None,
    environ: Mapping[str, str] | None = None,
) -> Cluster:
    """Finds the cluster that this process belongs to.

    An explicit resolver counts first; then what `horovodrun` or `mpirun` set;
    then `TF_CONFIG`; else it is a world of one.

    Args:
        resolver: says the cluster, whatever the environment holds.
        environ: the environment to read; that of the process by default.

    Returns:
        The `Cluster`.

    Raises:
        ClusterConfigError: a description is wrong, or a launcher and
            `TF_CONFIG` contradict each other.

    Example:
    >>> choose_cluster(environ={}).size
    1
    """
    if resolver is not None:
        return resolver.cluster()
    if environ is None:
        environ = os.environ
    launched = launched_cluster(environ)
    described = TFConfigClusterResolver(environ).cluster()
    if launched is None or described.origin is Origin.ALONE:
        return described if launched is None else launched
    if launched.size != described.size:
        raise config_error(
            "The launcher and TF_CONFIG contradict each other.",
            f"launcher size={launched.size}, TF_CONFIG size={described.size} "
            f"for task type={described.task_type!r}",
            "Unset TF_CONFIG, or start the script without a launcher.",
        )
    # What a launcher started alone can still be a task outside the ring.
    return launched if described.members else described
