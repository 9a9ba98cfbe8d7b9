"""Runs several tasks side by side that stop together whenever they want something computed.

Each task is ordinary code in a thread of its own, and only one of all threads ever runs: a task goes on until it asks
for something or ends, then the next one does. Once all of them have asked, the calling thread serves some or all of
the wishes, for many tasks at once where that is cheaper. So what a task sees does not depend on the others, and the
order of everything is fixed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class Abandoned(BaseException):
    """Ends the threads of tasks when the caller gives up. No task may catch it."""


class Seat:
    """A task's place: what it wants, and its own clock.

    The clock, in seconds, runs while the task works and stands still while others do. Whoever serves a wish adds the
    task's share of that work with `answer`.
    """

    def __init__(self, index: int, back: threading.Semaphore) -> None:
        self.index = index
        self.wish: Any = None
        self.ended = False
        self.outcome: Outcome | None = None
        self._back = back
        self._go = threading.Semaphore(0)
        self._answer: Any = None
        self._error: BaseException | None = None
        self._answered = True
        self._spent = 0.0
        self._since: float | None = None

    def ask(self, wish: Any) -> Any:
        """Called by the task: wait for the answer to ``wish``. Raises what the server found instead of one."""
        self.wish, self._answered = wish, False
        self._stop()
        self._back.release()
        self._wait()
        answer, error = self._answer, self._error
        self.wish = self._answer = self._error = None
        if error is not None:
            raise error
        return answer

    def clock(self) -> float:
        return self._spent + (0.0 if self._since is None else time.perf_counter() - self._since)

    def answer(self, value: Any = None, *, error: BaseException | None = None, seconds: float = 0.0) -> None:
        """Called by the server. ``seconds`` is what the task's clock moves on by."""
        self._answer, self._error, self._answered = value, error, True
        self._spent += seconds

    @property
    def ready(self) -> bool:
        return self._answered and not self.ended

    def start(self, task: Callable[[Seat], Any]) -> None:
        threading.Thread(target=self._run, args=(task,), name=f"task-{self.index}", daemon=True).start()

    def resume(self) -> None:
        """Let the task run until it asks or ends."""
        self._go.release()
        self._back.acquire()

    def _wait(self) -> None:
        self._go.acquire()
        self._since = time.perf_counter()

    def _stop(self) -> None:
        self._spent, self._since = self.clock(), None

    def _run(self, task: Callable[[Seat], Any]) -> None:
        self._wait()
        try:
            if self._error is not None:
                raise self._error
            self.outcome = Outcome(value=task(self))
        except BaseException as error:  # whatever ends a task is its outcome, SystemExit included
            self.outcome = Outcome(error=error)
        self.ended = True
        self._back.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a task ended: its value, or what it raised."""

    value: Any = None
    error: BaseException | None = None


Serve = Callable[[Sequence[Seat]], None]


def run(
    tasks: Sequence[Callable[[Seat], Any]],
    serve: Serve,
    *,
    at_once: int,
    on_begin: Callable[[int], None] = lambda index: None,
    on_end: Callable[[int, Outcome], None],
) -> None:
    """Run all tasks, at most ``at_once`` of them begun and not ended.

    ``serve`` gets the seats of all that have asked, in the order of the tasks, and must answer at least one.
    ``on_begin`` and ``on_end`` are called on this thread, between the turns. What they or ``serve`` raise ends all
    tasks and is raised.
    """
    back = threading.Semaphore(0)
    seats: list[Seat] = []
    begun = 0
    try:
        while seats or begun < len(tasks):
            while begun < len(tasks) and len(seats) < at_once:
                seat = Seat(begun, back)
                on_begin(begun)
                seat.start(tasks[begun])
                seats.append(seat)
                begun += 1
            for seat in [seat for seat in seats if seat.ready]:
                seat.resume()
                if seat.outcome is not None:
                    seats.remove(seat)
                    on_end(seat.index, seat.outcome)
            if seats and not any(seat.ready for seat in seats):
                serve(seats)
                if not any(seat.ready for seat in seats):
                    raise RuntimeError("no wish was served, so nothing would ever go on")
    finally:
        for seat in seats:
            if not seat.ended:
                seat.answer(error=Abandoned())
                seat.resume()
