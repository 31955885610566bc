"""Recurrent layers that keep a state for each row of a batch."""

from typing import Any

import keras

from keras_mwms import _keras
from keras_mwms.collectives import Collectives


def check_batches(
    ring: Collectives, model: keras.Model, shard: Any, steps: int | None
) -> None:
    """Raises if the states do not fit the rows that a replica is fed.

    Each replica keeps the states of its own rows: they are never merged. A
    step feeds the same slice of a batch to the same replica.

    Args:
        ring: the collectives.
        model: the model.
        shard: the adapter that feeds it.
        steps: number of steps of an epoch, `None` for all.

    Raises:
        ValueError: on every replica alike.
    """
    layers = [
        layer
        for layer in _keras.layers_of(model)
        if isinstance(layer, keras.layers.RNN)
        and layer.stateful
        and layer.states is not None
    ]
    batch = shard.batch_size
    if not layers or batch is None:
        return
    for layer in layers:
        rows = int(keras.tree.flatten(layer.states)[0].shape[0])
        if rows * ring.size != batch:
            raise ValueError(
                "A stateful recurrent layer keeps a state for each row of a "
                "batch, and a replica has a slice of the global batch: build "
                "the model with the replica's own batch size, for example "
                "keras.Input(batch_shape=(batch_size // "
                "keras_mwms.world_size(), ...)), with a batch_size that "
                "world_size() divides. Received: layer "
                f"'{layer.name}' built for {rows} rows, batch_size={batch} "
                f"on {ring.size} replicas"
            )
    whole = shard.num_batches - 1 if shard.has_partial_batch else None
    if whole is not None and (steps is None or steps > whole):
        raise ValueError(
            "A stateful recurrent layer needs batches of one size: pass a "
            "multiple of batch_size rows. Received: a last batch of "
            f"{shard.partial_batch_size} rows, batch_size={batch}"
        )
