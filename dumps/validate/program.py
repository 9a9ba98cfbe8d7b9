"""Rules of a recorded program: exchanges, tool calls, system calls, entropy, clock, context stack, and its failure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from dumps.exchanges.match_key import MatchKey, match_key
from dumps.schema import state_pb2 as pb
from dumps.validate.finding import Finding, Findings

KINDS = ("block", "asgi", "aiohttp")
DIRECTIONS = ("out", "in")
FRAMINGS = ("wire", "body")
ERRORS = ("dns", "refused", "reset", "timeout", "tls", "closed")
TOOL_STATUSES = ("pending", "partial", "finished", "failed")


def check_program(state: pb.RuntimeState) -> Findings:
    """All rules of ``state.program`` and of the world that it was recorded in."""
    yield from _program(state)
    yield from _ids("exchanges", [exchange.id for exchange in state.exchanges])
    yield from _ids("tool_calls", [call.id for call in state.tool_calls])
    full = state.manifest.record_level == "full"
    for index, exchange in enumerate(state.exchanges):
        yield from _exchange(exchange, f"exchanges[{index}]", full=full)
    yield from _occurrences(state)
    for index, call in enumerate(state.tool_calls):
        yield from _tool_call(call, f"tool_calls[{index}]", full=full)
    for index, syscall in enumerate(state.syscalls):
        yield from _syscall(syscall, f"syscalls[{index}]", full=full)
    for index, draw in enumerate(state.entropy):
        yield from _left_out("entropy", f"entropy[{index}].data", draw.data, draw.size, full=full)
    yield from _ascending(state)
    for index, failure in enumerate(state.failures):
        yield from _failure(state, failure, f"failures[{index}]")


def calls_begun(state: pb.RuntimeState, within: str = "") -> int:
    """The world step of the dump: outbound requests and tool calls; ``within`` counts those of one inbound exchange."""
    exchanges = sum(one.direction == "out" and (not within or one.within == within) for one in state.exchanges)
    return exchanges + sum(not within or one.within == within for one in state.tool_calls)


def _program(state: pb.RuntimeState) -> Findings:
    if not state.HasField("program"):
        return
    program = state.program
    if program.kind not in KINDS:
        yield Finding("program.kind", "program.kind", f"not one of {', '.join(KINDS)}")
    if program.HasField("ended_ns") and program.ended_ns < program.started_ns:
        yield Finding("program.times", "program.ended_ns", "the program ended before it began")
    if program.finished and not program.HasField("ended_ns"):
        yield Finding("program.times", "program.ended_ns", "a program that came to its end has a time of it")
    if state.manifest.record_level != "full":
        if program.arguments_json:
            yield Finding("program.level", "program.arguments_json", "recorded although the level is not 'full'")
        for index, variable in enumerate(program.environment):
            if variable.value:
                path = f"program.environment[{index}].value"
                yield Finding("program.level", path, "recorded although the level is not 'full'")


def _ids(name: str, ids: Iterable[str]) -> Findings:
    seen: dict[str, int] = {}
    for index, one in enumerate(ids):
        if not one:
            yield Finding(f"{name}.id", f"{name}[{index}].id", "has no id")
        elif seen.setdefault(one, index) != index:
            yield Finding(f"{name}.id", f"{name}[{index}].id", f"the same id as {name}[{seen[one]}]")


def _exchange(exchange: pb.Exchange, path: str, *, full: bool) -> Findings:
    for name, known in (("direction", DIRECTIONS), ("framing", FRAMINGS), ("error", (*ERRORS, ""))):
        if getattr(exchange, name) not in known:
            yield Finding(f"exchanges.{name}", f"{path}.{name}", f"not one of {', '.join(filter(None, known))}")
    if exchange.status and not 100 <= exchange.status <= 999:
        yield Finding("exchanges.status", f"{path}.status", f"{exchange.status} is no status of HTTP")
    ended = exchange.HasField("ended_ns")
    if ended and not (exchange.status or exchange.error or exchange.error_message):
        yield Finding("exchanges.end", path, "it ended with neither a status nor an error")
    if exchange.error and not ended:
        yield Finding("exchanges.end", f"{path}.error", "what ended early has a time of its end")
    yield from _exchange_times(exchange, path)
    if exchange.request_body and not full:
        yield Finding("exchanges.level", f"{path}.request_body", "recorded although the level is not 'full'")
    for index, chunk in enumerate(exchange.chunks):
        yield from _left_out("exchanges", f"{path}.chunks[{index}].data", chunk.data, chunk.size, full=full)
    if exchange.request_chunks and exchange.direction != "in":
        yield Finding("exchanges.request-chunks", f"{path}.request_chunks", "only what this process was asked has them")
    elif exchange.direction == "in":
        arrived = sum(chunk.size for chunk in exchange.request_chunks)
        if len(exchange.request_body) > arrived:
            message = f"{len(exchange.request_body)} bytes of body, of which {arrived} arrived"
            yield Finding("exchanges.request-chunks", f"{path}.request_chunks", message)
        if any(chunk.data for chunk in exchange.request_chunks):
            yield Finding("exchanges.request-chunks", f"{path}.request_chunks", "their bytes stand in request_body")


def _exchange_times(exchange: pb.Exchange, path: str) -> Findings:
    if exchange.sent_ns and exchange.sent_ns < exchange.started_ns:
        yield Finding("exchanges.times", f"{path}.sent_ns", "the request was written before it began")
    if not exchange.HasField("ended_ns"):
        return
    took = exchange.ended_ns - exchange.started_ns
    if took < 0:
        yield Finding("exchanges.times", f"{path}.ended_ns", "it ended before it began")
        return
    if exchange.connect_ns > took:
        yield Finding("exchanges.times", f"{path}.connect_ns", "connecting took longer than the whole exchange")
    if sum(chunk.delay_ns for chunk in exchange.chunks) > took:
        yield Finding("exchanges.times", f"{path}.chunks", "the delays between the chunks exceed the whole exchange")


def _occurrences(state: pb.RuntimeState) -> Findings:
    """Requests of one task with one match key are told apart by their numbers, once they are written."""
    seen: dict[tuple[str, MatchKey, int], int] = {}
    for index, exchange in enumerate(state.exchanges):
        if exchange.direction != "out" or not exchange.method or not exchange.sent_ns:
            continue
        first = seen.setdefault((exchange.task, match_key(exchange), exchange.occurrence), index)
        if first != index:
            message = f"task, request and number are those of exchanges[{first}]"
            yield Finding("exchanges.occurrence", f"exchanges[{index}].occurrence", message)


def _tool_call(call: pb.ToolCall, path: str, *, full: bool) -> Findings:
    if call.status not in TOOL_STATUSES:
        yield Finding("tool_calls.status", f"{path}.status", f"not one of {', '.join(TOOL_STATUSES)}")
        return
    over = call.status in ("finished", "failed")
    if over != call.HasField("finished_ns"):
        message = "a call that is over has a time of its end" if over else f"a {call.status} call is not over"
        yield Finding("tool_calls.end", f"{path}.finished_ns", message)
    if call.HasField("finished_ns") and call.finished_ns < call.started_ns:
        yield Finding("tool_calls.times", f"{path}.finished_ns", "it ended before it began")
    if (call.status == "failed") != bool(call.error_type):
        yield Finding("tool_calls.end", f"{path}.error_type", "a failed call, and no other, has raised something")
    if call.result_json and call.status != "finished":
        yield Finding("tool_calls.end", f"{path}.result_json", f"a {call.status} call has no result")
    if not full and (call.arguments_json or call.result_json or call.error_message):
        yield Finding("tool_calls.level", path, "recorded although the level is not 'full'")


def _syscall(call: pb.Syscall, path: str, *, full: bool) -> Findings:
    if call.errno_name and call.ret not in ("-1", "?"):
        yield Finding("syscalls.errno", f"{path}.ret", f"a call that failed returns -1, not {call.ret!r}")
    if call.data and not full:
        yield Finding("syscalls.level", f"{path}.data", "recorded although the level is not 'full'")


def _left_out(name: str, path: str, data: bytes, size: int, *, full: bool) -> Findings:
    if data and not full:
        yield Finding(f"{name}.level", path, "recorded although the level is not 'full'")
    if data and len(data) != size:
        yield Finding(f"{name}.size", path, f"{len(data)} bytes, of {size} claimed: all of them are kept, or none")


def _ascending(state: pb.RuntimeState) -> Findings:
    for index, (before, after) in enumerate(pairwise(state.clock_changes), 1):
        if after.monotonic_ns < before.monotonic_ns:
            path = f"clock_changes[{index}].monotonic_ns"
            yield Finding("clock_changes.order", path, f"{after.monotonic_ns} after {before.monotonic_ns}")
    for index, frame in enumerate(state.context_stack):
        depth = state.context_stack[index - 1].stack_depth + 1 if index else max(frame.stack_depth, 1)
        if frame.stack_depth != depth:
            path = f"context_stack[{index}].stack_depth"
            yield Finding("context_stack.depth", path, f"{frame.stack_depth} where {depth} comes next")


def _failure(state: pb.RuntimeState, failure: pb.Failure, path: str) -> Findings:
    inbound = {exchange.id for exchange in state.exchanges if exchange.direction == "in"}
    if failure.exchange and failure.exchange not in inbound:
        yield Finding("failures.exchange", f"{path}.exchange", "no inbound exchange has this id")
    if state.HasField("program") and failure.HasField("step"):
        begun = calls_begun(state, failure.exchange)
        if failure.step > begun:
            yield Finding("failures.step", f"{path}.step", f"step {failure.step}, though {begun} calls had begun")
