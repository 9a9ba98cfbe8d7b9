"""Stacks of this process as they are now: threads, asyncio tasks, and an exception with those it came from.

Functions, files and lines only. Local variables are never read: they hold people's text and keys.
"""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
import threading
from collections.abc import Collection, Iterable
from types import CodeType, FrameType, TracebackType

from dumps.schema import state_pb2 as pb

MAX_FRAMES = 200  # of one stack; the outermost are left out
MAX_THREADS = 1000
MAX_TASKS = 1000
MAX_EXCEPTIONS = 20
MAX_MESSAGE = 4000

_LIBRARY = tuple(
    os.path.realpath(path) + os.sep for path in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")} if path
)


def capture_threads(*, loop: asyncio.AbstractEventLoop | None = None, without: Collection[str] = ()) -> list[pb.Thread]:
    """Every thread of the process, the calling one first and marked ``current``, then the tasks of ``loop``.

    The calling thread's innermost frames are left out while they belong to this module or one of ``without``: how the
    dump is made says nothing of the failure.

    Safe to call from any thread; tasks of a loop that runs in another thread may have moved on while they are read.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    current = threading.get_ident()
    found = sorted(sys._current_frames().items(), key=lambda item: item[0] != current)
    threads = [
        pb.Thread(
            thread_id=ident,
            name=names.get(ident, ""),
            current=ident == current,
            frames=_frames(_walk(_outside(frame, {__name__, *without}) if ident == current else frame)),
            kind="thread",
        )
        for ident, frame in found[:MAX_THREADS]
    ]
    return threads if loop is None else threads + _capture_tasks(loop)


def capture_exception(error: BaseException) -> list[pb.ExceptionInfo]:
    """``error`` and those it came from: the first cause first, ``error`` itself last; ``link`` as in ExceptionInfo."""
    chain: list[tuple[BaseException, str]] = []
    seen: set[int] = set()
    link, current = "", error
    while id(current) not in seen and len(chain) < MAX_EXCEPTIONS:
        seen.add(id(current))
        chain.append((current, link))
        if current.__cause__ is not None:
            link, current = "cause", current.__cause__
        elif current.__context__ is not None and not current.__suppress_context__:
            link, current = "context", current.__context__
    return [_exception(member, link) for member, link in reversed(chain)]


def _outside(frame: FrameType, modules: set[str]) -> FrameType:
    """The innermost frame that belongs to none of ``modules``, or the outermost one when all do."""
    while frame.f_back is not None and frame.f_globals.get("__name__") in modules:
        frame = frame.f_back
    return frame


def _exception(error: BaseException, link: str) -> pb.ExceptionInfo:
    kind = type(error)
    try:
        message = str(error)
    except Exception:  # a broken __str__ must not cost the dump
        message = "<its message could not be made>"
    return pb.ExceptionInfo(
        type=kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        message=_utf8(message[:MAX_MESSAGE]),
        frames=_frames(_unwind(error.__traceback__)),
        link=link,
    )


def _capture_tasks(loop: asyncio.AbstractEventLoop) -> list[pb.Thread]:
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())[:MAX_TASKS]
    waiting_for: dict[int, list[int]] = {}
    for task in tasks:
        awaited = getattr(task, "_fut_waiter", None)
        if awaited is not None:
            waiting_for.setdefault(id(awaited), []).append(id(task))
    return [
        pb.Thread(
            thread_id=id(task),
            name=task.get_name(),
            frames=_frames(
                (frame.f_code, frame.f_lineno, frame) for frame in reversed(task.get_stack(limit=MAX_FRAMES))
            ),
            kind="asyncio-task",
            awaited_by=waiting_for.get(id(task), []),
        )
        for task in tasks
    ]


_Place = tuple[CodeType, int, FrameType]


def _walk(frame: FrameType | None) -> Iterable[_Place]:
    while frame is not None:
        yield frame.f_code, frame.f_lineno, frame
        frame = frame.f_back


def _unwind(trace: TracebackType | None) -> list[_Place]:
    """A traceback's places, innermost first."""
    places: list[_Place] = []
    while trace is not None:
        places.append((trace.tb_frame.f_code, trace.tb_lineno, trace.tb_frame))
        trace = trace.tb_next
    return places[::-1]


def _frames(places: Iterable[_Place]) -> list[pb.Frame]:
    frames: list[pb.Frame] = []
    for code, line, frame in places:
        if len(frames) == MAX_FRAMES:
            break
        module = str(frame.f_globals.get("__name__") or "")
        frames.append(
            pb.Frame(
                function=_utf8(code.co_qualname),
                filename=_utf8(_relative(code.co_filename)),
                line=max(line or 0, 0),
                module=_utf8(module),
                in_app=_in_app(code.co_filename),
            )
        )
    return frames


def _relative(filename: str) -> str:
    """The path below the folder it was imported from, with forward slashes: machines differ in everything above it."""
    if filename.startswith("<"):
        return filename
    path = os.path.realpath(filename)
    roots = sorted({os.path.realpath(root or os.curdir) for root in sys.path}, key=len, reverse=True)
    root = next((root for root in roots if path.startswith(root + os.sep)), "")
    return (os.path.relpath(path, root) if root else os.path.basename(path)).replace(os.sep, "/")


def _in_app(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    path = os.path.realpath(filename)
    parts = path.split(os.sep)
    return not path.startswith(_LIBRARY) and "site-packages" not in parts and "dist-packages" not in parts


def _utf8(text: str) -> str:
    """A message field holds valid Unicode only, and exception texts may hold lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()
