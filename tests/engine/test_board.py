import json
import threading

import pytest

from keras_mwms.engine import board as boards
from keras_mwms.engine.board import Answer
from keras_mwms.engine.board import Board
from keras_mwms.engine.board import BoardFullError
from keras_mwms.engine.board import State
from tests.engine.clusters import make_view


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def board(clock, monkeypatch):
    # Nobody asks for the verdict here.
    monkeypatch.setattr(boards, "POLL_SECONDS", 0.0)
    return Board(make_view(0), clock)


def test_all_there_go(board):
    first, second = make_view(1), make_view(2)
    waiting = board.register(first)
    assert waiting == Answer(State.WAITING, missing=("worker 2 (c:3)",))
    assert board.register(second).state is State.GO
    assert board.poll(first.process, 0).state is State.GO
    assert board.settle(0).state is State.GO


def test_one_that_waits_is_woken(board):
    first = make_view(1)
    board.register(first)
    answers = []
    waiter = threading.Thread(
        target=lambda: answers.append(board.poll(first.process, 30))
    )
    waiter.start()
    board.register(make_view(2))
    waiter.join(10)
    assert [answer.state for answer in answers] == [State.GO]


def test_the_missing_are_named_at_the_deadline(board):
    board.register(make_view(2))
    verdict = board.settle(0)
    assert verdict.state is State.TIMED_OUT
    assert "worker 1 (b:2)" in verdict.text
    assert "worker 2" not in verdict.text


def test_all_learn_of_a_difference(board):
    first, second = make_view(1), make_view(2, keras="3.16.0")
    board.register(first)
    verdict = board.register(second)
    assert verdict.state is State.REFUSED
    assert "3.16.0 on worker 2 (c:3)" in verdict.text
    assert board.poll(first.process, 0) == verdict
    assert board.settle(0) == verdict


def test_a_difference_waits_a_little_for_the_others(board, clock):
    first = make_view(1, keras="3.16.0")
    assert board.register(first).state is State.WAITING
    clock.now += boards.GRACE_SECONDS
    assert board.poll(first.process, 0).state is State.REFUSED


def test_a_difference_beats_the_deadline(board):
    board.register(make_view(1, keras="3.16.0"))
    assert board.settle(0).state is State.REFUSED


@pytest.fixture
def waiting(board, clock):
    """A board at which worker 1 waits, and its view."""
    elder = make_view(1)
    board.register(elder)
    clock.now += 1
    return elder


def test_started_twice_while_both_live(board, clock, waiting):
    younger = make_view(1)
    assert board.register(younger).state is State.WAITING
    clock.now += 1
    board.register(make_view(2))
    verdict = board.poll(waiting.process, 0)
    assert verdict.state is State.REFUSED
    assert "worker 1 (b:2) was started twice" in verdict.text
    assert board.poll(younger.process, 0) == verdict
    assert board.settle(0) == verdict


def test_one_that_died_is_replaced(board, clock, waiting):
    younger = make_view(1)
    board.register(younger)
    other = make_view(2)
    assert board.register(other).state is State.WAITING
    clock.now += boards.STALE_SECONDS - 2
    assert board.poll(younger.process, 0).state is State.WAITING
    assert board.poll(other.process, 0).state is State.WAITING
    clock.now += 1
    assert board.poll(younger.process, 0).state is State.GO
    assert board.poll(waiting.process, 0) is None


def test_one_that_gave_up_is_replaced(board, waiting):
    board.withdraw(waiting.process)
    board.register(make_view(1))
    assert board.register(make_view(2)).state is State.GO


def test_the_chiefs_task_started_twice(board, clock):
    clock.now += 1
    board.register(make_view(0))
    clock.now += boards.GRACE_SECONDS
    verdict = board.settle(0)
    assert verdict.state is State.REFUSED
    assert "worker 0 (a:1) was started twice" in verdict.text


def test_one_that_went_silent_is_missing(board, clock, waiting):
    clock.now += boards.STALE_SECONDS
    verdict = board.settle(0)
    assert "worker 1 (b:2), worker 2 (c:3)" in verdict.text


def test_the_chief_cannot_be_withdrawn(board):
    board.withdraw(board.own.process)
    board.register(make_view(1))
    assert board.register(make_view(2)).state is State.GO


@pytest.fixture
def running(board):
    """The views of the members of a board that said go."""
    members = [make_view(1), make_view(2)]
    for view in members:
        board.register(view)
    return members


def test_a_member_may_ask_again(board, running):
    assert board.register(running[0]).state is State.GO


@pytest.mark.parametrize(
    ("late", "words"),
    [
        (make_view(1), "worker 1 (b:2) was started twice"),
        (make_view(3, "abcd"), "4 on worker 3"),
    ],
    ids=["twice", "another cluster"],
)
def test_who_comes_late_is_refused_alone(board, running, late, words):
    answer = board.register(late)
    assert answer.state is State.REFUSED
    assert words in answer.text
    assert board.settle(0).state is State.GO


def test_a_member_of_the_next_run_waits(board, running):
    board.withdraw(running[0].process)
    assert board.register(make_view(1)).state is State.BUSY


def test_the_board_is_bounded(board):
    for _ in range(4 * board.own.size + 15):
        board.register(make_view(1))
    with pytest.raises(BoardFullError):
        board.register(make_view(1))


def test_refused_from_outside(board):
    board.refuse("no")
    assert board.register(make_view(1)) == Answer(State.REFUSED, "no")


def test_json_gives_the_same_answer():
    answer = Answer(State.WAITING, "text", ("worker 1 (b:2)",))
    assert Answer.from_json(answer.to_json()) == answer


@pytest.mark.parametrize(
    "data", [[], {}, {"state": "go", "missing": 3}, {"state": "what"}]
)
def test_what_is_no_answer_is_refused(data):
    with pytest.raises(ValueError, match=r"answer|State"):
        Answer.from_json(json.dumps(data).encode())
