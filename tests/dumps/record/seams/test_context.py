from __future__ import annotations

import asyncio
import json
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from dumps.record.recorder import RecordLevel
from dumps.record.seams import context
from dumps.record.seams.context import MAX_DEPTH, MAX_MESSAGES, ContextStack, frame, message
from dumps.record.seams.log import WorldLog
from dumps.schema import state_pb2 as pb


@pytest.fixture
def stack() -> Iterator[ContextStack]:
    undo = context.install(WorldLog(level=RecordLevel.FULL))
    found = context.stack()
    assert found is not None
    yield found
    undo()
    assert context.stack() is None


def kinds(frames: list[pb.ContextFrame]) -> list[str]:
    return [one.kind for one in frames]


def test_without_a_recording_nothing_happens():
    with frame("turn", {"n": 1}):
        message("user", "hello")
    assert context.stack() is None


def test_last_in_first_out(stack: ContextStack):
    with frame("turn", {"n": 1}, message_id="m1"):
        message("user", "hello", "m2")
        with frame("tool", {"name": "search"}):
            assert [(one.stack_depth, one.kind, one.last_message_id) for one in stack.frames()] == [
                (1, "turn", "m2"),
                (2, "tool", ""),
            ]
        outer = json.loads(stack.frames()[0].payload_json)
        assert outer["payload"] == {"n": 1}
        assert outer["messages"] == [{"id": "m2", "role": "user", "content": "hello"}]
        assert kinds(stack.frames()) == ["turn"]
    assert stack.frames() == []


def test_messages_outside_every_frame_belong_to_the_program(stack: ContextStack):
    message("system", "be brief", "m0")
    with frame("turn"):
        assert [(one.kind, one.last_message_id) for one in stack.frames()] == [("program", "m0"), ("turn", "")]
    assert kinds(stack.frames()) == ["program"]


def test_an_exception_keeps_the_stack_it_was_raised_in(stack: ContextStack):
    def fail() -> None:
        with frame("turn", message_id="m1"), frame("tool"):
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise ValueError("outer") from error

    with pytest.raises(ValueError, match="outer") as caught:
        fail()
    assert stack.frames() == []
    assert kinds(stack.at(caught.value)) == ["turn", "tool"]
    # One that is raised from it later still leads there.
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = caught.value
    assert kinds(stack.at(wrapped)) == ["turn", "tool"]
    assert kinds(stack.at(RuntimeError("another"))) == []
    assert kinds(pickle.loads(pickle.dumps(caught.value)).__dict__["__pplx_context__"]) == ["turn", "tool"]


def test_tasks_have_stacks_of_their_own_on_top_of_their_makers(stack: ContextStack):
    seen: dict[str, list[str]] = {}

    async def child(name: str, go_on: asyncio.Event) -> None:
        with frame(name):
            await go_on.wait()
            seen[name] = kinds(stack.frames())

    async def main() -> list[str]:
        go_on = asyncio.Event()
        with frame("agent"):
            children = [asyncio.create_task(child(name, go_on)) for name in ("left", "right")]
            await asyncio.sleep(0)
            own = kinds(stack.frames())
            go_on.set()
            await asyncio.gather(*children)
        return own

    assert asyncio.run(main()) == ["agent"]
    assert seen == {"left": ["agent", "left"], "right": ["agent", "right"]}


def test_from_outside_the_stack_that_was_active_last_is_found(stack: ContextStack):
    """A signal handler or another thread asks while the program is in the middle of something."""
    inside, leave = threading.Event(), threading.Event()

    def program() -> None:
        with frame("first"), frame("second"):
            with frame("third"):
                pass
            inside.set()
            leave.wait()

    thread = threading.Thread(target=program)
    thread.start()
    inside.wait()
    found = kinds(stack.frames())
    leave.set()
    thread.join()
    assert found == ["first", "second"]
    assert stack.frames() == []


def test_leaving_a_frame_makes_the_one_below_the_active_one(stack: ContextStack):
    left, right = stack.frame("left", {}, ""), stack.frame("right", {}, "")

    def enter(own: AbstractContextManager[None], *, tool: bool) -> None:
        own.__enter__()  # and stays in it: the thread is in the middle of something
        other.wait(5)
        if tool:
            with stack.frame("tool", {}, ""):
                pass

    other = threading.Barrier(2)
    threads = [threading.Thread(target=enter, args=(left,), kwargs={"tool": True})]
    threads.append(threading.Thread(target=enter, args=(right,), kwargs={"tool": False}))
    threads[0].start()
    while not stack.frames():
        time.sleep(0.001)
    threads[1].start()  # so that "right" was entered last
    for thread in threads:
        thread.join()
    assert kinds(stack.frames()) == ["left"]


def test_a_generator_closed_in_another_context(stack: ContextStack):
    async def stream() -> Any:
        with frame("stream"):
            yield 1
            yield 2

    async def main() -> None:
        streaming = stream()
        await asyncio.create_task(anext(streaming))
        await streaming.aclose()

    asyncio.run(main())
    assert stack.frames() == []


def test_it_is_bounded(stack: ContextStack):
    for number in range(MAX_MESSAGES + 10):
        message("user", "x" * 100_000, str(number))
    payload = json.loads(stack.frames()[0].payload_json)
    assert len(payload["messages"]) == MAX_MESSAGES
    assert payload["messages_left_out"] == 10
    assert payload["messages"][-1]["id"] == str(MAX_MESSAGES + 9)
    assert len(stack.frames()[0].payload_json) < 1024 * 1024

    def deep(depth: int) -> list[pb.ContextFrame]:
        with frame(f"depth {depth}"):
            return deep(depth - 1) if depth else stack.frames()

    frames = deep(MAX_DEPTH + 50)
    assert len(frames) == MAX_DEPTH
    assert (frames[-1].kind, frames[-1].stack_depth) == ("depth 0", MAX_DEPTH + 52)


def test_secrets_and_odd_values(stack: ContextStack):
    with frame("turn\ud800", {"api_key": "hunter2", "thing": object()}, message_id="\udfff"):
        message("user", {"password": "hunter2"})
        only = stack.frames()[-1]
    assert "hunter2" not in only.payload_json
    assert json.loads(only.payload_json)["payload"]["thing"] == {"$repr": "<object object>"}
    with frame("turn", 7):  # type: ignore[arg-type]
        assert json.loads(stack.frames()[-1].payload_json)["payload"] == 7


def test_at_level_shape_texts_are_sizes():
    undo = context.install(WorldLog(level=RecordLevel.SHAPE))
    try:
        with frame("turn", {"text": "secret plan"}):
            message("user", "secret plan", "m1")
            found = context.stack()
            assert found is not None
            (only,) = found.frames()
    finally:
        undo()
    assert "secret" not in only.payload_json
    assert json.loads(only.payload_json)["messages"] == [{"id": "m1", "role": "user", "size": len('"secret plan"')}]
    assert only.last_message_id == "m1"
