"""One defect at a time in the dump of a program: the rule that is broken is named, at the field that is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.schema import state_pb2 as pb
from dumps.validate import validate

Spoil = Callable[[pb.RuntimeState], object]


def program(level: str = "full") -> pb.RuntimeState:
    """A served request (in), what was asked for it (out, twice the same), a tool that waits and one that failed."""
    state = pb.RuntimeState()
    manifest = state.manifest
    manifest.id, manifest.reason, manifest.record_level = "0123456789abcdef", "exception", level
    state.program.kind, state.program.started_ns = "asgi", 100
    inbound = state.exchanges.add(
        id="x1", direction="in", framing="body", method="POST", url="http://a/", task="Task-1"
    )
    inbound.started_ns, inbound.sent_ns, inbound.request_body = 100, 110, b"abcd"
    inbound.request_chunks.add(size=4, delay_ns=10)
    for number in range(2):
        one = state.exchanges.add(id=f"x{number + 2}", direction="out", framing="wire", method="GET", url="http://b/c")
        one.started_ns, one.connect_ns, one.sent_ns, one.ended_ns, one.status = 120, 5, 130, 200, 200
        one.task, one.occurrence, one.within = "Task-1", number, "x1"
        one.chunks.add(data=b"HTTP/1.1", size=8, delay_ns=70)
    state.tool_calls.add(id="t1", name="search", status="pending", started_ns=150)
    state.tool_calls.add(id="t2", name="rates", status="failed", started_ns=150, finished_ns=160, error_type="OSError")
    state.syscalls.add(name="open", args=["a"], ret="-1", errno_name="ENOENT")
    state.entropy.add(source="os.urandom", data=b"1234", size=4)
    state.clock_changes.add(monotonic_ns=100)
    state.clock_changes.add(monotonic_ns=300)
    for depth in (1, 2):
        state.context_stack.add(stack_depth=depth)
    state.failures.add(kind="exception", exception_type="OSError", exchange="x1", step=1)
    return state


def put(**values: object) -> Callable[[object], None]:
    def spoil(message: object) -> None:
        for name, value in values.items():
            setattr(message, name, value)

    return spoil


DEFECTS: list[tuple[str, str, Spoil]] = [
    ("program.kind", "program.kind", lambda s: put(kind="odd")(s.program)),
    ("program.times", "program.ended_ns", lambda s: put(ended_ns=99)(s.program)),
    ("program.times", "program.ended_ns", lambda s: put(finished=True)(s.program)),
    ("exchanges.id", "exchanges[1].id", lambda s: put(id="")(s.exchanges[1])),
    ("exchanges.id", "exchanges[2].id", lambda s: put(id="x2")(s.exchanges[2])),
    ("exchanges.direction", "exchanges[1].direction", lambda s: put(direction="up")(s.exchanges[1])),
    ("exchanges.framing", "exchanges[1].framing", lambda s: put(framing="")(s.exchanges[1])),
    ("exchanges.error", "exchanges[1].error", lambda s: put(error="odd")(s.exchanges[1])),
    ("exchanges.status", "exchanges[1].status", lambda s: put(status=20)(s.exchanges[1])),
    ("exchanges.end", "exchanges[1]", lambda s: put(status=0)(s.exchanges[1])),
    ("exchanges.end", "exchanges[0].error", lambda s: put(error="closed")(s.exchanges[0])),
    ("exchanges.times", "exchanges[1].sent_ns", lambda s: put(sent_ns=119)(s.exchanges[1])),
    ("exchanges.times", "exchanges[1].ended_ns", lambda s: put(ended_ns=119)(s.exchanges[1])),
    ("exchanges.times", "exchanges[1].connect_ns", lambda s: put(connect_ns=81)(s.exchanges[1])),
    ("exchanges.times", "exchanges[1].chunks", lambda s: put(delay_ns=81)(s.exchanges[1].chunks[0])),
    ("exchanges.size", "exchanges[1].chunks[0].data", lambda s: put(size=9)(s.exchanges[1].chunks[0])),
    (
        "exchanges.request-chunks",
        "exchanges[0].request_chunks",
        lambda s: put(size=3)(s.exchanges[0].request_chunks[0]),
    ),
    (
        "exchanges.request-chunks",
        "exchanges[0].request_chunks",
        lambda s: put(data=b"abcd")(s.exchanges[0].request_chunks[0]),
    ),
    ("exchanges.request-chunks", "exchanges[1].request_chunks", lambda s: s.exchanges[1].request_chunks.add(size=1)),
    ("exchanges.occurrence", "exchanges[2].occurrence", lambda s: put(occurrence=0)(s.exchanges[2])),
    ("tool_calls.id", "tool_calls[1].id", lambda s: put(id="t1")(s.tool_calls[1])),
    ("tool_calls.status", "tool_calls[0].status", lambda s: put(status="done")(s.tool_calls[0])),
    ("tool_calls.end", "tool_calls[0].finished_ns", lambda s: put(finished_ns=170)(s.tool_calls[0])),
    ("tool_calls.end", "tool_calls[1].finished_ns", lambda s: s.tool_calls[1].ClearField("finished_ns")),
    ("tool_calls.end", "tool_calls[1].error_type", lambda s: put(error_type="")(s.tool_calls[1])),
    ("tool_calls.end", "tool_calls[0].result_json", lambda s: put(result_json="1")(s.tool_calls[0])),
    ("tool_calls.times", "tool_calls[1].finished_ns", lambda s: put(finished_ns=149)(s.tool_calls[1])),
    ("syscalls.errno", "syscalls[0].ret", lambda s: put(ret="3")(s.syscalls[0])),
    ("entropy.size", "entropy[0].data", lambda s: put(size=5)(s.entropy[0])),
    ("clock_changes.order", "clock_changes[1].monotonic_ns", lambda s: put(monotonic_ns=99)(s.clock_changes[1])),
    ("context_stack.depth", "context_stack[1].stack_depth", lambda s: put(stack_depth=3)(s.context_stack[1])),
    ("failures.exchange", "failures[0].exchange", lambda s: put(exchange="x2", step=0)(s.failures[0])),
    ("failures.step", "failures[0].step", lambda s: put(step=3)(s.failures[0])),
]


def test_the_program_itself_breaks_no_rule():
    assert validate(program()) == []


@pytest.mark.parametrize(("rule", "path", "spoil"), DEFECTS, ids=[f"{rule} {path}" for rule, path, _ in DEFECTS])
def test_a_defect_is_named(rule, path, spoil):
    state = program()
    spoil(state)
    assert [(finding.rule, finding.path) for finding in validate(state)] == [(rule, path)]


@pytest.mark.parametrize(
    ("rule", "path", "leave"),
    [
        ("program.level", "program.arguments_json", lambda s: put(arguments_json="{}")(s.program)),
        ("program.level", "program.environment[0].value", lambda s: s.program.environment.add(key="A", value="b")),
        ("exchanges.level", "exchanges[0].request_body", lambda s: put(request_body=b"abcd")(s.exchanges[0])),
        ("exchanges.level", "exchanges[1].chunks[0].data", lambda s: put(data=b"HTTP/1.1")(s.exchanges[1].chunks[0])),
        ("tool_calls.level", "tool_calls[1]", lambda s: put(error_message="no")(s.tool_calls[1])),
        ("syscalls.level", "syscalls[0].data", lambda s: put(data=b"a")(s.syscalls[0])),
        ("entropy.level", "entropy[0].data", lambda s: put(data=b"1234")(s.entropy[0])),
    ],
)
def test_text_is_only_in_a_full_dump(rule, path, leave):
    state = program("shape")
    state.exchanges[0].request_body = state.entropy[0].data = b""
    for exchange in state.exchanges[1:]:
        exchange.chunks[0].data = b""
    assert validate(state) == []
    leave(state)
    assert [(finding.rule, finding.path) for finding in validate(state)] == [(rule, path)]


@given(st.binary(max_size=200))
def test_no_exchange_makes_a_rule_raise(data):
    state = program()
    one = state.exchanges[1]
    one.url = data.decode("latin-1")
    one.request_headers.add(key="content-type", value=data[::-1].decode("latin-1"))
    one.request_body = data
    validate(state)
