"""Notes how the wall clock stood to monotonic time, and each time that changed.

Nothing of ``time`` is patched. The clocks are compared when a recording begins, when anything else is noted, once a
second in a thread, and when a dump is made. A change is noted with the time of the last look that did not see it yet:
whatever the program read since then, and failed from, it reads again in a replay.

Missed are jumps of 50 ms and less, and a clock that was set and set back between two looks. Where the program read the
clock between a look and the jump after it, a replay of that read shows the new time.

``time.time`` is looked up at each look: where a program put a clock of its own in its place, that one is recorded.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable

from dumps.record.seams.log import WorldLog
from dumps.record.seams.real_time import monotonic_ns
from dumps.schema import state_pb2 as pb

NS = 1_000_000_000
NOTICEABLE_NS = 50_000_000
INTERVAL_S = 1.0
MAX_CHANGES = 10_000
"""Of one recording. A program whose clock jumps at each look would otherwise fill memory."""
_STEADY_NS = 5_000_000  # two readings further apart say nothing of each other
_TRIES = 5

_samplers: list[_Sampler] = []


def install(log: WorldLog) -> Callable[[], None]:
    """Begin to watch the clock for ``log``; returns the function that ends it, after one more look."""
    sampler = _Sampler(log)
    sampler.look()
    _samplers.append(sampler)
    log.watchers.append(sampler.look)
    sampler.start()

    def undo() -> None:
        sampler.look()
        sampler.stop()
        log.watchers.remove(sampler.look)
        _samplers.remove(sampler)

    return undo


def look(log: WorldLog) -> None:
    """Compare the clocks now; whoever makes a dump of ``log`` does so first."""
    for sampler in list(_samplers):
        if sampler.log is log:
            sampler.look()


class _Sampler:
    def __init__(self, log: WorldLog) -> None:
        self.log = log
        self._offset: int | None = None
        self._seen_ns = 0  # monotonic time of the last look
        self._lock = threading.Lock()
        self._stop = _thread.allocate_lock()
        self._ended = _thread.allocate_lock()

    def look(self) -> None:
        # A look that is going on will do: this may be a signal handler that interrupted it.
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._compare()
        except Exception:  # a clock that the program put there may raise anything; it did not fail from our looking
            self.log.lost["clock looks"] += 1
        finally:
            self._lock.release()

    def _compare(self) -> None:
        for _ in range(_TRIES):
            before = monotonic_ns()
            wall = time.time()
            after = monotonic_ns()
            if after - before < _STEADY_NS:
                break
        else:
            return
        offset = int(wall * NS) - before
        if self._offset is None or abs(offset - self._offset) > NOTICEABLE_NS:
            self._note(before if self._offset is None else self._seen_ns, offset)
            self._offset = offset
        self._seen_ns = before

    def _note(self, monotonic_ns: int, offset: int) -> None:
        if len(self.log.clock_changes) >= MAX_CHANGES:
            self.log.lost["clock changes"] += 1
            return
        self.log.clock_changes.append(pb.ClockChange(monotonic_ns=monotonic_ns, wall_minus_monotonic_ns=offset))

    def start(self) -> None:
        self._stop.acquire()
        self._ended.acquire()
        # Not a threading.Thread: libraries that fake time ask whose frames are on the stack, and give `threading`
        # the real one. This thread must see what the program sees.
        _thread.start_new_thread(self._watch, ())

    def _watch(self) -> None:
        try:
            while not self._stop.acquire(timeout=INTERVAL_S):
                self.look()
        finally:
            self._ended.release()

    def stop(self) -> None:
        self._stop.release()
        self._ended.acquire(timeout=INTERVAL_S)
