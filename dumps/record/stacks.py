"""Stacks of this process as they are now: threads, asyncio tasks, and an exception with those it came from.

Functions, files and lines only. Local variables are never read: they hold people's text and keys.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import sysconfig
import threading
from collections.abc import Collection, Iterable
from types import CodeType, FrameType, TracebackType
from typing import Any

from dumps.record.message_text import error_text, module_name, type_name, utf8
from dumps.schema import state_pb2 as pb

MAX_FRAMES = 200  # of one stack; the outermost are left out
MAX_THREADS = 1000
MAX_TASKS = 1000
MAX_EXCEPTIONS = 20
MAX_MESSAGE = 4000
MAX_CHAIN = 10_000  # of awaits that are followed

# Of coroutines, generators and async generators.
_FRAME_OF = ("cr_frame", "gi_frame", "ag_frame")
_AWAITED_BY = ("cr_await", "gi_yieldfrom", "ag_await")

# This project: what records a program or plays its world stands between it and its libraries, and is neither.
_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_OURS = tuple(os.path.join(_PACKAGES, name) + os.sep for name in ("dumps", "replay"))
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
            name=utf8(names.get(ident, "")),
            current=ident == current,
            frames=_frames(_walk(_outside(frame, {__name__, *without}) if ident == current else frame)),
            kind="thread",
        )
        for ident, frame in found[:MAX_THREADS]
    ]
    return threads if loop is None else threads + _capture_tasks(loop)


def capture_exception(error: BaseException) -> list[pb.ExceptionInfo]:
    """``error`` and those it came from: the first cause first, ``error`` itself last; ``link`` as in ExceptionInfo.

    The exceptions of a group stand before it, each after what it came from itself.
    """
    return [_exception(member, link) for member, link in reversed(_lineage(error))]


def _lineage(error: BaseException) -> list[tuple[BaseException, str]]:
    """``error`` and its ancestors, itself first, each with its link."""
    found: list[tuple[BaseException, str]] = []
    seen: set[int] = set()
    left = [(error, "")]
    while left and len(found) < MAX_EXCEPTIONS:
        current, link = left.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        found.append((current, link))
        if current.__cause__ is not None:
            left.append((current.__cause__, "cause"))
        elif current.__context__ is not None and not current.__suppress_context__:
            left.append((current.__context__, "context"))
        if isinstance(current, BaseExceptionGroup):
            left += [(member, "member") for member in current.exceptions[:MAX_EXCEPTIONS]]
    return found


def call_site(*, limit: int = 10) -> list[pb.Frame]:
    """The program's own frames on the calling stack, innermost first: none of libraries, none of ours."""
    found: list[pb.Frame] = []
    frame: FrameType | None = sys._getframe(1)
    path = tuple(sys.path)
    while frame is not None and len(found) < limit:
        module = module_name(str(frame.f_globals.get("__name__") or ""))
        filename, in_app = _place_of(_source(frame.f_code, frame), path)
        if in_app:
            function = utf8(frame.f_code.co_qualname)
            line = max(frame.f_lineno or 0, 0)
            found.append(pb.Frame(function=function, filename=filename, line=line, module=utf8(module), in_app=True))
        frame = frame.f_back
    return found


def task_frames(task: asyncio.Task[Any]) -> list[pb.Frame]:
    """Where ``task`` waits, innermost first, along what it awaits; `asyncio.Task.get_stack` knows the outermost only.

    Async generators do not say what they await: the chain ends there. So it does in a task that is running right now,
    whose frames are those of its thread.
    """
    places: list[_Place] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(places) < MAX_CHAIN:
        frame = next((found for name in _FRAME_OF if (found := getattr(awaited, name, None)) is not None), None)
        if isinstance(frame, FrameType):
            places.append((frame.f_code, frame.f_lineno, frame))
        awaited = next((found for name in _AWAITED_BY if (found := getattr(awaited, name, None)) is not None), None)
    return _frames(places[::-1])


def first_in_app(frames: Iterable[pb.Frame]) -> str:
    """The first frame of the program's own code as `top_in_app_frame` writes it; empty where there is none."""
    return next((f"{frame.filename}:{frame.function}" for frame in frames if frame.in_app), "")


@functools.lru_cache(4096)
def _place_of(filename: str, path: tuple[str, ...]) -> tuple[str, bool]:
    """Relative name and whether it is the program's own, remembered: files are looked up, and this is asked often."""
    return utf8(_relative(filename)), is_in_app(filename)


def top_in_app_frame(exception: pb.ExceptionInfo) -> str | None:
    """The innermost frame of the program's own code, as "file.py:Class.method"; None where there is none.

    Line numbers are left out: they move with every change above them, and the failure stays the same.
    """
    return first_in_app(exception.frames) or None


def _outside(frame: FrameType, modules: set[str]) -> FrameType:
    """The innermost frame that belongs to none of ``modules``, or the outermost one when all do."""
    while frame.f_back is not None and frame.f_globals.get("__name__") in modules:
        frame = frame.f_back
    return frame


def _exception(error: BaseException, link: str) -> pb.ExceptionInfo:
    return pb.ExceptionInfo(
        type=type_name(error),
        message=error_text(error, MAX_MESSAGE),
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
            name=utf8(task.get_name()),
            frames=task_frames(task),
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
        module = module_name(str(frame.f_globals.get("__name__") or ""))
        frames.append(
            pb.Frame(
                function=utf8(code.co_qualname),
                filename=utf8(_relative(_source(code, frame))),
                line=max(line or 0, 0),
                module=utf8(module),
                in_app=is_in_app(_source(code, frame)),
            )
        )
    return frames


def _source(code: CodeType, frame: FrameType) -> str:
    """The file of some code. A compiled module names its source as whoever built it saw it: below some other folder."""
    module = frame.f_globals.get("__file__")
    if os.path.isabs(code.co_filename) or code.co_filename.startswith("<") or not module:
        return code.co_filename
    return os.path.join(os.path.dirname(str(module)), os.path.basename(code.co_filename))


def _relative(filename: str) -> str:
    """The path below the folder it was imported from, with forward slashes: machines differ in everything above it."""
    if filename.startswith("<"):
        return filename
    path = os.path.realpath(filename)
    roots = sorted({os.path.realpath(root or os.curdir) for root in sys.path}, key=len, reverse=True)
    root = next((root for root in roots if path.startswith(root + os.sep)), "")
    return (os.path.relpath(path, root) if root else os.path.basename(path)).replace(os.sep, "/")


def is_in_app(filename: str) -> bool:
    """Whether a file is the program's own: no library's, none of this project."""
    if filename.startswith("<"):
        return False
    if not (os.path.isabs(filename) or os.path.exists(filename)):
        return False  # compiled code names the file it was made of where it was built ("aiohttp/_http_parser.pyx")
    path = os.path.realpath(filename)
    parts = path.split(os.sep)
    return not path.startswith((*_OURS, *_LIBRARY)) and "site-packages" not in parts and "dist-packages" not in parts
