"""Hypothesis strategies for dumps of recorded programs: `validate` finds nothing in them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from dumps.exchanges.match_key import MatchKey, match_key
from dumps.schema import state_pb2 as pb
from dumps.validate.program import ERRORS, KINDS, TOOL_STATUSES, calls_begun

DrawFn = Callable[[st.SearchStrategy[Any]], Any]

START_NS = 1_000_000_000
_WORDS = st.text(max_size=8)
_BYTES = st.binary(max_size=12)
_TIMES = st.integers(START_NS, START_NS + 10**12)
_SPANS = st.integers(0, 10**10)
_TASKS = st.sampled_from(["Task-1", "Task-2", "MainThread"])
_URLS = st.sampled_from(
    ["http://tools.test/weather?city=Lisbon", "https://api.test/v1/chat/completions", "http://[::1]:1/"]
)


@st.composite
def programs(draw: DrawFn) -> pb.RuntimeState:
    """The dump of a small program at a moment in which it failed, was ended, or was looked at.

    Shrinks to a program that asked the world for nothing.
    """
    level = draw(st.sampled_from(["full", "shape"]))
    state = pb.RuntimeState()
    _manifest(draw, state.manifest, level)
    _program(draw, state.program, level)
    if state.program.kind != "block":
        for number in range(draw(st.integers(0, 2))):
            _inbound(draw, state.exchanges.add(id=f"in-{number}", direction="in", framing="body"), level)
    owners = ["", *(exchange.id for exchange in state.exchanges)]
    occurrences: Counter[tuple[str, MatchKey]] = Counter()
    for number in range(draw(st.integers(0, 3))):
        exchange = state.exchanges.add(id=f"x{number}", direction="out", framing="wire")
        exchange.within = draw(st.sampled_from(owners))
        _outbound(draw, exchange, level)
        if exchange.method and exchange.sent_ns:
            key = (exchange.task, match_key(exchange))
            exchange.occurrence = occurrences[key]
            occurrences[key] += 1
    for number in range(draw(st.integers(0, 2))):
        call = state.tool_calls.add(id=f"tool-{number}", within=draw(st.sampled_from(owners)))
        _tool_call(draw, call, level)
    _syscalls_and_entropy(draw, state, level)
    for time_ns in sorted(draw(st.lists(_TIMES, max_size=3))):
        offset = draw(st.integers(-(2**60), 2**60))
        state.clock_changes.add(monotonic_ns=time_ns, wall_minus_monotonic_ns=offset)
    for depth in range(1, draw(st.integers(0, 3)) + 1):
        frame = state.context_stack.add(stack_depth=depth, kind=draw(_WORDS), last_message_id=draw(_WORDS))
        frame.payload_json = json.dumps({"payload": {"said": draw(_WORDS)}, "messages": []})
    if state.manifest.reason in ("exception", "timeout"):
        _failure(draw, state)
    return state


def _manifest(draw: DrawFn, manifest: pb.Manifest, level: str) -> None:
    manifest.id = f"{draw(st.integers(0, 2**64 - 1)):016x}"
    manifest.reason = draw(st.sampled_from(["demand", "exception", "timeout", "signal"]))
    manifest.created_ns = draw(st.integers(0, 2**62))
    manifest.wall_minus_monotonic_ns = manifest.created_ns - START_NS
    manifest.record_level = level


def _program(draw: DrawFn, program: pb.Program, level: str) -> None:
    program.kind, program.entry = draw(st.sampled_from(KINDS)), "agent:answer"
    program.started_ns, program.python_version = START_NS, "3.11.7"
    program.hash_seed = draw(st.sampled_from(["random", "0"]))
    if draw(st.booleans()):
        program.finished, program.ended_ns = True, START_NS + draw(_SPANS)
    if level == "full":
        program.arguments_json = json.dumps({"question": draw(_WORDS)})
    program.environment.add(key="TOOLS_URL", value=draw(_WORDS) if level == "full" else "")


def _head(draw: DrawFn, exchange: pb.Exchange, level: str) -> None:
    exchange.method, exchange.url = draw(st.sampled_from(["GET", "POST"])), draw(_URLS)
    exchange.request_headers.add(key="content-type", value="application/json")
    if level == "full":
        exchange.request_body = draw(_BYTES)
    exchange.task = draw(_TASKS)


def _answer(draw: DrawFn, exchange: pb.Exchange, level: str) -> None:
    """A status, and chunks that end before the exchange does."""
    exchange.status = draw(st.sampled_from([200, 404, 502]))
    at = exchange.sent_ns or exchange.started_ns
    for data in draw(st.lists(_BYTES, max_size=3)):
        delay = draw(_SPANS)
        at += delay
        exchange.chunks.add(data=data if level == "full" else b"", size=len(data), delay_ns=delay)
    if draw(st.booleans()):
        exchange.ended_ns = at + draw(_SPANS)
        if draw(st.booleans()):
            exchange.error, exchange.error_message = draw(st.sampled_from(ERRORS)), draw(_WORDS)


def _outbound(draw: DrawFn, exchange: pb.Exchange, level: str) -> None:
    exchange.started_ns, exchange.client = draw(_TIMES), draw(st.sampled_from(["aiohttp", "httpcore"]))
    exchange.task, exchange.url = draw(_TASKS), "http://tools.test:80"
    connected = draw(st.sampled_from(["failed", "connecting", "new", "reused"]))
    if connected == "failed":
        exchange.connect_ns = draw(_SPANS)
        exchange.ended_ns, exchange.error = exchange.started_ns + exchange.connect_ns, draw(st.sampled_from(ERRORS))
    if connected in ("failed", "connecting"):
        return
    _head(draw, exchange, level)
    if connected == "new":
        exchange.connect_ns = draw(_SPANS)
    if draw(st.booleans()):
        exchange.sent_ns = exchange.started_ns + exchange.connect_ns + draw(_SPANS)
        _answer(draw, exchange, level)


def _inbound(draw: DrawFn, exchange: pb.Exchange, level: str) -> None:
    exchange.started_ns, exchange.client = draw(_TIMES), "asgi"
    _head(draw, exchange, level)
    exchange.request_chunks.add(size=len(exchange.request_body), delay_ns=draw(_SPANS))
    exchange.sent_ns = exchange.started_ns + exchange.request_chunks[0].delay_ns
    if draw(st.booleans()):
        _answer(draw, exchange, level)


def _tool_call(draw: DrawFn, call: pb.ToolCall, level: str) -> None:
    call.name, call.status = draw(_WORDS), draw(st.sampled_from(TOOL_STATUSES))
    call.started_ns, call.task = draw(_TIMES), draw(_TASKS)
    if draw(st.booleans()):
        call.deadline_ns = call.started_ns + draw(_SPANS)
    if call.status in ("finished", "failed"):
        call.finished_ns = call.started_ns + draw(_SPANS)
    if call.status == "failed":
        call.error_type = "TimeoutError"
    if level == "full":
        call.arguments_json = '{"city": "Lis' if call.status == "partial" else json.dumps({"city": draw(_WORDS)})
        if call.status == "finished":
            call.result_json = json.dumps(draw(_WORDS))


def _syscalls_and_entropy(draw: DrawFn, state: pb.RuntimeState, level: str) -> None:
    for data in draw(st.lists(_BYTES, max_size=2)):
        args = ["cache/token.json", str(len(data)), "0", "3"]
        state.syscalls.add(name="read", args=args, ret=str(len(data)), data=data if level == "full" else b"")
    if draw(st.booleans()):
        state.syscalls.add(name="open", args=["missing"], ret="-1", errno_name="ENOENT", time_ns=draw(_TIMES))
    for data in draw(st.lists(_BYTES, max_size=2)):
        kept = data if level == "full" else b""
        state.entropy.add(source="os.urandom", data=kept, size=len(data), time_ns=draw(_TIMES), task=draw(_TASKS))


def _failure(draw: DrawFn, state: pb.RuntimeState) -> None:
    inbound = [exchange.id for exchange in state.exchanges if exchange.direction == "in"]
    failure = state.failures.add(kind=state.manifest.reason, message=draw(_WORDS), frame="agent.py:Agent.answer")
    failure.exchange = draw(st.sampled_from(["", *inbound]))
    if failure.kind == "exception":
        failure.exception_type = "json.decoder.JSONDecodeError"
        state.exceptions.add(type=failure.exception_type, message=failure.message)
    else:
        failure.invariant = "request" if failure.exchange else "program"
    failure.step = draw(st.integers(0, calls_begun(state, failure.exchange)))
    failure.time_ns = draw(_TIMES)
