"""PyTorch's `DataLoader`: each replica loads its own rows only."""

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import torch
from torch.utils.data import DataLoader
from torch.utils.data import DistributedSampler
from torch.utils.data import IterableDataset

from keras_mwms.collectives import Collectives
from keras_mwms.data import notes
from keras_mwms.data import slices
from keras_mwms.data.source import Batches
from keras_mwms.data.source import Part
from keras_mwms.data.source import Source


def splits_itself(ring: Collectives, loader: DataLoader[Any]) -> bool:
    """Whether a loader's sampler deals out the rows to replicas already.

    Args:
        ring: the collectives.
        loader: the user's loader.

    Returns:
        True if so; the user is told.

    Raises:
        ValueError: it deals them out to other replicas than there are.
    """
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if not isinstance(sampler, DistributedSampler) or sampler.num_replicas < 2:
        return False
    dealt = sampler.num_replicas, sampler.rank
    if dealt != (ring.size, ring.rank):
        raise ValueError(
            "The DistributedSampler of a DataLoader must deal out the rows to "
            "the replicas that there are. Leave it out, or pass "
            f"num_replicas={ring.size} and rank={ring.rank}. "
            f"Received: num_replicas={dealt[0]}, rank={dealt[1]}"
        )
    notes.tell(
        ring,
        "The DataLoader has a DistributedSampler: each replica's batches are "
        "taken for its own part of a step (policy OFF).",
    )
    return True


def can_choose(loader: DataLoader[Any], adapter: Any) -> bool:
    """Whether a loader can load some rows of a batch without the others."""
    return (
        not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
        and adapter.num_batches is not None
    )


class LoaderBatches(Batches):
    """The batches of a loader, as they are.

    Args:
        ring: the collectives, of which every replica makes one of these;
            `None` if each replica has a loader of its own.
        loader: the user's loader.
        adapter: Keras's adapter for it.
    """

    def __init__(
        self, ring: Collectives | None, loader: DataLoader[Any], adapter: Any
    ):
        self._ring = ring
        self._loader = loader
        # Of an iterable dataset the length is what its author promises.
        if not isinstance(loader.dataset, IterableDataset):
            self.num_batches = adapter.num_batches
        self.batch_size = adapter.batch_size
        self._passes = 0

    def start(self) -> Iterator[Any]:
        """Starts a pass, in the order that the chief draws."""
        if self._ring is None or self.num_batches is None:
            yield from map(_as_tuple, self._loader)
            return
        # The items of the dataset are batches.
        numbers = None
        if self._ring.rank == 0:
            numbers = list(_begun(self._loader))
        numbers = self._ring.broadcast_object(numbers)
        self._passes += 1
        yield from _loaded(
            self._loader,
            self._passes + 2**20 * self._ring.rank,
            sampler=numbers,
            batch_size=None,
        )

    def example(self) -> Any:
        """The first batch of a pass."""
        return next(self.start())


class LoadedRows(Source):
    """The rows that a replica loads of each batch.

    The chief draws the numbers of the rows by the user's own sampler, in one
    process's way, and tells them to the others.

    Args:
        ring: the collectives; every replica makes one.
        loader: the user's loader, see `can_choose`.
        adapter: Keras's adapter for it.
    """

    is_known = True

    def __init__(
        self,
        ring: Collectives,
        loader: DataLoader[Any],
        adapter: Any,
    ):
        self._ring = ring
        self._loader = loader
        self.num_batches = adapter.num_batches
        self.batch_size = adapter.batch_size
        if adapter.partial_batch_size and not loader.drop_last:
            self.tail = adapter.partial_batch_size
        self._passes = 0

    def start(self) -> Iterator[Part]:
        """Starts a pass. The random numbers are drawn where Keras does."""
        if keras.backend.backend() == "torch" and self._is_chief:
            return self._parts(_begun(self._loader))
        return self._parts(None)

    def on_tensorflow(self) -> None:
        """Keras looks at two batches, for which it draws."""
        if self._is_chief:
            list(itertools.islice(_begun(self._loader), 2))

    def example(self) -> Any:
        """The first rows, loaded here."""
        numbers = None
        if self._is_chief:
            numbers = next(_begun(self._loader))
        numbers = self._ring.broadcast_object(numbers)
        own = slices.slice_of(len(numbers), self._ring.size, 0)
        return next(iter(self._loading([numbers[own]])))

    @property
    def _is_chief(self) -> bool:
        return self._ring.rank == 0

    def _parts(self, drawn: Iterator[list[Any]] | None) -> Iterator[Part]:
        if drawn is None and self._is_chief:
            drawn = _begun(self._loader)
        numbers = self._ring.broadcast_object(
            None if drawn is None else list(drawn)
        )
        size, rank = self._ring.size, self._ring.rank
        own = [each[slices.slice_of(len(each), size, rank)] for each in numbers]
        fed = [
            mine or whole[:1] for mine, whole in zip(own, numbers, strict=True)
        ]
        for data, mine, whole in zip(
            self._loading(fed), own, numbers, strict=True
        ):
            yield Part(data, len(mine), len(whole))

    def _loading(self, batches: list[list[Any]]) -> Iterator[Any]:
        self._passes += 1
        stream = self._passes + 2**20 * self._ring.rank
        return _loaded(self._loader, stream, batch_sampler=batches)


def _loaded(
    loader: DataLoader[Any], stream: int, **order: Any
) -> Iterator[Any]:
    """Loads rows with all that the user's loader says, in another order.

    Args:
        loader: the user's loader.
        stream: seeds of its workers come from a generator of this number, so
            that the global one goes on as in one process.
        **order: which rows, as `DataLoader` takes them.

    Returns:
        An iterator over the batches.
    """
    options: dict[str, Any] = {}
    if loader.num_workers:
        options = {
            "prefetch_factor": loader.prefetch_factor,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    seed = (torch.initial_seed() + stream) % 2**63
    own = DataLoader(
        loader.dataset,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        generator=torch.Generator().manual_seed(seed),
        **order,
        **options,
    )
    return map(_as_tuple, own)


class _Numbers:
    """A dataset whose rows are their own numbers."""

    def __getitem__(self, number: Any) -> Any:
        return number


def _numbers_of(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader of row numbers that draws what the user's own would draw."""
    if loader.batch_sampler is None:
        return DataLoader(
            _Numbers(),
            batch_size=None,
            sampler=loader.sampler,
            collate_fn=_as_it_is,
            generator=loader.generator,
        )
    return DataLoader(
        _Numbers(),
        batch_sampler=loader.batch_sampler,
        collate_fn=list,
        generator=loader.generator,
    )


def _begun(loader: DataLoader[Any]) -> Iterator[Any]:
    """The numbers of the rows of a pass, as a loader begins it.

    A loader with worker processes asks its sampler at once for the batches
    that it makes ahead.
    """
    numbers = iter(_numbers_of(loader))
    ahead = loader.num_workers * (loader.prefetch_factor or 0)
    return itertools.chain(list(itertools.islice(numbers, ahead)), numbers)


def _as_it_is(number: Any) -> Any:
    return number


def _as_tuple(batch: Any) -> Any:
    return tuple(batch) if isinstance(batch, list) else batch
