"""What stands around a run: exchanges, tool calls, the context stack, and stacks of threads, tasks and exceptions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from dumps.exchanges.match_key import MatchKey, match_key
from dumps.schema import state_pb2 as pb
from dumps.validate.program import ERRORS, TOOL_STATUSES

DrawFn = Callable[[st.SearchStrategy[Any]], Any]

START_NS = 1_000_000_000
WORDS = st.text(max_size=8)
BYTES = st.binary(max_size=12)
TIMES = st.integers(START_NS, START_NS + 10**12)
SPANS = st.integers(0, 10**10)
TASKS = st.sampled_from(["Task-1", "Task-2", "MainThread"])
_URLS = st.sampled_from(
    ["http://tools.test/weather?city=Lisbon", "https://api.test/v1/chat/completions", "http://[::1]:1/"]
)
_EXCEPTIONS = st.sampled_from(["ValueError", "TimeoutError", "replay.errors.KVCacheExhausted"])
_LINKS = st.sampled_from(["cause", "context", "member"])


def add_exchanges(draw: DrawFn, state: pb.RuntimeState, level: str, *, inbound: bool) -> None:
    """Up to three requests that the process made, and with ``inbound`` up to two that it was asked."""
    for number in range(draw(st.integers(0, 2)) if inbound else 0):
        _inbound(draw, state.exchanges.add(id=f"in-{number}", direction="in", framing="body"), level)
    owners = owners_of(state)
    occurrences: Counter[tuple[str, MatchKey]] = Counter()
    for number in range(draw(st.integers(0, 3))):
        exchange = state.exchanges.add(id=f"x{number}", direction="out", framing="wire")
        exchange.within = draw(st.sampled_from(owners))
        _outbound(draw, exchange, level)
        asked = [one for one in state.exchanges[:-1] if one.direction == "out" and one.method]
        if exchange.method and asked and draw(st.booleans()):
            _ask_again(exchange, asked[-1])
        if exchange.method and exchange.sent_ns:
            key = (exchange.task, match_key(exchange))
            exchange.occurrence = occurrences[key]
            occurrences[key] += 1


def owners_of(state: pb.RuntimeState) -> list[str]:
    """Ids that ``within`` of an exchange or a tool call may have: none, or one of an inbound exchange."""
    return ["", *(exchange.id for exchange in state.exchanges if exchange.direction == "in")]


def add_tool_calls(draw: DrawFn, state: pb.RuntimeState, level: str) -> None:
    """Up to two calls, in any state that a call can be in; those of an engine may belong to one of its requests."""
    owners = owners_of(state)
    for number in range(draw(st.integers(0, 2))):
        call = state.tool_calls.add(id=f"tool-{number}", within=draw(st.sampled_from(owners)))
        _tool_call(draw, call, level)
        if state.requests and draw(st.booleans()):
            call.request = draw(st.integers(0, len(state.requests) - 1))


def add_context_stack(draw: DrawFn, state: pb.RuntimeState) -> None:
    for depth in range(1, draw(st.integers(0, 3)) + 1):
        frame = state.context_stack.add(stack_depth=depth, kind=draw(WORDS), last_message_id=draw(WORDS))
        frame.payload_json = json.dumps({"payload": {"said": draw(WORDS)}, "messages": []})


def add_stacks(draw: DrawFn, state: pb.RuntimeState) -> None:
    """Threads, asyncio tasks that wait for one another, and a chain of exceptions; frames innermost first."""
    for number in range(draw(st.integers(0, 2))):
        thread = state.threads.add(thread_id=number + 1, name=draw(WORDS), kind="thread", current=number == 0)
        _frames(draw, thread.frames)
    first = len(state.threads) + 1
    for number in range(draw(st.integers(0, 2))):
        task = state.threads.add(thread_id=first + number, name=f"Task-{number + 1}", kind="asyncio-task")
        _frames(draw, task.frames)
        if number:
            state.threads[-2].awaited_by.append(task.thread_id)
    for number in range(draw(st.integers(0, 2))):
        raised = state.exceptions.add(type=draw(_EXCEPTIONS), message=draw(WORDS))
        _frames(draw, raised.frames)
        if number:
            raised.link = draw(_LINKS)


def _frames(draw: DrawFn, frames: Any) -> None:
    for _ in range(draw(st.integers(0, 2))):
        frame = frames.add(function=draw(WORDS), filename="agent.py", line=draw(st.integers(0, 2**32 - 1)))
        frame.module, frame.in_app = "agent", draw(st.booleans())


def _head(draw: DrawFn, exchange: pb.Exchange, level: str) -> None:
    exchange.method, exchange.url = draw(st.sampled_from(["GET", "POST"])), draw(_URLS)
    exchange.request_headers.add(key="content-type", value="application/json")
    if level == "full":
        exchange.request_body = draw(BYTES)
    exchange.task = draw(TASKS)


def _answer(draw: DrawFn, exchange: pb.Exchange, level: str) -> None:
    """A status, and chunks that end before the exchange does."""
    exchange.status = draw(st.sampled_from([200, 404, 502]))
    at = exchange.sent_ns or exchange.started_ns
    for data in draw(st.lists(BYTES, max_size=3)):
        delay = draw(SPANS)
        at += delay
        exchange.chunks.add(data=data if level == "full" else b"", size=len(data), delay_ns=delay)
    if draw(st.booleans()):
        exchange.ended_ns = at + draw(SPANS)
        if draw(st.booleans()):
            exchange.error, exchange.error_message = draw(st.sampled_from(ERRORS)), draw(WORDS)


def _ask_again(exchange: pb.Exchange, before: pb.Exchange) -> None:
    """Make it the same request of the same task as one before."""
    for name in ("method", "url", "request_body", "task"):
        setattr(exchange, name, getattr(before, name))
    exchange.ClearField("request_headers")
    exchange.request_headers.MergeFrom(before.request_headers)


def _outbound(draw: DrawFn, exchange: pb.Exchange, level: str) -> None:
    exchange.started_ns, exchange.client = draw(TIMES), draw(st.sampled_from(["aiohttp", "httpcore"]))
    exchange.task, exchange.url = draw(TASKS), "http://tools.test:80"
    connected = draw(st.sampled_from(["failed", "connecting", "new", "reused"]))
    if connected == "failed":
        exchange.connect_ns = draw(SPANS)
        exchange.ended_ns, exchange.error = exchange.started_ns + exchange.connect_ns, draw(st.sampled_from(ERRORS))
    if connected in ("failed", "connecting"):
        return
    _head(draw, exchange, level)
    if connected == "new":
        exchange.connect_ns = draw(SPANS)
    if draw(st.booleans()):
        exchange.sent_ns = exchange.started_ns + exchange.connect_ns + draw(SPANS)
        _answer(draw, exchange, level)


def _inbound(draw: DrawFn, exchange: pb.Exchange, level: str) -> None:
    exchange.started_ns, exchange.client = draw(TIMES), "asgi"
    _head(draw, exchange, level)
    exchange.request_chunks.add(size=len(exchange.request_body), delay_ns=draw(SPANS))
    exchange.sent_ns = exchange.started_ns + exchange.request_chunks[0].delay_ns
    if draw(st.booleans()):
        _answer(draw, exchange, level)


def _tool_call(draw: DrawFn, call: pb.ToolCall, level: str) -> None:
    call.name, call.status = draw(WORDS), draw(st.sampled_from(TOOL_STATUSES))
    call.started_ns, call.task = draw(TIMES), draw(TASKS)
    if draw(st.booleans()):
        call.deadline_ns = call.started_ns + draw(SPANS)
    if call.status in ("finished", "failed"):
        call.finished_ns = call.started_ns + draw(SPANS)
    if call.status == "failed":
        call.error_type = "TimeoutError"
    if level == "full":
        call.arguments_json = '{"city": "Lis' if call.status == "partial" else json.dumps({"city": draw(WORDS)})
        if call.status == "finished":
            call.result_json = json.dumps(draw(WORDS))
