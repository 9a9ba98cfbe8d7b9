"""Calls back when something has taken too long, from one thread for everything that is watched.

Not a timer of the event loop: a handler that never lets the loop run is one of the things that take too long. Not a
`threading.Thread`: libraries that fake time know those, and this one must wait for real.
"""

from __future__ import annotations

import _thread
import contextlib
import heapq
import itertools
import logging
import threading
from collections.abc import Callable

from dumps.record.seams.real_time import monotonic_ns

_log = logging.getLogger("pplx.record")


def _monotonic() -> float:
    return float(monotonic_ns() / 1e9)


class Watchdog:
    """Its thread begins with the first `watch` and ends with `stop`. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = _thread.allocate_lock()  # held while there is nothing new for the thread
        self._changed.acquire()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._cancelled: set[int] = set()
        self._numbers = itertools.count()
        self._runs = self._stopped = False

    def watch(self, seconds: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Call ``callback`` in ``seconds``, in the watchdog's thread. Returns what makes it not be called any more."""
        number = next(self._numbers)
        with self._lock:
            heapq.heappush(self._due, (_monotonic() + seconds, number, callback))
            if not self._runs:
                self._runs = True
                _thread.start_new_thread(self._run, ())
            first = self._due[0][1] == number
        if first:
            self._wake()

        def cancel() -> None:
            with self._lock:
                self._cancelled.add(number)
                if len(self._cancelled) > len(self._due) // 2 + 8:  # most of what is kept is over long ago
                    self._due = [one for one in self._due if one[1] not in self._cancelled]
                    heapq.heapify(self._due)
                    self._cancelled.clear()

        return cancel

    def stop(self) -> None:
        """Nothing is called from here on, but for a callback that runs already."""
        with self._lock:
            self._stopped = True
            self._due.clear()
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is awake
            self._changed.release()

    def _run(self) -> None:
        while not self._stopped:
            callback, wait = self._next()
            if callback is None:
                self._changed.acquire(timeout=wait)
                continue
            try:
                callback()
            except Exception:  # a callback's own bug must not end the watch over the others
                _log.exception("a deadline could not be handled")

    def _next(self) -> tuple[Callable[[], object] | None, float]:
        """What is due, or how many seconds nothing will be; -1 for as long as nothing changes."""
        with self._lock:
            while self._due:
                at, number, callback = self._due[0]
                wait = at - _monotonic()
                if wait > 0 and number not in self._cancelled:
                    return None, min(wait, _thread.TIMEOUT_MAX)
                heapq.heappop(self._due)
                if number not in self._cancelled:
                    return callback, 0.0
                self._cancelled.discard(number)
            return None, -1.0
