"""Pools of workers that live as long as the session and run its functions."""

import dataclasses
import io
import marshal
import pickle
import sys
import time
import types
import warnings
from collections import ChainMap
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import ClassVar

import cloudpickle

from tests.pool.crew import Crew
from tests.pool.environment import ROOT
from tests.pool.environment import Start
from tests.pool.messages import Answer
from tests.pool.messages import check_per_rank
from tests.pool.messages import for_rank

TIMEOUT = 120.0
GRACE = 5.0

DIED = "WorkerDied"
HUNG = "WorkerHung"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a call went on one rank.

    Attributes:
        rank: the rank.
        value: what the function returned, `None` when it failed.
        error_type: name of the exception's class, `None` when it went well;
            `"WorkerDied"` when the process ended, `"WorkerHung"` when it was
            still running and had to be killed.
        error_text: the text of the exception.
        details: the remote traceback, or the stacks of all threads, and the
            end of what the worker wrote during the call.
    """

    rank: int
    value: Any = None
    error_type: str | None = None
    error_text: str = ""
    details: str = ""

    def __str__(self) -> str:
        if self.error_type is None:
            return f"== rank {self.rank}: went well =="
        title = f"rank {self.rank}: {self.error_type}: {self.error_text}"
        return f"== {title} ==\n{self.details}"


class WorkerError(Exception):
    """A function failed on some ranks.

    Attributes:
        outcomes: the outcomes of all ranks.
    """

    def __init__(self, title: str, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = tuple(outcomes)
        super().__init__("\n".join([title, *map(str, self.outcomes)]))


class Pool:
    """Workers that are started on first use, and again after a failure.

    Args:
        size: the number of workers.
        start: how they are started.
    """

    def __init__(self, size: int, start: Start = "tf_config") -> None:
        self.size = size
        self.start = start
        self._crew: Crew | None = None

    def __repr__(self) -> str:
        return f"cluster({self.size}, start={self.start!r})"

    def run(
        self,
        fn: Callable[..., Any],
        *args: Any,
        timeout: float = TIMEOUT,
        **kwargs: Any,
    ) -> list[Any]:
        """Runs a function on every rank.

        Once a rank has failed, the others have a few seconds left: they may
        wait for it for ever. After a failure the workers are replaced.

        Args:
            fn: what to run. Anything defined in a test module may be used.
            *args: its arguments; a `PerRank` is replaced by its rank's item.
            timeout: seconds until the call is given up.
            **kwargs: its keyword arguments, likewise.

        Returns:
            One result a rank, in rank order.

        Raises:
            WorkerError: a rank raised, died, or did not answer in time.
        """
        outcomes = self._call(fn, args, kwargs, timeout, GRACE)
        failed = [o.rank for o in outcomes if o.error_type is not None]
        if failed:
            self.stop()
            name = getattr(fn, "__qualname__", repr(fn))
            title = f"{name} failed on ranks {failed} of {self}."
            raise WorkerError(title, outcomes)
        return [outcome.value for outcome in outcomes]

    def run_outcomes(
        self,
        fn: Callable[..., Any],
        *args: Any,
        timeout: float = TIMEOUT,
        **kwargs: Any,
    ) -> list[Outcome]:
        """Runs a function on every rank that is expected to fail on some.

        A rank's failure does not shorten the time of the others. The workers
        live on if all ranks answered.

        Args:
            fn: as in `run`.
            *args: as in `run`.
            timeout: seconds until the ranks that still run are killed.
            **kwargs: as in `run`.

        Returns:
            One outcome a rank, in rank order.
        """
        return self._call(fn, args, kwargs, timeout, grace=None)

    def pids(self) -> list[int]:
        """The process ids of the workers in rank order, started if need be."""
        return self._started().pids()

    def stop(self) -> None:
        """Ends the workers; the next call starts new ones.

        Warns with the stacks of those that did not end by themselves.
        """
        if self._crew is None:
            return
        crew, self._crew = self._crew, None
        for rank, stacks in crew.end().items():
            warnings.warn(
                f"Rank {rank} of {self} did not end by itself:\n{stacks}",
                RuntimeWarning,
                stacklevel=2,
            )

    def _kill(self) -> None:
        if self._crew is not None:
            crew, self._crew = self._crew, None
            crew.kill()

    def _started(self) -> Crew:
        if self._crew is not None and (dead := self._crew.dead()):
            output = [self._crew.output(rank) for rank in dead]
            self._kill()
            warnings.warn(
                "\n".join([f"Ranks {dead} of {self} died unused.", *output]),
                RuntimeWarning,
                stacklevel=2,
            )
        if self._crew is None:
            self._crew = Crew(self.size, self.start)
        return self._crew

    def _call(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timeout: float,
        grace: float | None,
    ) -> list[Outcome]:
        payloads = _pickle(fn, args, kwargs, self.size)
        crew = self._started()
        done = False
        try:
            before = crew.log_sizes()
            for rank, payload in enumerate(payloads):
                crew.send(rank, payload)
            answers = _collect(crew, timeout, grace)
            outcomes = _outcomes(crew, answers, before)
            done = all(answers.get(rank) for rank in range(self.size))
            return outcomes
        finally:
            # Also when the test itself is interrupted.
            if not done:
                self._kill()


class Clusters:
    """All pools of a session: `clusters(n, start=...)` gives one of them."""

    def __init__(self) -> None:
        self._pools: dict[tuple[int, Start], Pool] = {}

    def __call__(self, size: int, start: Start = "tf_config") -> Pool:
        return self._pools.setdefault((size, start), Pool(size, start))

    def stop(self) -> None:
        for pool in self._pools.values():
            pool.stop()


def _pickle(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    size: int,
) -> list[bytes]:
    """The call of every rank, with what test modules define by value."""
    for value in (*args, *kwargs.values()):
        check_per_rank(value, size)
    _register_test_modules()
    return [
        _dumps(
            (
                fn,
                tuple(for_rank(value, rank) for value in args),
                {key: for_rank(value, rank) for key, value in kwargs.items()},
            )
        )
        for rank in range(size)
    ]


class _Pickler(cloudpickle.Pickler):
    """Keeps the file names of code, unlike cloudpickle 3.

    Tracebacks show its lines by them, and TensorFlow's AutoGraph reads it.
    """

    dispatch_table: ClassVar[ChainMap[type, Callable[..., Any]]] = ChainMap(
        {types.CodeType: lambda code: (marshal.loads, (marshal.dumps(code),))},
        cloudpickle.Pickler.dispatch_table,
    )


def _dumps(value: object) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def _register_test_modules() -> None:
    """Lets cloudpickle send what test modules define by value.

    So workers need not import them, nor see an older state of theirs.
    """
    registered = cloudpickle.list_registry_pickle_by_value()
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "")
        if (
            path.name.startswith("test_")
            and path.is_relative_to(ROOT / "tests")
            and name == module.__name__
            and name not in registered
        ):
            cloudpickle.register_pickle_by_value(module)


def _collect(
    crew: Crew, timeout: float, grace: float | None
) -> dict[int, Answer | None]:
    """Waits for all ranks; after a failure only for the grace, if any."""
    deadline = time.monotonic() + timeout
    answers: dict[int, Answer | None] = {}
    while len(answers) < crew.size:
        waiting = set(range(crew.size)) - set(answers)
        new = crew.receive(waiting, deadline - time.monotonic())
        if not new:
            break
        answers.update(new)
        if grace is not None and any(
            answer is None or answer.failure for answer in new.values()
        ):
            deadline = min(deadline, time.monotonic() + grace)
    return answers


def _outcomes(
    crew: Crew,
    answers: Mapping[int, Answer | None],
    before: Mapping[int, int],
) -> list[Outcome]:
    """Puts the answers in rank order, with the stacks of who gave none."""
    hung = [rank for rank in range(crew.size) if rank not in answers]
    stacks = crew.stacks(hung)
    outcomes = []
    for rank in range(crew.size):
        answer = answers.get(rank)
        output = crew.output(rank, before[rank])
        if rank in stacks:
            what = "still running, killed. Its stacks:"
            details = f"{stacks[rank]}\n{output}"
            outcome = Outcome(rank, None, HUNG, what, details)
        elif answer is None:
            what = f"its process ended ({crew.status(rank)})"
            details = f"{crew.dump(rank)}\n{output}"
            outcome = Outcome(rank, None, DIED, what, details)
        elif failure := answer.failure:
            details = f"{failure.traceback}{output}"
            outcome = Outcome(
                rank, None, failure.error_type, failure.error_text, details
            )
        else:
            outcome = Outcome(rank, pickle.loads(answer.value))
        outcomes.append(outcome)
    return outcomes
