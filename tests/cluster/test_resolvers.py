"""The resolvers, in the shape of tf.distribute's."""

import pytest

from keras_mwms.cluster import Cluster
from keras_mwms.cluster import ClusterResolver
from keras_mwms.cluster import HorovodClusterResolver
from keras_mwms.cluster import TFConfigClusterResolver
from keras_mwms.cluster.spec import Origin
from keras_mwms.cluster.tf_config import parse_tf_config
from keras_mwms.errors import ClusterConfigError
from tests.cluster.configs import tf_config
from tests.cluster.test_horovod_env import HOROVODRUN

JOBS = {"chief": ["a:1"], "worker": ["b:2", "[::1]:3"], "ps": ["p:1"]}


class Given(ClusterResolver):
    """The smallest resolver: all else follows from the cluster."""

    def __init__(self, text):
        self.text = text

    def cluster(self):
        return parse_tf_config(self.text)


def test_tf_config_resolver():
    resolver = TFConfigClusterResolver(
        {"TF_CONFIG": tf_config(JOBS, "worker", 1)}
    )
    assert resolver.cluster().rank == 2
    assert resolver.cluster_spec() == JOBS
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.master() == ""
    assert resolver.master("worker", task_id=0, rpc_layer="grpc") == ""
    assert (resolver.environment, resolver.rpc_layer) == ("", None)


def test_tf_config_resolver_without_tf_config():
    resolver = TFConfigClusterResolver({})
    assert resolver.cluster() == Cluster(Origin.ALONE)
    assert resolver.cluster_spec() == {}
    assert (resolver.task_type, resolver.task_id) == (None, None)


def test_tf_config_resolver_orders_the_sparse_form():
    cluster = {"worker": {"2": "c:3", "0": "a:1"}}
    resolver = TFConfigClusterResolver(
        {"TF_CONFIG": tf_config(cluster, "worker", 2)}
    )
    assert resolver.cluster_spec() == {"worker": ["a:1", "c:3"]}


@pytest.mark.parametrize("task_type", ["ps", "evaluator"])
def test_tf_config_resolver_outside_the_ring_still_knows_the_jobs(task_type):
    resolver = TFConfigClusterResolver(
        {"TF_CONFIG": tf_config(JOBS, task_type, 0)}
    )
    assert resolver.cluster_spec() == JOBS
    assert (resolver.task_type, resolver.task_id) == (task_type, 0)


def test_tf_config_resolver_reads_the_environment_when_asked(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    resolver = TFConfigClusterResolver()
    assert resolver.cluster().size == 1
    monkeypatch.setenv("TF_CONFIG", tf_config(JOBS, "chief", 0))
    assert resolver.cluster().size == 3
    monkeypatch.setenv("TF_CONFIG", "{")
    for read in (resolver.cluster, resolver.cluster_spec):
        with pytest.raises(ClusterConfigError):
            read()


def test_horovod_resolver(monkeypatch):
    resolver = HorovodClusterResolver(HOROVODRUN)
    assert (resolver.cluster().rank, resolver.cluster().size) == (3, 5)
    assert resolver.cluster_spec() == {}
    assert (resolver.task_type, resolver.task_id) == (None, None)
    assert HorovodClusterResolver({}).cluster() == Cluster(Origin.ALONE)

    for variable in HOROVODRUN:
        monkeypatch.setenv(variable, HOROVODRUN[variable])
    assert HorovodClusterResolver().cluster() == resolver.cluster()


def test_a_resolver_need_only_know_the_cluster():
    resolver = Given(tf_config(JOBS, "worker", 0))
    ring = {name: JOBS[name] for name in ("chief", "worker")}
    assert resolver.cluster_spec() == ring
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)


def test_a_resolver_must_know_the_cluster():
    with pytest.raises(TypeError, match="cluster"):
        ClusterResolver()
