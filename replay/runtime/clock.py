"""The virtual clock: time as it stood in the recorded program, moved on by what the replayed one waits for.

Nothing passes by itself, except that each look at an installed clock takes a microsecond: programs divide by the time
that something took. Sleeping in the thread of the replay moves time on at once, and so does a virtual event loop with
nothing to do (``replay.runtime.loop``). While real work runs, ``hold`` keeps time still, so that no deadline fires
because of it.

Computing takes no time; the clock catches up with the record where something recorded is asked for. What the program
computed, it computed before it set the deadline of that request: deadlines that were set since time moved last move
along (`catch_up`), and one who looks at the clock after long computing sees that time already (`catch_up_with_work`).

Virtual once installed
    Wall time in all its forms (``time.time``, ``time_ns``, ``gmtime``, ``localtime``, ``strftime``, ``ctime``,
    ``asctime``, ``datetime.now``, ``date.today``, ``uuid.uuid1``), ``time.monotonic``, ``time.perf_counter``,
    ``time.clock_gettime`` with their ``_ns`` forms, and ``time.sleep``. Early-bound names too. For wall time this goes
    down to C (time-machine patches the functions themselves); of the others, module globals are found and replaced.
    Alarms (`replay.runtime.alarms`) come as time passes; so do the timers of a virtual loop.
Real as before
    ``time.process_time`` and ``time.thread_time``: they count the work of this process. Waiting with a timeout on
    locks, events, conditions, queues, futures, threads, subprocesses and sockets, in any thread: such a wait takes real
    time while virtual time stands. Default arguments, closures and class attributes that hold ``time.monotonic``,
    ``perf_counter`` or ``sleep`` since before (``sched.scheduler`` does), and C code that asks the system itself.
Refused
    ``time.sleep`` in another thread: two threads would move one clock, in an order that differs from run to run.
"""

from __future__ import annotations

import contextlib
import math
import operator
import queue
import selectors
import socketserver
import subprocess
import sys
import threading
import time
import types
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import _base as futures_base
from dataclasses import dataclass, field
from typing import Any

import time_machine

from dumps.record.seams.rebind import StandIn, rebind
from dumps.schema import state_pb2 as pb
from replay.runtime.deadlines import FreshTimers, WasSetAfter, set_after
from replay.runtime.errors import RuntimeReplayError
from replay.runtime.work import Work

NS = 1_000_000_000
LATEST_WALL_NS = 2**63
"""In the year 2262; no system's clock counts further."""

real_monotonic = time.monotonic
real_sleep = time.sleep
real_clock_gettime_ns = time.clock_gettime_ns

# They measure how long they really wait. With a clock that stands still meanwhile they would wait for ever.
_WAITING_MODULES = (threading, queue, subprocess, selectors, socketserver, futures_base)
REAL_WAITS = frozenset(module.__name__.split(".")[0] for module in _WAITING_MODULES) | {"multiprocessing"}


class VirtualTimeInThread(RuntimeReplayError):
    """A thread other than that of the replay would have to move virtual time. Usually ``time.sleep`` in a worker thread
    or in ``asyncio.to_thread``, or an event loop with timers in a thread of its own."""

    remedy = (
        "Sleep in the main thread, or await asyncio.sleep(); in a thread, wait on a threading.Event with a timeout, "
        "which takes real time."
    )


class ClockOutOfRange(RuntimeReplayError):
    """A recorded wall time lies before 1970 or after 2262. Usually a damaged dump, or one written by other code."""

    exit_code = 4
    remedy = "Check the dump: pplx-state verify DUMP."


@dataclass(kw_only=True, eq=False)
class VirtualClock:
    """Monotonic and wall time of a replay, in integer nanoseconds. Methods may be called from any thread.

    ``started_ns`` is the recorded monotonic time that the replay starts at. Wall time is monotonic time plus
    ``wall_minus_monotonic_ns``, or plus the offset of the last of ``changes`` whose time has come.
    ``look_ns`` is what it costs to ask an installed clock for the time; the float of a wall time shows no less than a
    microsecond. ``threads_before`` are the threads from before the program: they belong to whoever replays it.
    ``refusals`` keeps each error that the clock or a loop raised into the program: it may have swallowed it.

    Raises ClockOutOfRange if a wall time cannot be shown.
    """

    started_ns: int
    wall_minus_monotonic_ns: int
    changes: Sequence[pb.ClockChange] = field(default=(), repr=False)
    look_ns: int = 1000
    refusals: list[RuntimeReplayError] = field(default_factory=list)

    def __post_init__(self) -> None:
        in_order = sorted(self.changes, key=lambda change: change.monotonic_ns)
        self._change_times = [change.monotonic_ns for change in in_order]
        self._offsets = [self.wall_minus_monotonic_ns, *(change.wall_minus_monotonic_ns for change in in_order)]
        starts = [self.started_ns, *self._change_times]
        for at, offset in zip(starts, self._offsets, strict=True):
            if not 0 <= at + offset < LATEST_WALL_NS:
                raise ClockOutOfRange(f"the wall clock stands at {at + offset} ns since 1970, at monotonic {at} ns")
        self._now_ns = self.started_ns
        self.next_asked: Callable[[int], int | None] = _none_is_known
        self.fresh_timers = FreshTimers()
        self.work = Work()
        self.alarm_ns: int | None = None  # when the program wants a signal, and who raises it then
        self.alarm_is_fresh = False
        self.missed_ns: int | None = None  # when the recorded program failed, if that was for a deadline
        self.ring: Callable[[], None] = _nothing
        self._lock = threading.Lock()
        self._holds: Counter[int] = Counter()
        self._owner = threading.get_ident()
        self.threads_before = weakref.WeakSet(threading.enumerate())

    @classmethod
    def of(cls, program: pb.Program, changes: Iterable[pb.ClockChange] = ()) -> VirtualClock:
        """The clock that a recorded program ran under."""
        return cls(
            started_ns=program.started_ns,
            wall_minus_monotonic_ns=program.wall_minus_monotonic_ns,
            changes=tuple(changes),
        )

    def monotonic_ns(self) -> int:
        return self._now_ns

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 (UTC). Goes back, or jumps ahead, where the recorded clock did."""
        now = self._now_ns
        return now + self._offset_at(now)

    def _offset_at(self, monotonic_ns: int) -> int:
        return self._offsets[bisect_right(self._change_times, monotonic_ns)]

    def advance(self, ns: int) -> None:
        """Let ``ns`` nanoseconds pass. Raises ValueError if negative."""
        if ns < 0:
            raise ValueError(f"time does not go back: advance({ns})")
        self.advance_to(self._now_ns + ns)

    def advance_to(self, monotonic_ns: int) -> None:
        """Let time pass until ``monotonic_ns``; nothing happens if that is over. An alarm on the way comes at its time,
        and what its handler raises is raised here."""
        while self.in_its_thread and (due := self.alarm_ns) is not None and due <= monotonic_ns:
            self._move_to(due)
            self.ring()
        self._move_to(monotonic_ns)

    def _move_to(self, monotonic_ns: int) -> None:
        with self._lock:
            if monotonic_ns <= self._now_ns:
                return
            self._now_ns = monotonic_ns
            if self.in_its_thread:
                self.fresh_timers.clear()
                self.alarm_is_fresh = False
                self.work.begin()

    def catch_up(self, monotonic_ns: int, was_set_after: WasSetAfter | None = None) -> None:
        """Let time pass until ``monotonic_ns``, since the program computed until then.

        Deadlines that were set since time moved last move along where ``was_set_after`` says that they were set when
        the computing was over; without it where ``missed_ns`` does not tell that one was missed. Older ones fire.
        """
        by_ns = monotonic_ns - self._now_ns
        if by_ns <= 0:
            return
        was_set_after = was_set_after or set_after(self.missed_ns)
        if self.alarm_ns is not None and self.alarm_is_fresh and was_set_after(self.alarm_ns, by_ns):
            self.alarm_ns += by_ns
        self.fresh_timers.move(by_ns, was_set_after)
        self.advance_to(monotonic_ns)

    def catch_up_with_work(self) -> None:
        """The program is about to see the time. If it has computed for most of the time until it asks for something
        recorded, by ``next_asked`` after a time, it does not see the one at which it began to compute."""
        if not self.work.is_more():
            return
        asks_ns = self.next_asked(self._now_ns)
        if asks_ns is not None and self.work.took(asks_ns - self._now_ns):
            self.advance_to(asks_ns - self.look_ns)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Real work is running: a virtual loop really waits for it instead of moving time on. Nests."""
        thread = threading.get_ident()
        with self._lock:
            self._holds[thread] += 1
        try:
            yield
        finally:
            with self._lock:
                self._holds[thread] -= 1
                self._holds += Counter()  # drops the zeros

    @property
    def held(self) -> bool:
        return bool(self._holds)

    @property
    def in_its_thread(self) -> bool:
        """Whether this is the thread that may move time on: the one that made or installed the clock."""
        return threading.get_ident() == self._owner

    def look(self) -> int:
        """Monotonic time for a program that asks: in the clock's own thread time moves on a little, so that no two
        answers are equal. In others it does not: how often they ask before the main thread does is chance."""
        if not self.in_its_thread:
            return self._now_ns
        self.catch_up_with_work()
        now = self._now_ns
        if self.alarm_ns is not None and self.alarm_ns <= now + self.look_ns:
            self.advance(self.look_ns)
        else:
            with self._lock:
                self._now_ns += self.look_ns
        return now

    def _look_at_wall(self) -> int:
        now = self.look()
        return now + self._offset_at(now)

    def refuse(self, error: RuntimeReplayError) -> RuntimeReplayError:
        """Note an error that is about to be raised into the program."""
        self.refusals.append(error)
        return error

    def sleep(self, seconds: float) -> None:
        """What ``time.sleep`` does in a replay: time moves on by ``seconds``, and the call comes back at once.

        While another thread holds the clock it first waits for that one, really, and at most as long as a real sleep
        would: a program that polls for a worker's result would otherwise sleep its deadline away in no time.

        Raises what ``time.sleep`` raises for what is no duration, and VirtualTimeInThread in another thread.
        """
        ns = _duration_ns(seconds)
        if ns == 0:
            real_sleep(0)  # lets other threads run, which is what sleep(0) is for
            return
        if not self.in_its_thread:
            name = threading.current_thread().name
            raise self.refuse(VirtualTimeInThread(f"time.sleep({seconds!r}) was called in the thread {name!r}"))
        latest = real_monotonic() + ns / NS
        while self._held_elsewhere() and real_monotonic() < latest:
            real_sleep(min(0.001, ns / NS))
        self.advance(ns)

    def _held_elsewhere(self) -> bool:
        here = threading.get_ident()
        with self._lock:
            return any(thread != here for thread in self._holds)

    def install(self) -> Callable[[], None]:
        """Make this the clock of the whole process; returns the way back. The calling thread becomes the clock's own.

        Raises RuntimeReplayError if a virtual clock is in place already.
        """
        if _installed:
            raise RuntimeReplayError(
                "a virtual clock is installed already", remedy="Replay one program at a time in a process."
            )
        self._owner = threading.get_ident()
        self.threads_before = weakref.WeakSet(threading.enumerate())
        undo_wall_time = self._patch_wall_time()
        undo_the_rest = self._patch_the_rest()
        _installed.append(self)

        def undo() -> None:
            _installed.remove(self)
            undo_the_rest()
            undo_wall_time()

        return undo

    def _patch_wall_time(self) -> Callable[[], None]:
        travel = time_machine.travel(0, tick=False)
        traveller = travel.start()
        # Patched C functions ask the topmost traveller for its time. Its public methods know microseconds at best, and
        # would have to be called at each advance.
        traveller.time_ns = self.wall_ns  # type: ignore[method-assign]
        if time.time_ns() != self.wall_ns():
            travel.stop()
            raise RuntimeReplayError(
                "wall time could not be made virtual with the time-machine that is installed",
                remedy="Install another version: python -m pip install 'time-machine>=3,<4'.",
            )
        traveller.time_ns = self._look_at_wall  # type: ignore[method-assign]
        return travel.stop

    def _patch_the_rest(self) -> Callable[[], None]:
        real_time = types.ModuleType("time", "The real clock, for those who really wait.")
        vars(real_time).update(vars(time))
        replacements = {}
        for name, function in _functions(self).items():
            original = getattr(time, name)
            replacements[original] = StandIn(original, function)
        undo_names = rebind(replacements, keep=REAL_WAITS)
        waiting = [vars(module) for name, module in list(sys.modules.items()) if _really_waits(name)]
        waiting = [namespace for namespace in waiting if namespace.get("time") is time]
        for namespace in waiting:
            namespace["time"] = real_time

        def undo() -> None:
            for namespace in waiting:
                namespace["time"] = time
            undo_names()

        return undo


_installed: list[VirtualClock] = []
"""At most one."""


def _nothing() -> None:
    """No alarm is played."""


def _none_is_known(after_ns: int) -> None:
    """Nothing recorded is to come."""


def _really_waits(module_name: str) -> bool:
    return module_name.split(".", 1)[0] in REAL_WAITS


def _duration_ns(seconds: Any) -> int:
    """The nanoseconds that ``time.sleep`` would take; refuses what it refuses. Only zero gives zero."""
    if not isinstance(seconds, float):
        seconds = operator.index(seconds)
    elif math.isnan(seconds):
        raise ValueError("Invalid value NaN (not a number)")
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    if seconds * NS >= 2**63:
        raise OverflowError("timestamp too large to convert to C _PyTime_t")
    return max(1, round(seconds * NS)) if seconds else 0


def _functions(clock: VirtualClock) -> dict[str, Callable[..., Any]]:
    """What stands in for the functions of ``time`` that time-machine leaves real, by name."""
    real_clock_gettime, real_clock_gettime_ns = time.clock_gettime, time.clock_gettime_ns
    real_ctime, real_asctime = time.ctime, time.asctime
    monotonic_ids = {
        getattr(time, name)
        for name in ("CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW", "CLOCK_BOOTTIME", "CLOCK_UPTIME_RAW")
        if hasattr(time, name)
    }

    def monotonic() -> float:
        return clock.look() / NS

    def monotonic_ns() -> int:
        return clock.look()

    def perf_counter() -> float:
        return clock.look() / NS

    def perf_counter_ns() -> int:
        return clock.look()

    def clock_gettime(clock_id: int, /) -> float:
        return clock.look() / NS if clock_id in monotonic_ids else real_clock_gettime(clock_id)

    def clock_gettime_ns(clock_id: int, /) -> int:
        return clock.look() if clock_id in monotonic_ids else real_clock_gettime_ns(clock_id)

    def ctime(seconds: float | None = None, /) -> str:
        return real_ctime(time.time() if seconds is None else seconds)

    def asctime(*args: Any) -> str:
        return real_asctime(*args or (time.localtime(),))

    def sleep(seconds: float, /) -> None:
        clock.sleep(seconds)

    functions = (
        monotonic,
        monotonic_ns,
        perf_counter,
        perf_counter_ns,
        clock_gettime,
        clock_gettime_ns,
        ctime,
        asctime,
    )
    return {function.__name__: function for function in (*functions, sleep)}
