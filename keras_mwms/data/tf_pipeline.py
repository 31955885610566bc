"""A `tf.data` pipeline that draws the same order on every replica."""

import secrets
from collections.abc import Callable

import tensorflow as tf

from keras_mwms.collectives import Collectives
from keras_mwms.data import notes
from keras_mwms.data import tf_graph

# What TensorFlow calls datasets that do not read files and draw no order.
_OF_ARRAYS = frozenset(
    {
        "Batch",
        "Cache",
        "Concatenate",
        "Filter",
        "Map",
        "Options",
        "PaddedBatch",
        "ParallelBatch",
        "ParallelMap",
        "Prefetch",
        "Range",
        "Repeat",
        "Restructured",
        "Shuffle",
        "Skip",
        "Take",
        "TakeWhile",
        "Tensor",
        "TensorSlice",
        "Unbatch",
        "Zip",
    }
)


class Pipeline:
    """A dataset, which draws the same order on every replica.

    Args:
        ring: the collectives; every replica makes one.
        dataset: the user's dataset.

    Raises:
        ValueError: the pipelines differ, or one must be changed and cannot.
    """

    def __init__(self, ring: Collectives, dataset: tf.data.Dataset):
        self._ring = ring
        # What is made from its graph calls the Python functions of this one.
        self._users = self._dataset = dataset
        seeds = seeds_of_arrays(dataset)
        of_all = ring.gather_values(seeds is None)
        if len(set(of_all)) > 1:
            raise ValueError(
                "The replicas have different tf.data pipelines. Received, in "
                f"rank order, whether they are not of arrays alone: {of_all}"
            )
        self._graph: tf_graph.Graph | None = None
        self._inside: list[bool] = [False] * len(seeds or ())
        if seeds is None:
            self._graph = self._read("")
            seeds = self._graph.seeds()
            self._inside = self._graph.are_inside()
        self._common = self._agree(seeds)
        self._passes = 0
        self._set(inside=False)

    def files(self) -> list[int]:
        """How many files each of its readers reads. Every replica calls.

        Raises:
            ValueError: the replicas have different files.
        """
        files = [] if self._graph is None else self._graph.files()
        of_all = self._ring.gather_values(files)
        if any(other != of_all[0] for other in of_all):
            raise ValueError(
                "The replicas list different files, or in another order, so "
                "that dealing them out would leave files out and read others "
                "twice. Sort the list, and have all files on every worker; "
                "or set auto_shard_policy to OFF if each worker has files of "
                "its own. Received, in rank order: "
                f"{[sum(map(len, each)) for each in of_all]} files"
            )
        return [len(each) for each in files]

    def has_hint(self) -> bool:
        """Whether it says where it is to be sharded."""
        return self._graph is not None and self._graph.has_hint()

    def by_files(self) -> Callable[[], tf.data.Dataset]:
        """The part that reads this replica's own files.

        Returns:
            What makes the part for a pass.

        Raises:
            tf.errors.OpError: TensorFlow cannot split it so.
        """
        self._follow_hints(1, 0)
        # Nothing that its own files give needs to be alike.
        part = tf_graph.by_files(
            self._dataset, self._ring.size, self._ring.rank
        )
        return lambda: part

    def by_hints(self) -> Callable[[], tf.data.Dataset]:
        """The part that is left where the pipeline says it is to be sharded.

        Returns:
            What makes the part for a pass.
        """
        self._follow_hints(self._ring.size, self._ring.rank)
        return self._made_alike()

    def in_one_order(self) -> Callable[[], tf.data.Dataset]:
        """The whole, the same on all replicas.

        Returns:
            What makes the dataset for a pass, each time another one if its
            functions must draw a new order.
        """
        self._follow_hints(1, 0)
        return self._made_alike()

    def is_renewed(self) -> bool:
        """Whether each pass needs a dataset of its own."""
        return any(
            inside and pair is not None
            for inside, pair in zip(self._inside, self._common, strict=True)
        )

    def _made_alike(self) -> Callable[[], tf.data.Dataset]:
        if self._graph is not None and self._graph.make_deterministic():
            self._dataset = self._graph.dataset()
        options = tf.data.Options()
        options.deterministic = True

        def make() -> tf.data.Dataset:
            self._set(inside=True)
            return self._dataset.with_options(options)

        return make

    def _follow_hints(self, size: int, rank: int) -> None:
        if self._graph is not None and self._graph.has_hint():
            self._graph.follow_hints(size, rank)
            self._dataset = self._graph.dataset()

    def _set(self, *, inside: bool) -> None:
        """Gives common seeds to what draws inside of functions, or outside."""
        seeds = [
            pair and (pair[0], pair[1] + (self._passes if inside else 0))
            if is_inside == inside
            else None
            for is_inside, pair in zip(self._inside, self._common, strict=True)
        ]
        if any(seeds):
            notes.tell(
                self._ring,
                "A shuffle of the tf.data pipeline has no seed, or not the "
                "same on all replicas: it has a common one now, so that each "
                "row is used once in an epoch.",
            )
            self._graph = self._graph or self._read(
                "Give its shuffles a seed. "
            )
            self._graph.set_seeds(seeds)
            self._dataset = self._graph.dataset()
        self._passes += inside

    def _agree(self, seeds: list[list[int] | None]) -> list[list[int] | None]:
        """The seeds to set, `None` where they are alike as they are."""
        of_all = self._ring.gather_values(seeds)
        if any(len(other) != len(seeds) for other in of_all):
            raise ValueError(
                "The replicas have different tf.data pipelines. Received, in "
                "rank order, pipelines with this number of shuffles: "
                f"{[len(each) for each in of_all]}"
            )
        drawn = [[_seed(), _seed()] for _ in seeds]
        drawn = self._ring.gather_values(drawn)[0]
        return [
            None if _are_alike(pairs) else drawn[i]
            for i, pairs in enumerate(zip(*of_all, strict=True))
        ]

    def _read(self, advice: str) -> tf_graph.Graph:
        """The graph. Every replica calls.

        Args:
            advice: what else the user may do if there is none.
        """
        graph, reason = None, ""
        try:
            graph = tf_graph.Graph(self._dataset)
        except tf.errors.OpError as error:
            reason = f"{type(error).__name__}: {error}"
        # One replica may fail for want of memory, say.
        reasons = self._ring.gather_values(reason)
        if graph is None or any(reasons):
            raise ValueError(
                "TensorFlow cannot write the tf.data pipeline as a graph, "
                "which is needed to find its files and to shuffle alike on "
                f"all replicas. {advice}Leave out the operation that the "
                "reason names, or set auto_shard_policy to OFF if each "
                "replica has data of its own. Received, in rank order: "
                f"{reasons}"
            )
        return graph


def seeds_of_arrays(dataset: tf.data.Dataset) -> list[list[int] | None] | None:
    """The seeds of a pipeline that is known to begin with arrays.

    To look at the graph instead would copy the arrays.

    Args:
        dataset: the end of the pipeline.

    Returns:
        As `Graph.seeds`; `None` if the pipeline may read files, too.
    """
    kind = type(dataset).__name__.strip("_").removesuffix("Dataset")
    # To keep the order, an operation that does not must be changed.
    keeps_order = getattr(dataset, "_deterministic", "") != "false"
    if kind not in _OF_ARRAYS or not keeps_order:
        return None
    found: list[list[int] | None] = []
    for source in dataset._inputs():
        seeds = seeds_of_arrays(source)
        if seeds is None:
            return None
        found += seeds
    if kind == "Shuffle":
        found.append([int(dataset._seed), int(dataset._seed2)])
    return found


def _are_alike(pairs: tuple[list[int] | None, ...]) -> bool:
    """Whether an operation draws alike on all replicas.

    Args:
        pairs: its seeds on each; `None` where they are computed, from what
            is the same for all.
    """
    return None in pairs or (
        pairs[0] != [0, 0] and all(pair == pairs[0] for pair in pairs)
    )


def _seed() -> int:
    # Not from a generator that is part of what the user seeds. Room is left
    # for counting passes.
    return secrets.randbits(60) + 1
