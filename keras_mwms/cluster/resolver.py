"""What every cluster resolver has, in the shape of tf.distribute's."""

import abc

from keras_mwms.cluster.spec import Cluster


class ClusterResolver(abc.ABC):
    """Finds out who takes part in the training.

    The public shape is that of `tf.distribute.cluster_resolver`, with plain
    values. A subclass says the cluster; all else follows from it.
    """

    @abc.abstractmethod
    def cluster(self) -> Cluster:
        """Returns the ring, as this process sees it.

        Raises:
            ClusterConfigError: the description of the cluster is wrong.
        """

    def cluster_spec(self) -> dict[str, list[str]]:
        """Returns the addresses of every job, by name.

        Returns:
            For example `{"worker": ["host1:5001", "host2:5001"]}`; empty
            when addresses are not known.

        Raises:
            ClusterConfigError: the description of the cluster is wrong.
        """
        spec: dict[str, list[str]] = {}
        for member in self.cluster().members:
            spec.setdefault(member.task_type, []).append(str(member.address))
        return spec

    @property
    def task_type(self) -> str | None:
        """The type of this process's task, `None` where there is none."""
        return self.cluster().task_type

    @property
    def task_id(self) -> int | None:
        """The index of this process's task, `None` where there is none."""
        return self.cluster().task_id

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Returns `""`: there is no TensorFlow session to connect to.

        Args:
            task_type: ignored.
            task_id: ignored.
            rpc_layer: ignored.
        """
        return ""

    @property
    def environment(self) -> str:
        """Always `""`: nothing depends on it."""
        return ""

    @property
    def rpc_layer(self) -> str | None:
        """Always `None`: no TensorFlow server runs."""
        return None
