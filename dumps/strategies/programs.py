"""Hypothesis strategies for dumps of recorded programs: `validate` finds nothing in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from dumps.schema import state_pb2 as pb
from dumps.strategies.world import (
    BYTES,
    SPANS,
    START_NS,
    TASKS,
    TIMES,
    WORDS,
    add_context_stack,
    add_exchanges,
    add_stacks,
    add_tool_calls,
)
from dumps.validate.program import KINDS, calls_begun

DrawFn = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def programs(draw: DrawFn) -> pb.RuntimeState:
    """The dump of a small program at a moment in which it failed, was ended, or was looked at.

    Shrinks to a program that asked the world for nothing.
    """
    level = draw(st.sampled_from(["full", "shape"]))
    state = pb.RuntimeState()
    _manifest(draw, state.manifest, level)
    _program(draw, state.program, level)
    add_exchanges(draw, state, level, inbound=state.program.kind != "block")
    add_tool_calls(draw, state, level)
    _syscalls_and_entropy(draw, state, level)
    for time_ns in sorted(draw(st.lists(TIMES, max_size=3))):
        offset = draw(st.integers(-(2**60), 2**60))
        state.clock_changes.add(monotonic_ns=time_ns, wall_minus_monotonic_ns=offset)
    add_context_stack(draw, state)
    add_stacks(draw, state)
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
        program.finished, program.ended_ns = True, START_NS + draw(SPANS)
    if level == "full":
        program.arguments_json = json.dumps({"question": draw(WORDS)})
    program.environment.add(key="TOOLS_URL", value=draw(WORDS) if level == "full" else "")


def _syscalls_and_entropy(draw: DrawFn, state: pb.RuntimeState, level: str) -> None:
    for data in draw(st.lists(BYTES, max_size=2)):
        args = ["cache/token.json", str(len(data)), "0", "3"]
        state.syscalls.add(name="read", args=args, ret=str(len(data)), data=data if level == "full" else b"")
    if draw(st.booleans()):
        state.syscalls.add(name="open", args=["missing"], ret="-1", errno_name="ENOENT", time_ns=draw(TIMES))
    for data in draw(st.lists(BYTES, max_size=2)):
        kept = data if level == "full" else b""
        state.entropy.add(source="os.urandom", data=kept, size=len(data), time_ns=draw(TIMES), task=draw(TASKS))


def _failure(draw: DrawFn, state: pb.RuntimeState) -> None:
    inbound = [exchange.id for exchange in state.exchanges if exchange.direction == "in"]
    failure = state.failures.add(kind=state.manifest.reason, message=draw(WORDS), frame="agent.py:Agent.answer")
    failure.exchange = draw(st.sampled_from(["", *inbound]))
    if failure.kind == "exception":
        failure.exception_type = "json.decoder.JSONDecodeError"
        state.exceptions.add(type=failure.exception_type, message=failure.message)
    else:
        failure.invariant = "request" if failure.exchange else "program"
    failure.step = draw(st.integers(0, calls_begun(state, failure.exchange)))
    failure.time_ns = draw(TIMES)
