"""Tells JAX what a shard consists of."""

import functools

import jax

from keras_mwms.data.batches import StaticShard


@functools.cache
def register() -> None:
    """Makes `StaticShard` a pytree: its data are traced, its rows are not."""
    jax.tree_util.register_dataclass(
        StaticShard, data_fields=["data"], meta_fields=["rows"]
    )
