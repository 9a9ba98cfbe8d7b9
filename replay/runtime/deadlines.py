"""Deadlines that a program set at the end of its computing, where the clock of a replay shows the beginning still.

Computing takes no time in a replay. Where the program then asks for something recorded the clock jumps to when it did,
and a deadline that was set for that very request would be over at once. It moves along, unless the record shows that
computing had used it up.

asyncio moves no timers. `FreshTimers` changes their time in the heap of their loop: ``BaseEventLoop._scheduled`` and
``TimerHandle._when``, private names of asyncio's that have stayed the same since Python 3.7.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from typing import Any

_NS = 1_000_000_000
AT_ONCE_NS = 50_000_000
"""So soon after its deadline a program lets go of what it waits for."""

WasSetAfter = Callable[[int, int], bool]
"""Whether a deadline, given by its time and by how long the program computed, was set when it had computed."""


def set_after(let_go_ns: int | None, others: Sequence[int] = ()) -> WasSetAfter:
    """Goes by when the recorded program let go of what it asks for now without an answer, None if it did not; and by
    when it let go of ``others``. A deadline that was set before the computing, and was over by its end, fires then;
    one that was set after it would have fired later."""

    def was_set_after(when_ns: int, computed_ns: int) -> bool:
        if let_go_ns is not None and when_ns + computed_ns > let_go_ns + AT_ONCE_NS:
            return False
        at_once_ns = min(AT_ONCE_NS, computed_ns // 2)
        return not any(when_ns <= other <= when_ns + at_once_ns for other in others)

    return was_set_after


class FreshTimers:
    """Timers of loops that were set since time moved last."""

    def __init__(self) -> None:
        self._timers: list[tuple[Any, Any]] = []
        self._most = 1000

    def add(self, loop: asyncio.AbstractEventLoop, timer: asyncio.TimerHandle) -> None:
        if len(self._timers) >= self._most:  # a program that polls and never waits
            self._timers = [one for one in self._timers if _is_set(one[1])]
            self._most = 1000 + 2 * len(self._timers)
        self._timers.append((loop, timer))

    def clear(self) -> None:
        self._timers.clear()

    def move(self, by_ns: int, was_set_after: WasSetAfter) -> None:
        loops = {}
        for loop, timer in self._timers:
            if _is_set(timer) and was_set_after(round(timer.when() * _NS), by_ns):
                timer._when += by_ns / _NS
                loops[id(loop)] = loop
        for loop in loops.values():
            heapq.heapify(loop._scheduled)


class DueHandle(asyncio.TimerHandle):
    """A timer for something recorded: it keeps its time, and of those with one time the first made comes first."""

    __slots__ = ("_place",)

    def __init__(self, place: int, when: float, callback: Callable[..., Any], args: Any, loop: Any) -> None:
        super().__init__(when, callback, args, loop)
        self._place = place

    def __lt__(self, other: asyncio.TimerHandle) -> bool:
        if isinstance(other, DueHandle):
            return (self.when(), self._place) < (other.when(), other._place)
        return super().__lt__(other)


def _is_set(timer: Any) -> bool:
    return timer._scheduled and not timer.cancelled()
