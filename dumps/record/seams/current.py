"""The world that a program runs in right now: recorded, replayed, or (mostly) neither.

`tools` and `context`, which a program imports, look it up here. One world serves the whole process: a recording sees
every thread and task. This module imports nothing of the project, so a program pays nothing for it while it is not
recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol


class ToolCalls(Protocol):
    """Who runs a program's tools."""

    def call(self, tool: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a plain `tools.Tool`; its result, or what it raised."""

    async def call_async(self, tool: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The same for an async function."""

    def partial(self, call_id: str, name: str, text: str, *, done: bool) -> None:
        """A piece of the arguments of a call that the model is still writing."""


class Context(Protocol):
    """Who keeps a program's context stack."""

    def frame(self, kind: str, payload: Mapping[str, Any], message_id: str) -> AbstractContextManager[None]: ...

    def message(self, role: str, content: Any, message_id: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What stands in for the outside. A part that is None is left to the program itself."""

    tools: ToolCalls | None = None
    context: Context | None = None


_lock = threading.Lock()
_active: World | None = None


def active() -> World | None:
    return _active


def activate(*, tools: ToolCalls | None = None, context: Context | None = None) -> Callable[[], None]:
    """Put one or both parts in place, beside what is there already. Returns the function that takes them out again.

    Raises `RuntimeError` when a part is taken: two recordings, or a recording inside a replay, would each see half.
    """
    global _active
    with _lock:
        world = _active or World()
        if (tools is not None and world.tools is not None) or (context is not None and world.context is not None):
            raise RuntimeError("this process is being recorded or replayed already; end that first")
        _active = World(tools=tools or world.tools, context=context or world.context)

    def deactivate() -> None:
        global _active
        with _lock:
            if _active is None:
                return
            if tools is not None and _active.tools is tools:
                _active = replace(_active, tools=None)
            if context is not None and _active.context is context:
                _active = replace(_active, context=None)
            if _active == World():
                _active = None

    return deactivate


_replays = 0


def begin_replay() -> Callable[[], None]:
    """Say that the process is a replay: recordings that the program begins are inert. Returns the way back."""
    global _replays
    _replays += 1

    def end() -> None:
        global _replays
        _replays -= 1

    return end


def replaying() -> bool:
    return _replays > 0
