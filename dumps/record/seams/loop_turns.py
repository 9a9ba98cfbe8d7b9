"""The time at which something was read: one for all that an event loop reads in one turn.

What sockets give in one turn of a loop reaches the program in one turn, however long it computes in between: two tasks
of a group that fail in it fail together. In a replay that is so again if all of it has one time. Each read comes a
little after the one before, so that their order is kept.

A turn ends where a callback runs that was scheduled in it: what is ready comes before what the sockets give next.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

from dumps.record.seams.real_time import monotonic_ns

STEP_NS = 100
"""Between two reads of one turn. A float of seconds tells them apart for as long as a machine runs."""


class _Turn(threading.local):
    """The turn that the loop of this thread is in. ``loop`` is None before its first read, and outside of a loop."""

    loop: weakref.ref[Any] | None = None
    next_ns = 0

    def end(self) -> None:
        self.loop = None


_turn = _Turn()


def turn_ns() -> int:
    """The monotonic time for what the running loop has just read; outside of a loop the present one."""
    loop, now = asyncio._get_running_loop(), int(monotonic_ns())
    if loop is None:
        return now
    if _turn.loop is not None and _turn.loop() is loop:
        _turn.next_ns += STEP_NS
        return _turn.next_ns
    try:
        loop.call_soon(_turn.end)
        _turn.loop, _turn.next_ns = weakref.ref(loop), now
    except (RuntimeError, TypeError):  # it is closed, or cannot be referred to
        pass
    return now
