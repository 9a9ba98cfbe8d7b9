"""Tools of a program: marked once, recorded in production, answered in a replay.

    from dumps.record.seams.tools import tool

    @tool(deadline=30.0)
    async def search(query: str) -> dict: ...

A marked function is called as before. While its process is recorded, each call becomes a `ToolCall` of the dump:
arguments by name, result or exception, deadline. In a replay the function runs again, with its input and output played
from the dump; one marked ``replay="answer"`` gives its recorded outcome instead.

An agent that knows the model's own id of a call names it, so that dump and model speak of the same thing:

    partial(call.id, call.name, piece_of_arguments)        # as they arrive
    with answering(call.id):
        result = await search(**arguments)
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeVar, overload

from dumps.record.message_text import error_text, type_name, utf8
from dumps.record.seams import current
from dumps.record.seams.json_text import MAX_TEXT, to_json
from dumps.record.seams.log import WorldLog, answered
from dumps.record.seams.real_time import monotonic_ns
from dumps.record.secrets import scrub_text
from dumps.schema import state_pb2 as pb

MAX_MESSAGE = 4000  # characters of an exception's text
MAX_PARTIAL = MAX_TEXT

_P = ParamSpec("_P")
_R = TypeVar("_R")

_answering: ContextVar[str] = ContextVar("pplx_tool_call_id", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that `tool` marked. ``deadline`` is seconds from the start of a call."""

    function: Callable[..., Any]
    name: str
    deadline: float | None
    replay: Literal["run", "answer"]
    is_async: bool

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The call's arguments by name, without ``self``; defaults that were not given are left out.

        Arguments that do not fit the function come back under ``args`` and ``kwargs``: the call itself will raise.
        """
        try:
            bound = dict(inspect.signature(self.function).bind(*args, **kwargs).arguments)
        except (TypeError, ValueError):
            return {"args": list(args), "kwargs": dict(kwargs)}
        bound.pop("self", None)
        return bound

    async def run_async(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Await the function itself, under its deadline. Raises `TimeoutError` when that passes."""
        async with asyncio.timeout(self.deadline):
            return await self.function(*args, **kwargs)


@overload
def tool(function: Callable[_P, _R], /) -> Callable[_P, _R]: ...


@overload
def tool(
    *, name: str = "", deadline: float | None = None, replay: Literal["run", "answer"] = "run"
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    deadline: float | None = None,
    replay: Literal["run", "answer"] = "run",
) -> Any:
    """Mark a plain or async function as a tool. ``name`` is the function's own where it is not given.

    ``deadline`` (seconds) ends an async tool with `TimeoutError`, recorded or not. Nothing can end a plain function
    from outside; its deadline is only recorded, so hand it to the client that the function uses, too.

    Raises `TypeError` for a generator, which has no one result, and `ValueError` for a deadline that is not positive.
    """
    if function is None:
        return functools.partial(_mark, name=name, deadline=deadline, replay=replay)
    return _mark(function, name=name, deadline=deadline, replay=replay)


def partial(call_id: str, name: str, text: str, *, done: bool = False) -> None:
    """A piece of the arguments of a tool call that the model is still writing. ``done`` says that they are complete:
    from then on the call is pending until the tool runs under `answering` with this id."""
    world = current.active()
    if world is not None and world.tools is not None:
        world.tools.partial(call_id, name, text, done=done)


@contextmanager
def answering(call_id: str) -> Iterator[None]:
    """The next tool call of this task (or thread) inside the block answers the model's call ``call_id``."""
    token = _answering.set(call_id)
    try:
        yield
    finally:
        _answering.reset(token)


def take_call_id() -> str:
    """The id that `answering` gave, for one call; empty where there is none. For those who run tools."""
    call_id = _answering.get()
    if call_id:
        _answering.set("")
    return call_id


def install(log: WorldLog) -> Callable[[], None]:
    """Record the process's tool calls from here on. Returns the function that ends it."""
    return current.activate(tools=RecordedTools(log))


class RecordedTools:
    """Runs each tool and notes what it was asked and what came of it. Arguments and results only at level "full"."""

    def __init__(self, log: WorldLog) -> None:
        self._log = log
        self._open: dict[str, pb.ToolCall] = {}  # begun by `partial`, not called yet
        self._ids: set[str] = set()

    def call(self, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        record = self._begin(tool, args, kwargs)
        try:
            with _answered(tool):
                result = tool.function(*args, **kwargs)
        except BaseException as error:
            self._fail(record, error)
            raise
        self._finish(record, result)
        return result

    async def call_async(self, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        record = self._begin(tool, args, kwargs)
        try:
            with _answered(tool):
                result = await tool.run_async(args, kwargs)
        except BaseException as error:
            self._fail(record, error)
            raise
        self._finish(record, result)
        return result

    def partial(self, call_id: str, name: str, text: str, *, done: bool) -> None:
        with self._log.lock:
            record = self._open.get(call_id)
            if record is None:
                record = self._add(name, call_id)
                if record is None:
                    return
                record.status = "partial"
                self._open[call_id] = record
            if self._log.level == "full":
                room = MAX_PARTIAL - len(record.arguments_json)
                record.arguments_json += utf8(text[: max(room, 0)])
            if done:
                record.status = "pending"

    def _begin(self, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> pb.ToolCall | None:
        call_id = take_call_id()
        with self._log.lock:
            record = self._open.pop(call_id, None)
            if record is None:
                record = self._add(tool.name, call_id)
            if record is None:
                return None
            record.status = "pending"
            record.started_ns = monotonic_ns()
            deadline = _deadline_ns(tool)
            if deadline is not None:
                record.deadline_ns = deadline
            if self._log.level == "full":
                record.arguments_json = self._text(tool.arguments(args, kwargs))
            return record

    def _add(self, name: str, call_id: str) -> pb.ToolCall | None:
        wanted, number = utf8(call_id), 1
        while wanted and wanted in self._ids:  # a model's id that came twice: ids are unique in a dump
            number += 1
            wanted = f"{utf8(call_id)}#{number}"
        record = self._log.add_tool_call(utf8(name), call_id=wanted)
        if record is not None:
            self._ids.add(record.id)
        return record

    def _finish(self, record: pb.ToolCall | None, result: Any) -> None:
        if record is None:
            return
        text = self._text(result) if self._log.level == "full" else ""
        with self._log.lock:
            record.result_json, record.status, record.finished_ns = text, "finished", monotonic_ns()

    def _fail(self, record: pb.ToolCall | None, error: BaseException) -> None:
        if record is None:
            return
        with self._log.lock:
            record.status, record.finished_ns = "failed", monotonic_ns()
            record.error_type = type_name(error)
            if self._log.level == "full":
                record.error_message = scrub_text(error_text(error, MAX_MESSAGE))

    def _text(self, value: Any) -> str:
        text = to_json(value)
        if self._log.has_room(len(text)):
            return text
        self._log.lost["tool_call_bytes"] += 1
        return ""


@contextmanager
def _answered(tool: Tool) -> Iterator[None]:
    if tool.replay != "answer":
        yield
        return
    token = answered.set(True)
    try:
        yield
    finally:
        answered.reset(token)


def _mark(
    function: Callable[..., Any], *, name: str, deadline: float | None, replay: Literal["run", "answer"]
) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{function.__qualname__} is a generator; a tool has one result. Mark what collects it instead."
        )
    if deadline is not None and not deadline > 0:
        raise ValueError(f"deadline={deadline!r}: seconds, more than 0")
    if replay not in ("run", "answer"):
        raise ValueError(f'replay={replay!r}: "run" or "answer"')
    marked = Tool(
        function=function,
        name=name or function.__name__,
        deadline=deadline,
        replay=replay,
        is_async=inspect.iscoroutinefunction(function),
    )
    if marked.is_async:

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            world = current.active()
            if world is None or world.tools is None:
                return await marked.run_async(args, kwargs)
            return await world.tools.call_async(marked, args, kwargs)

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        world = current.active()
        if world is None or world.tools is None:
            return function(*args, **kwargs)
        return world.tools.call(marked, args, kwargs)

    return call


def _deadline_ns(tool: Tool) -> int | None:
    """When the call that begins now must be over, monotonic: its own deadline or that of an `asyncio.timeout` around
    it, whichever comes first."""
    now = monotonic_ns()
    candidates = [] if tool.deadline is None else [now + int(tool.deadline * 1e9)]
    try:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        # Only asyncio's own loop keeps its timers where they can be read; others record the tool's deadline alone.
        for timer in getattr(loop, "_scheduled", ()):
            owner = getattr(getattr(timer, "_callback", None), "__self__", None)
            if isinstance(owner, asyncio.Timeout) and getattr(owner, "_task", None) is task and not timer.cancelled():
                candidates.append(now + int((timer.when() - loop.time()) * 1e9))
    except Exception:  # no loop, or one that is built in another way
        pass
    return max(min(candidates), 0) if candidates else None
