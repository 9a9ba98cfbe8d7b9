"""Alarms of a replay: `signal.alarm` and `signal.setitimer` on the virtual clock, in place of the system's.

An alarm comes as the clock passes its time: while the program sleeps, waits for an answer, or its loop for a timer.
Then the signal is really raised, and Python does with it what it does. In a computation no time passes, so that an
alarm that broke one off does not come: `Alarms.unheard` knows it.

Real as before are the timers that count processor time (ITIMER_VIRTUAL, ITIMER_PROF). To wait for a signal
(`signal.sigwait` and its like) is refused: what signals came, and when, is not recorded. `signal.pause` waits for the
next alarm.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

from dumps.record.seams.rebind import StandIn, rebind
from dumps.schema import state_pb2 as pb
from replay.runtime.clock import NS, VirtualClock
from replay.runtime.errors import RuntimeReplayError

_WAITS = ("sigwait", "sigwaitinfo", "sigtimedwait")
_LONGEST_S = 2**31 - 1


class WaitsForSignal(RuntimeReplayError):
    """The program waits for a signal, or lets one end it. A recording keeps no signals but its own alarms'."""

    exit_code = 20
    remedy = (
        "Replay an entry that does not wait for signals; for a deadline, use a timeout of the client or of asyncio."
    )


class Alarms:
    """The alarm of one process: there is one, and the newest replaces it. ``rung`` counts those that came."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._interval_ns = 0
        self._handlers: list[Any] = []
        self.rung = 0

    def install(self) -> Callable[[], None]:
        """Be the alarms of this process; returns the way back, which also ends the one that is set."""
        functions: dict[str, Callable[..., Any]] = {
            "alarm": self._alarm,
            "setitimer": self._set,
            "getitimer": self._get,
            "pause": self._pause,
            **{name: self._refusing(name) for name in _WAITS},
        }
        there = {name: getattr(signal, name) for name in functions if hasattr(signal, name)}
        self._real_set, self._real_get = there["setitimer"], there["getitimer"]
        undo_names = rebind({real: StandIn(real, functions[name]) for name, real in there.items()})
        self._clock.ring = self._ring

        def undo() -> None:
            self._clock.alarm_ns = None
            undo_names()

        return undo

    def unheard(self, recorded: Sequence[pb.ExceptionInfo]) -> bool:
        """Whether the ``recorded`` exceptions came out of the handler of an alarm, and here none came."""
        if self.rung:
            return False
        codes = [getattr(handler, "__code__", None) for handler in self._handlers]
        handlers = {(one.co_qualname, os.path.basename(one.co_filename)) for one in codes if one is not None}
        frames = (frame for exception in recorded for frame in exception.frames)
        return any((frame.function, os.path.basename(frame.filename)) in handlers for frame in frames)

    def _alarm(self, seconds: int, /) -> int:
        whole = seconds.__index__()
        left_ns = self._left_ns()
        self._arm(whole * NS, 0)
        # As the system rounds: to the nearest second, and an alarm that is set is never 0 away.
        return max(1, (left_ns + NS // 2) // NS) if left_ns else 0

    def _set(self, which: int, seconds: float, interval: float = 0.0, /) -> tuple[float, float]:
        if which != signal.ITIMER_REAL:
            return self._real_set(which, seconds, interval)  # type: ignore[no-any-return]
        for given in (seconds, interval):
            if not 0 <= given < _LONGEST_S:
                raise signal.ItimerError(22, os.strerror(22))
        before = self._get(which)
        self._arm(round(seconds * NS), round(interval * NS))
        return before

    def _get(self, which: int, /) -> tuple[float, float]:
        if which != signal.ITIMER_REAL:
            return self._real_get(which)  # type: ignore[no-any-return]
        left_ns = self._left_ns()
        return left_ns / NS, (self._interval_ns / NS if left_ns else 0.0)

    def _pause(self) -> None:
        due = self._clock.alarm_ns
        if due is None:
            raise self._clock.refuse(WaitsForSignal("the program waits for a signal: signal.pause()"))
        self._clock.advance_to(due)

    def _refusing(self, name: str) -> Callable[..., Any]:
        def refused(*args: Any, **kwargs: Any) -> Any:
            raise self._clock.refuse(WaitsForSignal(f"the program waits for a signal: signal.{name}(...)"))

        return refused

    def _left_ns(self) -> int:
        due = self._clock.alarm_ns
        return 0 if due is None else max(1, due - self._clock.monotonic_ns())

    def _arm(self, ns: int, interval_ns: int) -> None:
        self._note_handler()
        self._interval_ns = interval_ns
        self._clock.catch_up_with_work()
        self._clock.alarm_ns = self._clock.monotonic_ns() + ns if ns > 0 else None
        self._clock.alarm_is_fresh = True

    def _note_handler(self) -> None:
        handler = signal.getsignal(signal.SIGALRM)
        if callable(handler):
            self._handlers.append(getattr(handler, "__func__", handler))

    def _ring(self) -> None:
        """The alarm's time has come. Raises what the program's handler raises."""
        due, clock = self._clock.alarm_ns, self._clock
        assert due is not None
        clock.alarm_ns = due + self._interval_ns if self._interval_ns else None
        self.rung += 1
        if signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
            raise clock.refuse(WaitsForSignal("an alarm comes that the program does not handle: it ends the process"))
        signal.raise_signal(signal.SIGALRM)
