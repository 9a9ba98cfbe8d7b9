"""Defects of a recorded program and of the world around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dumps.schema import state_pb2 as pb
from dumps.strategies.defect import Change, Defect, Places, both, clear, put

_ERROR = "closed"


def _kind(state: pb.RuntimeState) -> Iterator[Change]:
    if state.HasField("program"):
        yield put(state.program, kind="odd")


def _program_times(state: pb.RuntimeState) -> Iterator[Change]:
    if not state.HasField("program"):
        return
    yield put(state.program, ended_ns=state.program.started_ns - 1)
    yield both(put(state.program, finished=True), clear(state.program, "ended_ns"))


def _program_level(state: pb.RuntimeState) -> Iterator[Change]:
    if state.HasField("program") and state.manifest.record_level != "full":
        yield put(state.program, arguments_json="{}")
        yield lambda: state.program.environment.add(key="A", value="b")


def _exchange_id(state: pb.RuntimeState) -> Iterator[Change]:
    yield lambda: state.exchanges.add(direction="out", framing="wire")
    for exchange in state.exchanges:
        yield lambda exchange=exchange: state.exchanges.add(  # type: ignore[misc]
            id=exchange.id, direction="out", framing="wire"
        )


def _direction(state: pb.RuntimeState) -> Iterator[Change]:
    for exchange in _outbound(state):
        yield both(_no_failures(state), put(exchange, direction="up"))


def _framing(state: pb.RuntimeState) -> Iterator[Change]:
    for exchange in state.exchanges:
        yield put(exchange, framing="")


def _error(state: pb.RuntimeState) -> Iterator[Change]:
    for exchange in state.exchanges:
        if exchange.HasField("ended_ns"):
            yield put(exchange, error="odd")


def _status(state: pb.RuntimeState) -> Iterator[Change]:
    for exchange in state.exchanges:
        for wrong in (99, 1000):
            yield put(exchange, status=wrong)


def _end(state: pb.RuntimeState) -> Iterator[Change]:
    for exchange in state.exchanges:
        if exchange.HasField("ended_ns"):
            yield clear(exchange, "status", "error", "error_message")
        else:
            yield put(exchange, error=_ERROR)


def _times(state: pb.RuntimeState) -> Iterator[Change]:
    for exchange in state.exchanges:
        if exchange.sent_ns:
            yield put(exchange, sent_ns=exchange.started_ns - 1)
        if exchange.HasField("ended_ns"):
            yield put(exchange, ended_ns=exchange.started_ns - 1)


def _level(state: pb.RuntimeState) -> Iterator[Change]:
    for exchange in state.exchanges if state.manifest.record_level != "full" else ():
        if exchange.direction == "out":
            yield both(put(exchange, request_body=b"hello"), _number_apart(exchange))
        for chunk in exchange.chunks:
            if chunk.size:
                yield put(chunk, data=bytes(chunk.size))


def _size(state: pb.RuntimeState) -> Iterator[Change]:
    for exchange in state.exchanges:
        for chunk in exchange.chunks:
            if chunk.data:
                yield put(chunk, size=len(chunk.data) + 1)


def _request_chunks(state: pb.RuntimeState) -> Iterator[Change]:
    for exchange in state.exchanges:
        if exchange.direction == "out":
            yield lambda exchange=exchange: exchange.request_chunks.add(size=1)  # type: ignore[misc]
        elif exchange.request_chunks:
            yield put(exchange.request_chunks[0], data=b"hello")


def _occurrence(state: pb.RuntimeState) -> Iterator[Change]:
    for exchange in _outbound(state):
        if exchange.method and exchange.sent_ns:
            again = pb.Exchange()
            again.CopyFrom(exchange)
            again.id = "again"
            yield lambda again=again: state.exchanges.append(again)  # type: ignore[misc]


def _call_id(state: pb.RuntimeState) -> Iterator[Change]:
    for call in state.tool_calls:
        yield put(call, id="")
        yield lambda call=call: state.tool_calls.append(call)  # type: ignore[misc]


def _call_status(state: pb.RuntimeState) -> Iterator[Change]:
    for call in state.tool_calls:
        yield put(call, status="done")


def _call_end(state: pb.RuntimeState) -> Iterator[Change]:
    for call in state.tool_calls:
        if call.status in ("finished", "failed"):
            yield clear(call, "finished_ns")
        else:
            yield put(call, finished_ns=call.started_ns)
            if state.manifest.record_level == "full":
                yield put(call, result_json="1")
        yield clear(call, "error_type") if call.status == "failed" else put(call, error_type="OSError")


def _call_times(state: pb.RuntimeState) -> Iterator[Change]:
    for call in state.tool_calls:
        if call.HasField("finished_ns"):
            yield put(call, finished_ns=call.started_ns - 1)


def _call_level(state: pb.RuntimeState) -> Iterator[Change]:
    for call in state.tool_calls if state.manifest.record_level != "full" else ():
        yield put(call, arguments_json="{}")
        yield put(call, error_message="no")


def _errno(state: pb.RuntimeState) -> Iterator[Change]:
    yield lambda: state.syscalls.add(name="open", ret="3", errno_name="ENOENT")


def _syscall_level(state: pb.RuntimeState) -> Iterator[Change]:
    if state.manifest.record_level != "full":
        yield lambda: state.syscalls.add(name="read", ret="1", data=b"a")


def _entropy_level(state: pb.RuntimeState) -> Iterator[Change]:
    if state.manifest.record_level != "full":
        yield lambda: state.entropy.add(source="os.urandom", data=b"a", size=1)


def _entropy_size(state: pb.RuntimeState) -> Iterator[Change]:
    if state.manifest.record_level == "full":
        yield lambda: state.entropy.add(source="os.urandom", data=b"a", size=2)


def _clock_order(state: pb.RuntimeState) -> Iterator[Change]:
    if state.clock_changes:
        yield lambda: state.clock_changes.add(monotonic_ns=state.clock_changes[-1].monotonic_ns - 1)


def _depth(state: pb.RuntimeState) -> Iterator[Change]:
    last = state.context_stack[-1].stack_depth if state.context_stack else -1
    yield lambda: state.context_stack.add(stack_depth=last if last > 0 else 0)


def _failure_exchange(state: pb.RuntimeState) -> Iterator[Change]:
    yield lambda: state.failures.add(kind="exception", exchange="nobody")


def _outbound(state: pb.RuntimeState) -> Iterable[pb.Exchange]:
    return (exchange for exchange in state.exchanges if exchange.direction == "out")


def _no_failures(state: pb.RuntimeState) -> Change:
    return lambda: state.ClearField("failures")  # they count the calls that had begun


def _number_apart(exchange: pb.Exchange) -> Change:
    return put(exchange, occurrence=exchange.occurrence + 100)


def _of_program(name: str, rule: str, places: Places) -> Defect:
    return Defect(name=name, rule=rule, places=places, of="program")


DEFECTS = (
    _of_program("unknown kind of program", "program.kind", _kind),
    _of_program("program that ended before it began", "program.times", _program_times),
    _of_program("arguments that the level does not allow", "program.level", _program_level),
    _of_program("exchange without an id of its own", "exchanges.id", _exchange_id),
    _of_program("exchange in no direction", "exchanges.direction", _direction),
    _of_program("unknown framing", "exchanges.framing", _framing),
    _of_program("unknown error of an exchange", "exchanges.error", _error),
    _of_program("impossible status", "exchanges.status", _status),
    _of_program("end of an exchange that says nothing", "exchanges.end", _end),
    _of_program("exchange that ended before it began", "exchanges.times", _times),
    _of_program("body that the level does not allow", "exchanges.level", _level),
    _of_program("chunk of another size than it has", "exchanges.size", _size),
    _of_program("arrival of a body that did not arrive so", "exchanges.request-chunks", _request_chunks),
    _of_program("two exchanges that nothing tells apart", "exchanges.occurrence", _occurrence),
    _of_program("tool call without an id of its own", "tool_calls.id", _call_id),
    _of_program("unknown status of a tool call", "tool_calls.status", _call_status),
    _of_program("end that does not fit the tool call", "tool_calls.end", _call_end),
    _of_program("tool call that ended before it began", "tool_calls.times", _call_times),
    _of_program("tool arguments that the level does not allow", "tool_calls.level", _call_level),
    _of_program("failed system call with a result", "syscalls.errno", _errno),
    _of_program("read data that the level does not allow", "syscalls.level", _syscall_level),
    _of_program("entropy that the level does not allow", "entropy.level", _entropy_level),
    _of_program("entropy of another size than it has", "entropy.size", _entropy_size),
    _of_program("wall clock set before it was set", "clock_changes.order", _clock_order),
    _of_program("context stack with a gap", "context_stack.depth", _depth),
    _of_program("failure in the handling of nothing", "failures.exchange", _failure_exchange),
)
