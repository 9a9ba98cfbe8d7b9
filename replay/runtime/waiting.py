"""What the tasks of an event loop wait for, in words: the evidence of a stall."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from dumps.record.stacks import first_in_app, task_frames


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTask:
    """One task that is not done.

    ``awaits`` names its coroutines, outermost first; ``frame`` is the innermost one of the program's own as
    "file.py:Qualified.name", ``line`` where it stands; ``on`` says what the innermost await waits for.
    """

    name: str
    awaits: tuple[str, ...]
    frame: str
    line: int
    on: str

    def __str__(self) -> str:
        place = f" at {self.frame} line {self.line}" if self.frame else ""
        return f"task {self.name!r}{place} waits for {self.on}"


def waiting_tasks(loop: asyncio.AbstractEventLoop) -> list[WaitingTask]:
    """The tasks of ``loop`` that are not done, by name."""
    return sorted((_describe(task) for task in asyncio.all_tasks(loop)), key=lambda task: task.name)


def _describe(task: asyncio.Task[Any]) -> WaitingTask:
    frames = task_frames(task)
    return WaitingTask(
        name=task.get_name(),
        awaits=tuple(frame.function for frame in reversed(frames)),
        frame=first_in_app(frames),
        line=next((frame.line for frame in frames if frame.in_app), 0),
        on=_in_words(getattr(task, "_fut_waiter", None), frames[0].function if frames else ""),
    )


def _in_words(awaited: Any, innermost: str) -> str:
    if isinstance(awaited, asyncio.Task):
        return f"task {awaited.get_name()!r}"
    where = f" in {innermost}()" if innermost else ""
    if awaited is None:
        return f"its turn{where}"
    return f"a {type(awaited).__name__} that nothing completes{where}"
