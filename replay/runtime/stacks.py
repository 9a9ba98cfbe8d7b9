"""Stacks of a dump, typed: threads, asyncio tasks with what awaits them, and the exception with those it came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dumps.record.stacks import top_in_app_frame
from dumps.schema import state_pb2 as pb

__all__ = ["Frame", "RaisedException", "Stack", "Stacks", "top_in_app_frame"]


@dataclass(frozen=True, slots=True)
class Frame:
    """A place in code. ``file`` is relative to the folder that it was imported from; ``in_app`` the program's own."""

    file: str
    function: str
    line: int
    in_app: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A thread or a task. ``frames`` are innermost first; ``current`` is the thread in which the failure showed."""

    id: int
    name: str
    kind: str
    current: bool
    frames: tuple[Frame, ...]
    awaited_by: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisedException:
    """``link`` says how a later one in the chain came from this one: "cause", "context", "member" of a group, or ""."""

    type: str
    message: str
    frames: tuple[Frame, ...]
    link: str
    top_in_app: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """``exceptions``: the first cause first, what was raised last."""

    threads: tuple[Stack, ...]
    tasks: tuple[Stack, ...]
    exceptions: tuple[RaisedException, ...]

    @classmethod
    def of(cls, state: pb.RuntimeState) -> Stacks:
        stacks = [
            Stack(
                id=one.thread_id,
                name=one.name,
                kind=one.kind,
                current=one.current,
                frames=_frames(one.frames),
                awaited_by=tuple(one.awaited_by),
            )
            for one in state.threads
        ]
        return cls(
            threads=tuple(one for one in stacks if one.kind != "asyncio-task"),
            tasks=tuple(one for one in stacks if one.kind == "asyncio-task"),
            exceptions=tuple(
                RaisedException(
                    type=one.type,
                    message=one.message,
                    frames=_frames(one.frames),
                    link=one.link,
                    top_in_app=top_in_app_frame(one),
                )
                for one in state.exceptions
            ),
        )

    @property
    def current(self) -> Stack | None:
        """The thread in which the failure showed."""
        return next((one for one in self.threads if one.current), None)

    @property
    def raised(self) -> RaisedException | None:
        return self.exceptions[-1] if self.exceptions else None

    def task(self, name: str) -> Stack | None:
        return next((one for one in self.tasks if one.name == name), None)

    def await_chain(self, task: Stack) -> tuple[Stack, ...]:
        """``task``, then the task that awaits it, and so on outwards; the first one where several await the same.

        Ends where nobody waits, and in a ring, which only a damaged dump or a deadlock has, before it would repeat.
        """
        by_id = {one.id: one for one in self.tasks}
        chain, seen = [task], {task.id}
        while waiting := next((by_id[one] for one in chain[-1].awaited_by if one in by_id), None):
            if waiting.id in seen:
                break
            seen.add(waiting.id)
            chain.append(waiting)
        return tuple(chain)


def _frames(frames: Iterable[pb.Frame]) -> tuple[Frame, ...]:
    return tuple(Frame(one.filename, one.function, one.line, one.in_app) for one in frames)
