from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dumps.record.recorder import RecordLevel
from dumps.record.seams import tools as recorded_tools
from dumps.record.seams.log import WorldLog
from dumps.record.seams.tools import answering, tool
from dumps.schema import state_pb2 as pb
from replay.runtime.clock import VirtualClock
from replay.runtime.errors import WaitsForEver
from replay.runtime.loop import Stalled, run
from replay.runtime.tools import OutcomeNotRecorded, Tools, UnknownToolCall, recorded_exception

SECOND = 1_000_000_000


def call(call_id: str = "tool-1", name: str = "search", **fields: Any) -> pb.ToolCall:
    known: dict[str, Any] = {"status": "finished", "started_ns": SECOND}
    return pb.ToolCall(id=call_id, name=name, **(known | fields))


@contextmanager
def playing(*calls: pb.ToolCall, **options: Any) -> Iterator[Tools]:
    tools = Tools(calls, **options)
    undo = tools.install()
    try:
        yield tools
    finally:
        undo()


def a_clock() -> VirtualClock:
    return VirtualClock(started_ns=SECOND, wall_minus_monotonic_ns=0)


ran: list[str] = []


@tool(replay="answer")
async def search(query: str) -> Any:
    ran.append(query)
    return "ran"


@tool(name="search", replay="answer")
def search_now(query: str) -> Any:
    ran.append(query)
    return "ran"


def both(clock: VirtualClock) -> list[Callable[[], Any]]:
    """The same call from async and from plain code."""
    return [lambda: run(clock, search("x")), lambda: search_now("x")]


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@pytest.mark.parametrize("way", [0, 1])
def test_a_finished_call_answers_after_the_recorded_delay(way: int):
    clock = a_clock()
    began = time.monotonic()
    with playing(call(finished_ns=31 * SECOND, result_json='{"hits": [1]}'), clock=clock) as tools:
        assert both(clock)[way]() == {"hits": [1]}
    assert clock.monotonic_ns() == 31 * SECOND
    assert time.monotonic() - began < 5
    assert ran == []
    assert (tools.begun, tools.recorded) == (1, 1)


@pytest.mark.parametrize("way", [0, 1])
def test_a_failed_call_raises_as_recorded(way: int):
    clock = a_clock()
    failed = call(status="failed", finished_ns=2 * SECOND, error_type="ConnectionResetError", error_message="by peer")
    with playing(failed, clock=clock), pytest.raises(ConnectionResetError, match="by peer"):
        both(clock)[way]()
    assert clock.monotonic_ns() == 2 * SECOND


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("status", ["pending", "partial"])
def test_a_pending_call_stays_pending_to_its_deadline(way: int, status: str):
    clock = a_clock()
    began = time.monotonic()
    pending = call(status=status, deadline_ns=31 * SECOND)
    with playing(pending, clock=clock) as tools, answering("tool-1"), pytest.raises(TimeoutError):
        both(clock)[way]()
    assert tools.pending() == [pending]
    assert clock.monotonic_ns() == 31 * SECOND
    assert time.monotonic() - began < 5


def test_a_pending_call_without_a_deadline_never_ends():
    clock = a_clock()
    with playing(call(status="pending"), clock=clock), pytest.raises(Stalled):
        run(clock, search("x"))
    with playing(call(status="pending"), clock=clock), pytest.raises(WaitsForEver, match="no deadline"):
        search_now("x")


def test_a_timeout_of_the_program_comes_first():
    async def main() -> str:
        try:
            async with asyncio.timeout(5):
                await search("x")
        except TimeoutError:
            return "gave up"
        return "answered"

    clock = a_clock()
    with playing(call(status="pending", deadline_ns=31 * SECOND), clock=clock):
        assert run(clock, main()) == "gave up"
    assert clock.monotonic_ns() == 6 * SECOND


def test_a_given_result_answers():
    @tool
    def add(left: int) -> int:
        ran.append("add")
        return left

    with playing(call(), call("call_7", "add"), results={"call_7": "[4, 5]"}):
        assert add(1) == [4, 5]  # type: ignore[comparison-overlap]
        assert add(1) == 1  # no such call was recorded; it runs
    assert ran == ["add"]
    hung = call("call_9", status="pending", deadline_ns=31 * SECOND)
    clock = a_clock()
    with playing(hung, clock=clock, results={"call_9": '"alive"'}):
        assert run(clock, search("x")) == "alive"
    assert clock.monotonic_ns() == SECOND


def test_a_wrong_id_names_the_right_ones():
    calls = [call("call_7"), call("call_8"), call("tool-1", "add")]
    with pytest.raises(UnknownToolCall, match="call_77") as caught:
        Tools(calls, results={"call_77": "1"})
    assert caught.value.remedy == "Recorded: call_7 (search), call_8 (search), tool-1 (add)."
    many = [call(f"tool-{number}", "add" if number % 10 == 4 else "search") for number in range(1, 31)]
    with pytest.raises(UnknownToolCall) as caught:
        Tools(many, results={"add": "1"})
    assert caught.value.remedy == "Recorded: tool-4 (add), tool-14 (add), tool-24 (add) and 27 more."
    with pytest.raises(UnknownToolCall) as caught:
        Tools(many, results={"xyzzy": "1"})
    assert "tool-1 (search), tool-2 (search)" in caught.value.remedy
    assert caught.value.remedy.endswith("tool-12 (search) and 18 more.")
    with pytest.raises(UnknownToolCall) as caught:
        Tools([], results={"x": "1"})
    assert "none" in caught.value.remedy
    with pytest.raises(UnknownToolCall, match="no JSON"):
        Tools(calls, results={"call_7": "hello"})


def test_calls_are_matched_by_id_then_by_arguments_then_in_order():
    def recorded(call_id: str, query: str) -> pb.ToolCall:
        return call(call_id, arguments_json=json.dumps({"query": query}), result_json=f'"{call_id}"')

    with playing(recorded("a", "one"), recorded("b", "two"), recorded("c", "two"), recorded("d", "four")) as tools:
        assert search_now("two") == "b"
        with answering("d"):
            assert search_now("four") == "d"
        assert search_now("other") == "a"
        assert tools.findings() == [
            'tool call a (search): arguments differ: recorded (dump) {"query": "one"}, '
            'replayed (your code) {"query": "other"}',
            "tool call c (search) was recorded and not called in the replay",
        ]
        assert search_now("two") == "c"
        assert search_now("two") == "ran"
        assert "not recorded so often" in tools.findings()[-1]
    assert tools.begun == 5


def test_an_outcome_that_is_not_all_there():
    for text in ('{"$repr": "<object>"}', '[{"$cut": "xx", "size": 10}]', "", "{"):
        with playing(call(result_json=text)), pytest.raises(OutcomeNotRecorded, match="tool-1"):
            search_now("x")


def test_a_tool_that_runs_is_compared_with_the_record():
    @tool
    async def count() -> int:
        return 3

    with playing(
        call("a", "count", result_json="2"), call("b", "count", status="failed", error_type="KeyError")
    ) as tools:
        assert [asyncio.run(count()), asyncio.run(count())] == [3, 3]
    assert tools.findings() == [
        "tool call a (count): result differ: recorded (dump) 2, replayed (your code) 3",
        "tool call b (count) raised KeyError when recorded, and returned now",
    ]


def test_recorded_and_replayed():
    """The whole way: record real calls, answer them from the record alone."""

    class NoSuchCity(LookupError):
        pass

    module = sys.modules[__name__]
    module.NoSuchCity = NoSuchCity  # type: ignore[attr-defined]
    NoSuchCity.__qualname__ = "NoSuchCity"

    @tool(replay="answer")
    async def weather(city: str, days: int = 1) -> Any:
        await asyncio.sleep(0.01)
        if city == "Atlantis":
            raise NoSuchCity(city)
        return {"city": city, "days": [days] * days}

    async def program() -> list[Any]:
        seen: list[Any] = []
        for city in ("Paris", "Atlantis", "Rome"):
            try:
                seen.append(await weather(city, days=len(city)))
            except LookupError as error:
                seen.append((type(error), str(error)))
        return seen

    log = WorldLog(level=RecordLevel.FULL)
    undo = recorded_tools.install(log)
    try:
        seen = asyncio.run(program())
    finally:
        undo()
    clock = a_clock()
    with playing(*log.tool_calls, clock=clock) as tools:
        assert run(clock, program()) == seen
    assert tools.findings() == []
    assert clock.monotonic_ns() >= SECOND + 30_000_000
    del module.NoSuchCity


def test_exceptions_come_from_what_is_loaded_alone():
    assert isinstance(recorded_exception("asyncio.exceptions.CancelledError", ""), asyncio.CancelledError)
    decode = recorded_exception("UnicodeDecodeError", "bad byte")  # which wants five arguments
    assert isinstance(decode, UnicodeDecodeError)
    for name in ("not_loaded.Error", "print", "os.system", "builtins", "", ".", "json.loads"):
        error = recorded_exception(name, "message")
        assert isinstance(error, OutcomeNotRecorded), name
    assert "not_loaded" not in sys.modules
