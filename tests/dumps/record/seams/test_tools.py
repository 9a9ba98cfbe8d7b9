from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dumps.record.recorder import RecordLevel
from dumps.record.seams import current, tools
from dumps.record.seams.json_text import MAX_TEXT
from dumps.record.seams.log import LogLimits, WorldLog
from dumps.record.seams.tools import answering, partial, tool


@pytest.fixture
def log() -> Iterator[WorldLog]:
    """Tool calls are recorded here."""
    log = WorldLog(level=RecordLevel.FULL)
    undo = tools.install(log)
    yield log
    undo()
    assert current.active() is None
    assert "recorder_errors" not in log.lost


@tool
def add(left: int, right: int = 2) -> int:
    """Adds."""
    return left + right


@tool(name="search", deadline=0.05)
async def look_up(query: str, **options: Any) -> dict[str, Any]:
    await asyncio.sleep(30 if query == "slow" else 0)
    if query == "bad":
        raise KeyError("no such thing")
    return {"query": query}


def test_a_marked_function_is_the_function():
    assert add(1) == 3
    assert (add.__name__, add.__doc__) == ("add", "Adds.")
    assert asyncio.iscoroutinefunction(look_up)
    assert asyncio.run(look_up("x")) == {"query": "x"}
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        add()  # type: ignore[call-arg]


def test_a_deadline_holds_without_a_recording():
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(look_up("slow"))
    assert time.monotonic() - began < 5


def test_calls_that_finish(log: WorldLog):
    before = time.monotonic_ns()
    assert add(40, right=2) == 42
    assert asyncio.run(look_up("x", limit=3)) == {"query": "x"}
    first, second = log.tool_calls
    assert (first.id, first.name, first.status) == ("tool-1", "add", "finished")
    assert json.loads(first.arguments_json) == {"left": 40, "right": 2}
    assert first.result_json == "42"
    assert before <= first.started_ns <= first.finished_ns <= time.monotonic_ns()
    assert not first.HasField("deadline_ns")
    assert first.task == threading.current_thread().name
    assert json.loads(second.arguments_json) == {"query": "x", "options": {"limit": 3}}
    assert second.name == "search"
    assert 0 <= second.deadline_ns - second.started_ns - 50_000_000 < 50_000_000
    assert second.task.startswith("Task-")


def test_calls_that_fail(log: WorldLog):
    with pytest.raises(KeyError):
        asyncio.run(look_up("bad"))
    with pytest.raises(TimeoutError):
        asyncio.run(look_up("slow"))
    with pytest.raises(TypeError):
        add("one", "two", "three")  # type: ignore[call-arg,arg-type]
    assert [call.status for call in log.tool_calls] == ["failed"] * 3
    assert [call.error_type for call in log.tool_calls] == ["KeyError", "TimeoutError", "TypeError"]
    assert log.tool_calls[0].error_message == "'no such thing'"
    assert json.loads(log.tool_calls[2].arguments_json) == {"args": ["one", "two", "three"], "kwargs": {}}


def test_a_call_in_flight_is_pending_with_the_deadline_around_it(log: WorldLog):
    @tool
    async def hang() -> None:
        await asyncio.Event().wait()

    async def main() -> Any:
        async with asyncio.timeout(20):
            task = asyncio.create_task(hang())
            await asyncio.sleep(0)
            alone = [(one.status, one.HasField("deadline_ns")) for one in log.tool_calls]
            task.cancel()
            with pytest.raises(asyncio.TimeoutError):
                async with asyncio.timeout(0.02):
                    await hang()
            return alone

    assert asyncio.run(main()) == [("pending", False)]  # a task of its own is not under its maker's deadline
    cancelled, timed_out = log.tool_calls
    assert cancelled.error_type == timed_out.error_type == "asyncio.exceptions.CancelledError"
    assert 10_000_000 < timed_out.deadline_ns - timed_out.started_ns < 25_000_000


def test_arguments_that_are_still_arriving(log: WorldLog):
    partial("call_7", "search", '{"que')
    assert log.tool_calls[0].status == "partial"
    partial("call_7", "search", 'ry": "x"}', done=True)
    assert (log.tool_calls[0].status, log.tool_calls[0].arguments_json) == ("pending", '{"query": "x"}')

    async def main() -> None:
        with answering("call_7"):
            await look_up("x")
            await look_up("y")  # only the first call is the model's

    asyncio.run(main())
    assert [(call.id, call.status) for call in log.tool_calls] == [("call_7", "finished"), ("tool-1", "finished")]
    for _ in range(2):
        with answering("call_7"):
            add(1)
    assert [call.id for call in log.tool_calls[2:]] == ["call_7#2", "call_7#3"]  # ids are unique in a dump


def test_secrets_and_what_json_cannot_hold(log: WorldLog):
    class Handle:
        def __repr__(self) -> str:
            return f"<Handle of sk-{'a' * 40} at 0x7f00aa>"

    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("broken")

    @tool
    def connect(api_key: str, handle: object, broken: object, big: str, circular: Any = None) -> Any:
        return circular

    circular: list[Any] = []
    circular.append(circular)
    connect("hunter2", Handle(), Broken(), "\ud800", circular=circular)
    connect("hunter2", 1, 2, "x" * (2 * MAX_TEXT))
    whole, cut = (call.arguments_json for call in log.tool_calls)
    assert "hunter2" not in whole + cut
    assert "sk-aaa" not in whole
    assert "0x7f00aa" not in whole
    assert "$repr" in log.tool_calls[0].result_json
    assert json.loads(cut)["size"] > 2 * MAX_TEXT
    assert len(cut) < 2 * MAX_TEXT


def test_at_level_shape_no_text_is_kept():
    log = WorldLog(level=RecordLevel.SHAPE)
    undo = tools.install(log)
    try:
        partial("c", "add", '{"left": 1')
        with answering("c"):
            add(1)
        with pytest.raises(KeyError):
            asyncio.run(look_up("bad"))
    finally:
        undo()
    assert [call.status for call in log.tool_calls] == ["finished", "failed"]
    assert not any(call.arguments_json or call.result_json or call.error_message for call in log.tool_calls)
    assert log.tool_calls[1].error_type == "KeyError"


def test_a_full_log_costs_the_record_and_not_the_program():
    log = WorldLog(level=RecordLevel.FULL, limits=LogLimits(tool_calls=1, bytes=8))
    undo = tools.install(log)
    try:
        assert [add(1), add(2)] == [3, 4]
        partial("c", "add", "{")
    finally:
        undo()
    assert len(log.tool_calls) == 1
    assert log.tool_calls[0].arguments_json == ""
    assert log.lost["tool_calls"] == 2
    assert log.lost["tool_call_bytes"] == 1


def test_what_cannot_be_a_tool():
    with pytest.raises(TypeError, match="generator"):

        @tool
        def each() -> Iterator[int]:
            yield 1

    with pytest.raises(ValueError, match="deadline"):
        tool(deadline=0)(add)
    with pytest.raises(ValueError, match="answer"):
        tool(replay="never")(add)  # type: ignore[call-overload]


def test_a_second_recording_is_refused(log: WorldLog):
    with pytest.raises(RuntimeError, match="already"):
        tools.install(WorldLog(level=RecordLevel.FULL))
