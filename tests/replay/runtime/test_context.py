from __future__ import annotations

import pytest

from dumps.record.recorder import RecordLevel
from dumps.record.seams import context as recorded_context
from dumps.record.seams.context import frame, message
from dumps.record.seams.log import WorldLog
from dumps.schema import state_pb2 as pb
from replay.runtime.context import RecordedContext


def program(*, tool: str = "tool") -> None:
    with frame("turn", {"n": 1}, message_id="m1"):
        message("user", "hi", "m2")
        with frame(tool):
            raise ValueError("failed")


def recorded() -> list[pb.ContextFrame]:
    undo = recorded_context.install(WorldLog(level=RecordLevel.FULL))
    try:
        stack = recorded_context.stack()
        assert stack is not None
        with pytest.raises(ValueError, match="failed") as caught:
            program()
        return stack.at(caught.value)
    finally:
        undo()


def test_the_same_program_has_the_same_stack():
    context = RecordedContext(recorded())
    assert [(one.depth, one.kind, one.last_message_id) for one in context.recorded] == [
        (1, "turn", "m2"),
        (2, "tool", ""),
    ]
    assert context.recorded[0].payload == {"n": 1}
    assert context.recorded[0].messages == ({"id": "m2", "role": "user", "content": "hi"},)
    undo = context.install()
    try:
        with pytest.raises(ValueError, match="failed") as caught:
            program()
    finally:
        undo()
    assert context.replayed(caught.value) == context.recorded
    assert context.differences(caught.value) == []
    assert context.differences() == [
        "depth 1: recorded (dump) turn at message m2, replayed (your code) nothing",
        "depth 2: recorded (dump) tool, replayed (your code) nothing",
    ]


def test_a_changed_program_has_another():
    context = RecordedContext(recorded())
    undo = context.install()
    try:
        with pytest.raises(ValueError, match="failed") as caught:
            program(tool="search")
    finally:
        undo()
    assert context.differences(caught.value) == ["depth 2: recorded (dump) tool, replayed (your code) search"]


@pytest.mark.parametrize("text", ["", "{", "7", "[]", "null", '{"messages": 3}', "[" * 100_000])
def test_damaged_frames(text: str):
    (only,) = RecordedContext([pb.ContextFrame(stack_depth=1, kind="x", payload_json=text)]).recorded
    assert only.messages == ()
