"""Processes that tests run functions and scripts in."""

from tests.pool.fresh import Finished as Finished
from tests.pool.fresh import FreshCluster as FreshCluster
from tests.pool.messages import PerRank as PerRank
from tests.pool.pool import Clusters as Clusters
from tests.pool.pool import Outcome as Outcome
from tests.pool.pool import Pool as Pool
from tests.pool.pool import WorkerError as WorkerError
