"""The context stack in a replay: what the program is in the middle of now, and what it was when the dump was made.

context = RecordedContext(dump.state.context_stack)
undo = context.install()
...
context.recorded[-1]          # the innermost recorded frame
context.differences(error)    # how the stack of the replayed failure differs from it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dumps.record.recorder import RecordLevel
from dumps.record.seams import current
from dumps.record.seams.context import ContextStack
from dumps.schema import state_pb2 as pb
from dumps.text import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFrame:
    """One frame. ``depth`` is 1 for the outermost; ``payload`` is what the program gave, None below level "full"."""

    depth: int
    kind: str
    last_message_id: str
    payload: Any
    messages: tuple[Any, ...]

    @classmethod
    def of(cls, frame: pb.ContextFrame) -> ContextFrame:
        try:
            document = json.loads(frame.payload_json)
        except (ValueError, RecursionError):
            document = None
        document = document if isinstance(document, dict) else {"payload": document}
        messages = document.get("messages")
        return cls(
            depth=frame.stack_depth,
            kind=frame.kind,
            last_message_id=frame.last_message_id,
            payload=document.get("payload"),
            messages=tuple(messages) if isinstance(messages, list) else (),
        )


class RecordedContext(ContextStack):
    """Keeps the replayed program's frames as a recording does. ``recorded`` is the dump's stack, innermost last."""

    def __init__(self, recorded: Iterable[pb.ContextFrame] = ()) -> None:
        super().__init__(RecordLevel.FULL)
        self.recorded = tuple(ContextFrame.of(frame) for frame in recorded)

    def install(self) -> Callable[[], None]:
        """Keep the process's stacks from here on. Returns the function that ends it."""
        return current.activate(context=self)

    def replayed(self, error: BaseException | None = None) -> tuple[ContextFrame, ...]:
        """The stack now, or as it was where ``error`` was raised; innermost last."""
        return tuple(ContextFrame.of(frame) for frame in (self.frames() if error is None else self.at(error)))

    def differences(self, error: BaseException | None = None) -> list[str]:
        """Where the replayed stack is not the recorded one, outermost first; empty when they agree. Payloads and texts
        do not count: they may hold what differs from run to run."""
        replayed = self.replayed(error)
        found = []
        for depth in range(max(len(self.recorded), len(replayed))):
            sides = [_at(stack, depth) for stack in (self.recorded, replayed)]
            if sides[0] != sides[1]:
                found.append(f"depth {depth + 1}: recorded (dump) {sides[0]}, replayed (your code) {sides[1]}")
        return found


def _at(stack: tuple[ContextFrame, ...], depth: int) -> str:
    if depth >= len(stack):
        return "nothing"
    frame = stack[depth]
    return printable(frame.kind, 80) + (
        f" at message {printable(frame.last_message_id, 80)}" * bool(frame.last_message_id)
    )
