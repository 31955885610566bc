"""One replica with the real Horovod: starts, sums over all, stops twice.

Prints what it found as JSON.
"""

import json
import os

from keras_mwms.cluster.choose import choose_cluster
from keras_mwms.cluster.spec import Cluster
from keras_mwms.engine import library
from keras_mwms.engine import session


def total(backend: str, value: float) -> float:
    """The sum of a number over all replicas."""
    if backend == "jax":
        import jax.numpy as jnp

        from keras_mwms.engine.jax import ops

        return float(ops.allreduce([jnp.full(3, value)], ["total"])[0][2])
    if backend == "torch":
        import horovod.torch as hvd
        import torch

        return float(hvd.allreduce(torch.full((3,), value), op=hvd.Sum)[2])
    import horovod.tensorflow as hvd
    import tensorflow as tf

    return float(hvd.allreduce(tf.fill(3, value), op=hvd.Sum)[2])


def run(cluster: Cluster, backend: str) -> dict[str, object]:
    before = dict(os.environ)
    horovod = library.load(backend)
    session.start(cluster, horovod, {"backend": backend})
    found = {
        "rank": horovod.rank(),
        "local": [horovod.local_rank(), horovod.local_size()],
        "total": total(backend, 10.0**cluster.rank),
        "current": session.current() == cluster,
        "environment": dict(os.environ) == before,
    }
    if os.environ.get("REPLICA_STOPS"):
        session.stop()
        session.stop()
        found["stopped"] = session.current() is None
        found["initialized"] = horovod.is_initialized()
    return found


if __name__ == "__main__":
    print(json.dumps(run(choose_cluster(), os.environ["KERAS_BACKEND"])))
