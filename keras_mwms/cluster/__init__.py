"""Who takes part in the training. Imports no framework and no Horovod."""

from keras_mwms.cluster.choose import choose_cluster as choose_cluster
from keras_mwms.cluster.horovod_resolver import (
    HorovodClusterResolver as HorovodClusterResolver,
)
from keras_mwms.cluster.resolver import ClusterResolver as ClusterResolver
from keras_mwms.cluster.spec import Address as Address
from keras_mwms.cluster.spec import Cluster as Cluster
from keras_mwms.cluster.spec import Member as Member
from keras_mwms.cluster.tf_config_resolver import (
    TFConfigClusterResolver as TFConfigClusterResolver,
)
