"""The event loop whose tasks a dump shows, found from whatever thread the dump is made in."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from types import FrameType

_RUN_FOREVER = asyncio.BaseEventLoop.run_forever.__code__
_RUN = asyncio.Runner.run.__code__


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in the calling thread, else the main thread's, else any; None where none runs.

    Loops of other threads are found by the frames that run them. A loop written in C that was not started by
    `asyncio.run` is not found there.
    """
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop()
    main = threading.main_thread().ident
    frames = sys._current_frames()
    for ident in sorted(frames, key=lambda ident: ident != main):
        if (loop := _loop_of(frames[ident])) is not None:
            return loop
    return None


def loop_left_by(error: BaseException | None) -> asyncio.AbstractEventLoop | None:
    """The loop out of whose running ``error`` came, while it is not closed: its tasks stand where they stood."""
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        if trace.tb_frame.f_code is _RUN_FOREVER:
            loop = trace.tb_frame.f_locals.get("self")
            if isinstance(loop, asyncio.AbstractEventLoop) and not loop.is_closed():
                return loop
        trace = trace.tb_next
    return None


def _loop_of(frame: FrameType | None) -> asyncio.AbstractEventLoop | None:
    """The innermost loop on a stack."""
    while frame is not None:
        if frame.f_code is _RUN_FOREVER or frame.f_code is _RUN:
            owner = frame.f_locals.get("self")
            loop = getattr(owner, "_loop", owner)
            if isinstance(loop, asyncio.AbstractEventLoop):
                return loop
        frame = frame.f_back
    return None
