"""Collectives in graphs of TensorFlow."""

import numpy as np
import pytest

from tests.pool import PerRank


def summed_in_a_graph(is_constant):
    """Three calls of one graph, whose input may be known beforehand."""
    import tensorflow as tf

    from keras_mwms import world

    ring = world.join().ring

    @tf.function(autograph=False)
    def total(x):
        x = tf.ones_like(x) if is_constant else x
        (reduced,) = ring.all_reduce([x], "graph.sum")
        (sent,) = ring.broadcast([x], "graph.broadcast")
        return reduced, sent, ring.all_gather(x, "graph.gather")

    calls = [total(tf.ones((2,))) for _ in range(3)]
    return [[np.array(part).tolist() for part in call] for call in calls]


@pytest.mark.backend("tensorflow")
def test_what_is_known_beforehand_is_exchanged_in_every_call(cluster):
    """TensorFlow would compute it once, and the other replica would wait."""
    got = cluster(2).run(summed_in_a_graph, PerRank([True, False]), timeout=60)
    assert got == [[[[2, 2], [1, 1], [1, 1, 1, 1]]] * 3] * 2
