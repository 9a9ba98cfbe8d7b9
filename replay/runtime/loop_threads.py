"""What the other threads of a program do while its loop has nothing to do: whether they work, or wait for that loop."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
from types import FrameType

from replay.runtime.clock import real_clock_gettime_ns

_FUTURE_WAITS = (concurrent.futures.Future.result.__code__, concurrent.futures.Future.exception.__code__)


def waits_for_a_future(frame: FrameType | None) -> bool:
    """Whether a thread stands in ``Future.result()`` of a future that is not done. It goes on when the loop does."""
    for _ in range(3):  # Condition.wait stands within it
        if frame is None:
            return False
        if frame.f_code in _FUTURE_WAITS:
            future = frame.f_locals.get("self")
            return isinstance(future, concurrent.futures.Future) and not future.done()
        frame = frame.f_back
    return False


def _is_anyio_worker(thread: threading.Thread) -> bool:
    return type(thread).__name__ == "WorkerThread" and type(thread).__module__ == "anyio._backends._asyncio"


def anyio_works(thread: threading.Thread) -> bool:
    """Whether ``thread`` is one of anyio's workers and has a job. Its queue counts a job until it has been reported."""
    if not _is_anyio_worker(thread) or getattr(thread, "stopping", False):
        return False
    return bool(getattr(getattr(thread, "queue", None), "unfinished_tasks", 0))


def is_counted(thread: threading.Thread) -> bool:
    """Whether ``thread`` belongs to the default executor of a loop, or to anyio."""
    return thread.name.startswith("asyncio_") or _is_anyio_worker(thread)


def cpu_ns(thread: threading.Thread) -> int | None:
    """Processor time that ``thread`` has had; None once it has ended.

    Asks for the kernel's clock of the thread by number. ``time.pthread_getcpuclockid`` would read memory that a thread
    ending in this moment has given back.
    """
    if sys.platform != "linux" or thread.native_id is None:
        return None
    try:
        return real_clock_gettime_ns(~thread.native_id << 3 | 6)  # 4: of one thread, 2: time that it was scheduled
    except OSError:
        return None
