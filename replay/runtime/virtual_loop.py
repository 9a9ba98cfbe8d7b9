"""An asyncio loop on virtual time: with nothing to do, it moves the clock to its next timer instead of waiting.

It is the stock selector loop with another selector and another ``time()``, so callbacks, tasks, signals, transports and
shutdown are asyncio's own, in their usual order.

Time stands still, and the loop really waits, while real work runs: someone holds the clock, a job is in an executor or
in one of anyio's worker threads, an asyncio subprocess lives, a pipe is registered, or another thread of the program is
executing. A job that itself waits for a coroutine of this loop is no work: the loop goes on for it. A thread of the
program's own that is blocked does not hold time, whatever it waits for: give such work to ``asyncio.to_thread``.

Without anything ready, any timer, and any work nothing can ever happen again: ``Stalled`` says so, and says who waits
for what.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import heapq
import os
import selectors
import stat
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from replay.runtime.clock import NS, VirtualClock, VirtualTimeInThread, real_monotonic, real_sleep
from replay.runtime.deadlines import DueHandle
from replay.runtime.errors import RuntimeReplayError
from replay.runtime.loop_threads import anyio_works, cpu_ns, is_counted, waits_for_a_future
from replay.runtime.waiting import WaitingTask, waiting_tasks

T = TypeVar("T")

HELD_WAIT_S = 0.005
"""How long one real wait for work takes at most. Work that reports to the loop ends it at once."""
THREADS_GRACE_S = 1.0
"""Other threads or sockets might still wake a loop with nothing to do; after this long they are taken not to."""
QUIET_S = 0.05
"""A thread that got no processor time for this long is taken to be blocked. Less, and a busy machine would decide."""
ROUND_S = 0.0002
"""How late a loop wakes, and so how far apart two timers may be that it runs in one round."""
LOOK_S = 0.001
"""How long other threads get to take the interpreter's lock before each look at them."""


class Stalled(RuntimeReplayError):
    """Nothing is ready, no timer is set, nothing runs: these tasks wait for ever. ``tasks`` are those that are not
    done. With ``threads`` or ``sockets`` it is no proof: a thread might still call in, a peer might still send, though
    none did so in a while."""

    remedy = (
        "Look at what each task waits for. The recorded program stood still here, or was cut off before it went on."
    )

    def __init__(self, tasks: list[WaitingTask], *, threads: tuple[str, ...] = (), sockets: int = 0) -> None:
        parts = [str(task) for task in tasks] or ["no task is left, and the loop was not stopped"]
        message = "no progress is possible: " + "; ".join(parts)
        if threads:
            message += f"; other threads are alive but blocked: {', '.join(threads)}"
        if sockets:
            message += f"; {sockets} sockets are open and silent"
        super().__init__(message)
        self.tasks = tasks
        self.threads = threads
        self.sockets = sockets

    @property
    def proven(self) -> bool:
        """Whether nothing at all could have gone on."""
        return not self.threads and not self.sockets


_ROUND = asyncio.BaseEventLoop._run_once.__code__  # type: ignore[attr-defined]


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose ``time()`` is ``clock.monotonic_ns()`` in seconds."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self._jobs: dict[asyncio.Future[Any], list[int]] = {}
        self._children: set[asyncio.SubprocessTransport] = set()
        self._waits_for_shutdown = 0
        self._places = 0
        super().__init__(_VirtualSelector(self))

    def time(self) -> float:
        """As `VirtualClock.look`: of two timers with one delay the one set first comes first, and a program that polls
        this clock gets somewhere. The loop's own looks cost nothing: how many rounds it takes is chance."""
        by_itself = sys._getframe(1).f_code is _ROUND
        return (self.clock.monotonic_ns() if by_itself else self.clock.look()) / NS

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = super().call_at(when, callback, *args, **kwargs)
        if self.clock.in_its_thread:
            self.clock.fresh_timers.add(self, timer)
        return timer

    def call_when_due(self, due_ns: int, callback: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        """As `call_at` for something recorded, whose time no computing moves. What has one time is called in one round,
        in the order in which it was given here."""
        self._places += 1
        timer = DueHandle(self._places, due_ns / NS, callback, args, self)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    async def wait_until_due(self, due_ns: int) -> None:
        """Wait for something recorded, if only until the next round."""
        if due_ns <= self.clock.monotonic_ns():
            await asyncio.sleep(0)
            return
        reached = self.create_future()
        timer = self.call_when_due(due_ns, _reach, reached)
        try:
            await reached
        finally:
            timer.cancel()

    def run_in_executor(  # type: ignore[override]  # typeshed's generic signature; what it takes is the same
        self, executor: concurrent.futures.Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        thread: list[int] = []
        if executor is None or isinstance(executor, concurrent.futures.ThreadPoolExecutor):
            job: Callable[..., T] = _InThread(func, thread)
        else:
            job = func  # goes to another process, or who knows where
        future: asyncio.Future[T] = super().run_in_executor(executor, job, *args)
        self._jobs[future] = thread
        # Runs in the loop after the result has made its waiters ready: between the two, time must not move.
        future.add_done_callback(lambda done: self._jobs.pop(done, None))
        return future

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        self._waits_for_shutdown += 1
        try:
            await super().shutdown_default_executor(*args, **kwargs)
        finally:
            self._waits_for_shutdown -= 1

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        return self._child(await super().subprocess_exec(*args, **kwargs))

    async def subprocess_shell(self, *args: Any, **kwargs: Any) -> Any:
        return self._child(await super().subprocess_shell(*args, **kwargs))

    def _child(self, made: tuple[asyncio.SubprocessTransport, Any]) -> tuple[asyncio.SubprocessTransport, Any]:
        self._children.add(made[0])
        return made

    def real_work(self) -> bool:
        """Whether anything of this loop is at work outside it, so that time must stand."""
        if self.clock.held or self._waits_for_shutdown:
            return True
        self._children = {child for child in self._children if child.get_returncode() is None}
        if self._children:
            return True
        frames = sys._current_frames()
        if any(not waits_for_a_future(frames.get(thread[0]) if thread else None) for thread in self._jobs.values()):
            return True
        return any(
            anyio_works(thread) and not waits_for_a_future(frames.get(thread.ident or 0))
            for thread in threading.enumerate()
        )


def _reach(reached: asyncio.Future[None]) -> None:
    if not reached.done():
        reached.set_result(None)


class _InThread:
    """A job that tells in which thread it runs. Keeps its function's name for logs and debuggers."""

    def __init__(self, func: Callable[..., Any], thread: list[int]) -> None:
        self._func = func
        self._thread = thread

    def __call__(self, *args: Any) -> Any:
        self._thread[:] = [threading.get_ident()]
        return self._func(*args)

    def __repr__(self) -> str:
        return repr(self._func)


class _VirtualSelector(selectors.DefaultSelector):
    """Moves the clock on where a selector would wait."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._pipes: set[int] = set()
        # Processor time when it last changed, and when that was seen.
        self._seen: weakref.WeakKeyDictionary[threading.Thread, tuple[int | None, float]] = weakref.WeakKeyDictionary()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        if stat.S_ISFIFO(os.fstat(key.fd).st_mode):
            self._pipes.add(key.fd)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self._pipes.discard(key.fd)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        clock = self._loop.clock
        if not clock.in_its_thread:
            return self._select_in_thread(timeout)
        # At least one nanosecond: rounding must not make a loop of steps that are no step.
        due = None if timeout is None else clock.monotonic_ns() + max(1, round(timeout * NS))
        silent_since = real_monotonic()
        while not ready and (due is None or clock.monotonic_ns() < due):
            if self._loop.real_work() or self._pipes or self._threads_run():
                ready = super().select(HELD_WAIT_S)
                silent_since = real_monotonic()
                continue
            ready = super().select(0)  # a job may have reported since the last look
            if ready:
                break
            until = None if due is None else max(due, round(self._last_of_a_round(due / NS) * NS))
            if clock.alarm_ns is not None and (until is None or clock.alarm_ns < until):
                clock.advance_to(clock.alarm_ns)
                ready = super().select(0)  # a handler of the loop's own is called by it
            elif until is not None:
                clock.advance_to(until)
            elif self._may_wake(silent_since):
                ready = super().select(HELD_WAIT_S)
            else:
                raise clock.refuse(self._stalled())
        return ready

    def _last_of_a_round(self, due: float) -> float:
        """When the last timer is set that a real loop would run in one round with that of ``due``: it wakes late."""
        timers = getattr(self._loop, "_scheduled", ())  # a heap, the next one first
        latest, left = due, [0]
        while left:
            at = left.pop()
            if at < len(timers) and (when := timers[at].when()) <= due + ROUND_S:
                latest = max(latest, when)
                left += [2 * at + 1, 2 * at + 2]
        return latest

    def _select_in_thread(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """A loop in a thread of its own may wait for others, which is real, but not for time."""
        if timeout is None:
            return super().select(None)
        name = threading.current_thread().name
        tasks = "; ".join(str(task) for task in waiting_tasks(self._loop)) or "no task"
        raise self._loop.clock.refuse(
            VirtualTimeInThread(f"the event loop in the thread {name!r} waits for a timer, with these tasks: {tasks}")
        )

    def _others(self) -> list[threading.Thread]:
        """The program's threads, without those whose jobs are counted one by one."""
        here = threading.current_thread()
        before = self._loop.clock.threads_before
        return [
            thread
            for thread in threading.enumerate()
            if thread is not here and thread not in before and not is_counted(thread)
        ]

    def _threads_run(self) -> bool:
        """Whether another thread of the program has had processor time of late."""
        others = self._others()
        if not others:
            return False
        real_sleep(LOOK_S)
        now = real_monotonic()
        for thread in others:
            cpu = cpu_ns(thread)
            if self._seen.get(thread, (-1, 0.0))[0] != cpu:
                self._seen[thread] = cpu, now
        return any(cpu is not None and now - since < QUIET_S for cpu, since in map(self._seen.__getitem__, others))

    def _may_wake(self, silent_since: float) -> bool:
        """Whether someone outside might still wake this loop. Threads and sockets get a while to do so."""
        if not self._others() and not self._open_sockets():
            return False
        return real_monotonic() - silent_since < THREADS_GRACE_S

    def _open_sockets(self) -> int:
        return len(self.get_map() or ()) - 1  # one is the loop's own

    def _stalled(self) -> Stalled:
        threads = tuple(sorted(thread.name for thread in self._others()))
        return Stalled(waiting_tasks(self._loop), threads=threads, sockets=self._open_sockets())
