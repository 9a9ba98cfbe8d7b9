"""Where a program stands at one moment of its replay: on which lines, with what under way, and after which error."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from dumps.record.loops import running_loop
from dumps.record.stacks import capture_exception, capture_threads
from dumps.schema import state_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Standpoint:
    """``stacks`` are those of the threads, the calling one first, and of the tasks that wait. ``handled`` is the
    exception that the calling code handles or lets pass, with those it came from, itself last. ``exchanges`` and
    ``tool_calls`` are recorded ones that the replay has begun, and that have not come to their end."""

    stacks: tuple[pb.Thread, ...] = ()
    handled: tuple[pb.ExceptionInfo, ...] = ()
    exchanges: tuple[pb.Exchange, ...] = ()
    tool_calls: tuple[pb.ToolCall, ...] = ()

    @classmethod
    def here(cls, exchanges: list[pb.Exchange], tool_calls: list[pb.ToolCall]) -> Standpoint:
        """That of the calling code."""
        loop, error = running_loop(), sys.exception()
        running = id(_current_task())  # its stack is that of the thread, and what it awaits is not known
        stacks = (one for one in capture_threads(loop=loop) if one.kind == "thread" or one.thread_id != running)
        return cls(
            stacks=tuple(stacks),
            handled=tuple(capture_exception(error)) if error is not None else (),
            exchanges=tuple(exchanges),
            tool_calls=tuple(tool_calls),
        )


def _current_task() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
