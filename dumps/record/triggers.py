"""What makes a dump while a program goes on: SIGUSR2, and exceptions that end in nobody's hands; and what is to be
noted at Ctrl-C, before the program is taken apart.

Each trigger has a function that puts it in place and returns the one that takes it away. What was there before is
called too, and is put back unless somebody else took the place in the meantime.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from dumps.record.seams.patches import Patches

log = logging.getLogger("pplx.record")

Undo = Callable[[], None]


def on_signal(dump: Callable[[], object]) -> Undo:
    """Call ``dump`` for each SIGUSR2, then the handler that the program had set before.

    Only the main thread may set handlers, and one that was set outside Python cannot be put back: nothing is done then.
    """
    if threading.current_thread() is not threading.main_thread():
        log.info("this recording began outside the main thread: SIGUSR2 makes no dump")
        return _nothing
    before = signal.getsignal(signal.SIGUSR2)
    if before is None:
        log.warning("SIGUSR2 is handled by code outside Python, and makes no dump of this recording")
        return _nothing

    def handle(number: int, frame: FrameType | None) -> None:
        dump()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGUSR2, handle)

    def undo() -> None:
        if signal.getsignal(signal.SIGUSR2) is not handle:
            return
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR2, before)
        else:
            log.warning("a recording ended outside the main thread in which it began: its handler of SIGUSR2 stays")

    return undo


def on_interrupt(note: Callable[[], object]) -> Undo:
    """Call ``note`` at each SIGINT, before what is done about it, which stays as it was.

    `asyncio.run` handles SIGINT itself only where it finds Python's own handler, so that one is left in its place, and
    asyncio's is wrapped. A handler of the program's own is called after ``note``.
    """
    patches = Patches()

    def wrap(on_sigint: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            note()
            return on_sigint(*args, **kwargs)

        return wrapper

    patches.wrap(asyncio.Runner, "_on_sigint", wrap)
    before = signal.getsignal(signal.SIGINT)
    own = callable(before) and before is not signal.default_int_handler
    if not own or threading.current_thread() is not threading.main_thread():
        return patches.undo

    def handle(number: int, frame: FrameType | None) -> None:
        note()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGINT, handle)

    def undo() -> None:
        patches.undo()
        if signal.getsignal(signal.SIGINT) is handle and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)

    return undo


def on_thread_exception(failed: Callable[[BaseException], object]) -> Undo:
    """Call ``failed`` with each exception that ends a thread, then whatever `threading.excepthook` was."""
    before = threading.excepthook

    def hook(args: Any, /) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            failed(args.exc_value)
        before(args)

    threading.excepthook = hook

    def undo() -> None:
        if threading.excepthook is hook:
            threading.excepthook = before

    return undo


def on_lost_task(failed: Callable[[BaseException], object]) -> Undo:
    """Call ``failed`` with the exception of each asyncio task or future that nobody asked for it, as the event loop
    notices. A loop whose program has set a handler of its own for this is left alone."""
    patches = Patches()

    def wrap(call_exception_handler: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> Any:
            with contextlib.suppress(Exception):
                error = context.get("exception")
                lost = "future" in context or "task" in context
                if lost and isinstance(error, Exception) and loop.get_exception_handler() is None:
                    failed(error)
            return call_exception_handler(loop, context)

        return wrapper

    patches.wrap(asyncio.BaseEventLoop, "call_exception_handler", wrap)
    return patches.undo


def _nothing() -> None:
    pass
