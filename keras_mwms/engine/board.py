"""Who has arrived at the chief, and the verdict over all of them."""

import dataclasses
import enum
import json
import logging
import math
import threading
import time
from collections.abc import Callable

from keras_mwms.engine import views
from keras_mwms.engine.views import View

# How long the chief holds one question of a member open.
POLL_SECONDS = 2.0
# A member that has not asked for so long is gone (killed, or cut off).
STALE_SECONDS = 10.0
# From the first disagreement to the verdict: others may still arrive, and
# then learn of it too.
GRACE_SECONDS = 3.0

_log = logging.getLogger(__name__)


class State(enum.Enum):
    """What the chief says to a member that asks."""

    WAITING = "waiting"
    GO = "go"
    BUSY = "busy"
    REFUSED = "refused"
    TIMED_OUT = "timed out"


@dataclasses.dataclass(frozen=True)
class Answer:
    """The chief's answer to a member.

    Attributes:
        state: what the chief says.
        text: the message of the error, when it is one.
        missing: the members that have not arrived yet, in words.
    """

    state: State
    text: str = ""
    missing: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        """The answer as JSON."""
        return json.dumps(
            {
                "state": self.state.value,
                "text": self.text,
                "missing": self.missing,
            }
        ).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "Answer":
        """Reads what `to_json` made.

        Raises:
            ValueError: the text is something else.
        """
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("An answer is a JSON object.")
        missing = data.get("missing", [])
        if not isinstance(missing, list):
            raise ValueError("An answer's missing members are a list.")
        return cls(
            State(data.get("state")),
            str(data.get("text", "")),
            tuple(map(str, missing)),
        )


class BoardFullError(RuntimeError):
    """More processes arrived than any cluster of this size explains."""


@dataclasses.dataclass
class _Arrival:
    view: View
    since: float
    heard: float


class Board:
    """The members that have arrived. Safe to use from many threads.

    A task whose first process died while it waited may start again: two
    processes of one task are a conflict only when the elder is heard of
    after the younger arrived.
    """

    def __init__(
        self, own: View, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.own = own
        self._clock = clock
        self._changed = threading.Condition()
        self._arrivals = {own.process: _Arrival(own, clock(), math.inf)}
        self._limit = 4 * own.size + 16
        self._conflict_since: float | None = None
        self._verdict: Answer | None = None
        self._told = {own.process}

    def register(self, view: View) -> Answer:
        """Notes that a member has arrived.

        Args:
            view: what it believes the cluster to be.

        Returns:
            What to tell it.

        Raises:
            BoardFullError: far too many processes arrived.
        """
        with self._changed:
            if self._verdict is None:
                if len(self._arrivals) >= self._limit:
                    raise BoardFullError
                now = self._clock()
                self._arrivals[view.process] = _Arrival(view, now, now)
                self._judge()
                self._changed.notify_all()
            elif view.process not in self._arrivals:
                return self._turn_away(view)
            return self._tell(view.process)

    def poll(self, process: str, seconds: float) -> Answer | None:
        """Waits for the verdict on behalf of a member.

        Args:
            process: the name of its process.
            seconds: how long to wait at most.

        Returns:
            What to tell it, `None` when the process is not known (it never
            registered, or had not been heard of for too long).
        """
        with self._changed:
            if process not in self._arrivals:
                return None
            self._arrivals[process].heard = self._clock()
            self._judge()
            self._changed.wait_for(
                lambda: self._verdict or process not in self._arrivals,
                timeout=seconds,
            )
            return self._tell(process) if process in self._arrivals else None

    def withdraw(self, process: str) -> None:
        """Forgets a member that gave up waiting or has left the ring."""
        with self._changed:
            if process != self.own.process:
                self._arrivals.pop(process, None)
                self._changed.notify_all()

    def refuse(self, text: str) -> None:
        """Ends the start with an error for all, if it has not ended yet."""
        with self._changed:
            if self._verdict is None:
                self._rule(Answer(State.REFUSED, text))

    def settle(self, seconds: float) -> Answer:
        """Waits until all members have arrived and agree.

        Args:
            seconds: how long to wait at most.

        Returns:
            The verdict. When it is an error, every member that is still
            waiting has been told, or is gone.
        """
        deadline = self._clock() + seconds
        with self._changed:
            while self._verdict is None:
                self._judge()
                left = deadline - self._clock()
                if self._verdict is None and left <= 0:
                    self._rule(self._give_up(seconds))
                elif self._verdict is None:
                    # At least once a second, for those that went silent.
                    self._changed.wait(min(left, 1.0))
            if self._verdict.state is not State.GO:
                self._changed.wait_for(
                    lambda: self._told >= self._arrivals.keys(),
                    timeout=POLL_SECONDS,
                )
            return self._verdict

    def _judge(self) -> None:
        """Reaches a verdict if the arrivals allow one."""
        if self._verdict is not None:
            return
        now = self._clock()
        self._arrivals = {
            process: arrival
            for process, arrival in self._arrivals.items()
            if now - arrival.heard < STALE_SECONDS
        }
        sentences = views.differences(self._views()) + views.duplicates(
            self._confirmed()
        )
        if not sentences:
            self._conflict_since = None
            if not self._missing() and len(self._arrivals) == self.own.size:
                self._rule(Answer(State.GO))
            return
        if self._conflict_since is None:
            self._conflict_since = now
        if not self._missing() or now - self._conflict_since >= GRACE_SECONDS:
            self._rule(Answer(State.REFUSED, views.summary(sentences)))

    def _views(self) -> list[View]:
        return [arrival.view for arrival in self._arrivals.values()]

    def _confirmed(self) -> list[View]:
        """The views without processes that a younger one may replace."""
        arrivals = self._arrivals.values()
        return [
            arrival.view
            for arrival in arrivals
            if not any(
                younger.view.rank == arrival.view.rank
                and arrival.heard < younger.since
                for younger in arrivals
            )
        ]

    def _missing(self) -> tuple[str, ...]:
        there = {view.rank for view in self._views()}
        return tuple(
            label
            for rank, label in enumerate(self.own.members)
            if rank not in there
        )

    def _give_up(self, seconds: float) -> Answer:
        sentences = views.differences(self._views()) + views.duplicates(
            self._views()
        )
        if sentences:
            return Answer(State.REFUSED, views.summary(sentences))
        missing = self._missing()
        return Answer(State.TIMED_OUT, never_started(missing, seconds), missing)

    def _rule(self, verdict: Answer) -> None:
        self._verdict = verdict
        self._changed.notify_all()

    def _tell(self, process: str) -> Answer:
        if self._verdict is None:
            return Answer(State.WAITING, missing=self._missing())
        self._told.add(process)
        self._changed.notify_all()
        return self._verdict

    def _turn_away(self, view: View) -> Answer:
        """Answers a process that comes after the verdict."""
        verdict = self._verdict
        if verdict is None or verdict.state is not State.GO:
            return verdict or Answer(State.WAITING)
        others = self._views()
        if view.rank < self.own.size and view.rank not in {
            other.rank for other in others
        }:
            # Its predecessor has left: this is a member of the next run.
            return Answer(State.BUSY)
        text = views.summary(
            views.differences([self.own, view])
            or views.duplicates([*others, view])
        )
        _log.warning("A process came late and was refused. %s", text)
        return Answer(
            State.REFUSED,
            f"{text}\nThe others are training already. If a run before this "
            "one is still ending, start again when it has ended.",
        )


def never_started(missing: tuple[str, ...], seconds: float) -> str:
    """The message about members that did not arrive.

    Args:
        missing: these members, in words.
        seconds: how long the others waited.
    """
    return (
        f"Not all members of the cluster started within "
        f"{round(seconds, 1):g} seconds. "
        f"Received no sign of: {', '.join(missing)}. Start them, see that "
        "they can reach the chief, or allow more time with "
        "KERAS_MWMS_START_TIMEOUT (seconds)."
    )
