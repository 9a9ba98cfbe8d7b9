"""The parts of a recorded program's dump for people: its calls to the world, its tools, its context."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dumps.schema import state_pb2 as pb
from dumps.text import printable

MOST_CALLS = 20
MOST_FRAMES = 12
MOST_MESSAGES = 3  # of one frame
NUMBERS = ("status", "chunks", "started", "took")

Part = Callable[[pb.RuntimeState], RenderableType | None]
T = TypeVar("T", pb.Exchange, pb.ToolCall)


def _program(state: pb.RuntimeState) -> RenderableType | None:
    if not state.HasField("program"):
        return None
    program = state.program
    kind = {"block": "a recorded block", "asgi": "an ASGI application", "aiohttp": "an aiohttp application"}
    lines = [f"{program.entry or 'entry not known'}: {kind.get(program.kind, program.kind)}; {_ending(state)}"]
    if program.arguments_json:
        lines.append(f"called with {program.arguments_json}")
    lines.append(f"python {program.python_version or '?'}, hash seed {program.hash_seed or '?'}")
    noted = f"{len(state.syscalls)} file calls, {len(state.entropy)} draws of entropy"
    lines.append(f"noted besides: {noted}; {_clock(state)}")
    return Text("\n".join(printable(line, 400) for line in lines))


def _ending(state: pb.RuntimeState) -> str:
    if state.program.finished:
        # A dump that is made at the end of a program is that of the exception which left it.
        return "it raised" if state.manifest.reason == "exception" else "it came to its end"
    return "it was ended from outside" if state.program.HasField("ended_ns") else "it was going on"


def _clock(state: pb.RuntimeState) -> str:
    """Changes of the wall clock after the first entry, which says how it stood at the start."""
    changes = state.clock_changes
    if len(changes) < 2:
        return "the clock did not change"
    jump = (changes[-1].wall_minus_monotonic_ns - changes[-2].wall_minus_monotonic_ns) / 1e9
    return f"the clock changed {len(changes) - 1} times, the last by {jump:+.3f} s"


def _exchanges(state: pb.RuntimeState) -> RenderableType | None:
    exchanges = state.exchanges
    if not exchanges:
        return None
    blamed = {failure.exchange for failure in state.failures[-1:] if failure.exchange}
    shown = _latest(exchanges, lambda one: one.id in blamed)
    table = _table(
        shown,
        {
            "id": (20, lambda one: one.id),
            "for": (20, lambda one: one.within),
            "direction": (4, lambda one: one.direction),
            "method": (12, lambda one: one.method),
            "URL": (160, lambda one: one.url),
            "status": (12, _end),
            "chunks": (20, lambda one: str(len(one.chunks))),
            "started": (20, lambda one: _since(state, one.started_ns)),
            "took": (20, lambda one: _took(one.started_ns, one.ended_ns if one.HasField("ended_ns") else None)),
        },
        in_red=lambda one: bool(one.error) or one.id in blamed,
    )
    return _with_rest(table, len(exchanges) - len(shown), "exchanges before these: --field exchanges")


def _end(exchange: pb.Exchange) -> str:
    if exchange.error or exchange.status:
        return exchange.error or str(exchange.status)
    return "given up" if exchange.HasField("ended_ns") else ""


def _tool_calls(state: pb.RuntimeState) -> RenderableType | None:
    calls = state.tool_calls
    if not calls:
        return None
    shown = calls[-MOST_CALLS:]
    table = _table(
        shown,
        {
            "id": (40, lambda one: one.id),
            "for": (20, lambda one: one.within),
            "tool": (40, lambda one: one.name),
            "arguments": (60, lambda one: one.arguments_json),
            "status": (12, lambda one: one.status),
            "what came": (80, _what_came),
            "started": (20, lambda one: _since(state, one.started_ns)),
            "took": (20, lambda one: _took(one.started_ns, one.finished_ns if one.HasField("finished_ns") else None)),
        },
        in_red=lambda one: one.status != "finished",
    )
    return _with_rest(table, len(calls) - len(shown), "calls before these: --field tool_calls")


def _what_came(call: pb.ToolCall) -> str:
    if call.status == "finished":
        return call.result_json
    if call.status == "pending":
        deadline = (
            f", deadline after {_took(call.started_ns, call.deadline_ns)}" if call.HasField("deadline_ns") else ""
        )
        return f"nothing yet{deadline}"
    return f"{call.error_type} {call.error_message}".strip()


def _context(state: pb.RuntimeState) -> RenderableType | None:
    """Innermost first: that is what the program was doing."""
    frames = list(state.context_stack)[::-1]
    if not frames:
        return None
    lines = []
    for frame in frames[:MOST_FRAMES]:
        payload, messages = _contents(frame.payload_json)
        last = f", last message {frame.last_message_id}" if frame.last_message_id else ""
        lines.append(printable(f"{frame.stack_depth} {frame.kind}{last} {payload}".rstrip(), 200))
        lines += [f"    {printable(message, 160)}" for message in messages[-MOST_MESSAGES:]]
        if len(messages) > MOST_MESSAGES:
            lines.append(f"    and {len(messages) - MOST_MESSAGES} messages before")
    if len(frames) > MOST_FRAMES:
        lines.append(f"... and {len(frames) - MOST_FRAMES} more around these: --field context_stack")
    return Text("\n".join(lines))


def _contents(text: str) -> tuple[str, list[str]]:
    """A frame's payload and its messages, each on a line; the text itself where it is not what a recorder writes."""
    try:
        content = json.loads(text or "{}")
        payload = json.dumps(content["payload"], ensure_ascii=False) if content.get("payload") else ""
        return payload, [_message(one) for one in content.get("messages", [])]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return text, []


def _message(message: dict[str, Any]) -> str:
    said = message.get("content", f"{message.get('size', '?')} characters")
    return f"{message.get('role', '?')} {message.get('id', '')}: {said}"


def _since(state: pb.RuntimeState, time_ns: int) -> str:
    return f"+{(time_ns - state.program.started_ns) / 1e9:.3f} s" if state.HasField("program") else ""


def _took(started_ns: int, ended_ns: int | None) -> str:
    if ended_ns is None:
        return "in flight"
    seconds = (ended_ns - started_ns) / 1e9
    return f"{seconds * 1e3:.1f} ms" if abs(seconds) < 1 else f"{seconds:.3f} s"


def _latest(exchanges: Sequence[pb.Exchange], blamed: Callable[[pb.Exchange], bool]) -> list[pb.Exchange]:
    """The last of them, and before them the one that is to blame."""
    older = [one for one in exchanges[:-MOST_CALLS] if blamed(one)]
    return [*older, *exchanges[-MOST_CALLS:]]


def _table(
    shown: Sequence[T], columns: Mapping[str, tuple[int, Callable[[T], str]]], *, in_red: Callable[[T], bool]
) -> Table:
    """A row for each of ``shown``. ``columns``: by heading the most characters of a cell, and what stands in it."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for heading in columns:
        table.add_column(heading, justify="right" if heading in NUMBERS else "left", overflow="fold")
    for one in shown:
        cells = (printable(text(one), most) for most, text in columns.values())
        table.add_row(*cells, style="bold red" if in_red(one) else None)
    return table


def _with_rest(table: Table, rest: int, what: str) -> RenderableType:
    return Group(table, Text(f"... and {rest} {what}", style="dim")) if rest > 0 else table


PROGRAM_PARTS: tuple[tuple[str, Part], ...] = (
    ("Program", _program),
    ("Context stack, innermost first", _context),
    ("Exchanges", _exchanges),
    ("Tool calls", _tool_calls),
)
