"""Data of the user's with a word on how they are split."""

from collections.abc import Generator
from collections.abc import Iterator
from typing import Any

from keras_mwms import _keras
from keras_mwms.data.policy import AutoShardPolicy


class Given:
    """What a `DistributedDataset` was made of.

    Attributes:
        data: `(x, y, sample_weight)` as `fit` takes them.
        is_own: whether each replica has batches of its own, which are used
            as they are. Otherwise all have the same data, which are split.
    """

    data: tuple[Any, Any, Any]
    is_own: bool

    @property
    def policy(self) -> AutoShardPolicy:
        """How data are split that do not say so themselves."""
        return AutoShardPolicy.OFF if self.is_own else AutoShardPolicy.AUTO

    def refuse(self, **arguments: Any) -> None:
        """Raises if anything is passed beside the dataset.

        Args:
            **arguments: arguments of `fit` by their names, None if absent.

        Raises:
            ValueError: one is not None.
        """
        for name, value in arguments.items():
            if value is not None:
                raise ValueError(
                    "Targets and weights are part of a distributed dataset: "
                    "its elements are (x,), (x, y) or (x, y, sample_weight). "
                    f"Received: {name} of type {type(value).__name__} beside "
                    "it"
                )


class Once(_keras.DataAdapter):  # type: ignore[misc]
    """A generator as it is: each pass goes on where the last one ended.

    Args:
        generator: the generator.
    """

    num_batches = None
    batch_size = None
    has_partial_batch = None
    partial_batch_size = None

    def __init__(self, generator: Generator[Any, Any, Any]):
        self.generator = generator

    def _go_on(self) -> Iterator[Any]:
        return self.generator

    get_jax_iterator = get_tf_dataset = get_torch_dataloader = _go_on
