from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from replay.targets.lockstep import Outcome, Seat, run


class Recorder:
    """Serves every wish with its double, and keeps what happened in order."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.outcomes: dict[int, Outcome] = {}

    def serve(self, seats: Any) -> None:
        self.log.append([(seat.index, seat.wish) for seat in seats])
        for seat in seats:
            seat.answer(2 * seat.wish)

    def ended(self, index: int, outcome: Outcome) -> None:
        self.log.append(f"end {index}")
        self.outcomes[index] = outcome


def asks(*wishes: int):
    def task(seat: Seat) -> list[int]:
        return [seat.ask(wish) for wish in wishes]

    return task


def test_all_meet_before_anything_is_served_and_the_order_is_that_of_the_tasks():
    seen = Recorder()
    run([asks(1, 2), asks(), asks(5)], seen.serve, at_once=3, on_end=seen.ended)
    assert seen.log == ["end 1", [(0, 1), (2, 5)], "end 2", [(0, 2)], "end 0"]
    assert [seen.outcomes[index].value for index in range(3)] == [[2, 4], [], [10]]


def test_no_more_than_so_many_are_begun():
    seen = Recorder()
    begun: list[int] = []
    run([asks(1)] * 5, seen.serve, at_once=2, on_begin=begun.append, on_end=seen.ended)
    assert begun == list(range(5))
    assert max(len(entry) for entry in seen.log if isinstance(entry, list)) == 2


def test_only_one_task_runs_at_a_time():
    running, most = 0, 0

    def task(seat: Seat) -> None:
        nonlocal running, most
        for _ in range(20):
            running += 1
            most = max(most, running)
            time.sleep(0.0002)
            running -= 1
            seat.ask(1)

    seen = Recorder()
    run([task] * 4, seen.serve, at_once=4, on_end=seen.ended)
    assert most == 1
    assert all(outcome.error is None for outcome in seen.outcomes.values())


def test_what_a_task_raises_is_its_outcome_and_the_others_go_on():
    def fails(seat: Seat) -> None:
        seat.ask(1)
        raise SystemExit(3)

    seen = Recorder()
    run([fails, asks(1, 2, 3)], seen.serve, at_once=2, on_end=seen.ended)
    assert isinstance(seen.outcomes[0].error, SystemExit)
    assert seen.outcomes[1].value == [2, 4, 6]


def test_an_error_in_the_place_of_an_answer_is_raised_where_it_was_asked_for():
    def careful(seat: Seat) -> str:
        try:
            seat.ask(1)
        except ValueError as error:
            return str(error)
        return "no error"

    def serve(seats: Any) -> None:
        for seat in seats:
            seat.answer(error=ValueError("refused"))

    seen = Recorder()
    run([careful], serve, at_once=1, on_end=seen.ended)
    assert seen.outcomes[0].value == "refused"


def test_a_clock_runs_for_its_own_work_and_its_share_only():
    clocks: dict[int, float] = {}

    def works(index: int, seconds: float):
        def task(seat: Seat) -> None:
            time.sleep(seconds)
            seat.ask(1)
            clocks[index] = seat.clock()

        return task

    def serve(seats: Any) -> None:
        time.sleep(0.05)
        for seat in seats:
            seat.answer(seconds=10.0 * (seat.index + 1))

    run([works(0, 0.0), works(1, 0.3)], serve, at_once=2, on_end=lambda index, outcome: None)
    assert 10.0 <= clocks[0] < 10.2
    assert 20.3 <= clocks[1] < 20.6


def test_when_the_server_fails_no_task_is_left_running():
    ended: list[str] = []

    def task(seat: Seat) -> None:
        try:
            seat.ask(1)
        finally:
            ended.append("left")

    def serve(seats: Any) -> None:
        raise RuntimeError("server")

    before = threading.active_count()
    with pytest.raises(RuntimeError, match="server"):
        run([task] * 3, serve, at_once=3, on_end=lambda index, outcome: None)
    assert ended == ["left"] * 3
    deadline = time.monotonic() + 5
    while threading.active_count() > before:
        assert time.monotonic() < deadline, "a thread is left"
        time.sleep(0.001)


def test_a_server_that_serves_nobody_is_a_bug_and_no_hang():
    with pytest.raises(RuntimeError, match="no wish was served"):
        run([asks(1)], lambda seats: None, at_once=1, on_end=lambda index, outcome: None)
