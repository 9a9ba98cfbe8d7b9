"""Small changes to what a recorded program met: results of its tools, and how answers to its requests arrived."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from dumps import ledger
from dumps.schema import state_pb2 as pb

DrawFn = Callable[[st.SearchStrategy[Any]], Any]
Change = Callable[[Any, bool, DrawFn], str]
"""Changes a tool call or an exchange of a dump, whose record level is "full" or not, and says what it changed."""

_TOLD = "as in another dump, changed: "


def changes_of(state: pb.RuntimeState) -> list[tuple[str, int, tuple[Change, ...]]]:
    """Tool calls that are over, then answers whose bytes are on record: the field's name, the index in it, and what can
    be changed there."""
    calls = enumerate(state.tool_calls)
    found: list[tuple[str, int, tuple[Change, ...]]]
    found = [("tool_calls", index, (_tool_result,)) for index, call in calls if call.status in _OVER]
    found += [("exchanges", index, kinds) for index, one in enumerate(state.exchanges) if (kinds := _of_answer(one))]
    return found


def change_one(state: pb.RuntimeState, draw: DrawFn) -> str:
    """Change one thing, and say what, in the ledger too. A change before this one can have left nothing: then ""."""
    found = changes_of(state)
    if not found:
        return ""
    name, index, kinds = draw(st.sampled_from(found))
    change: Change = draw(st.sampled_from(kinds))
    note = change(getattr(state, name)[index], state.manifest.record_level == "full", draw)
    path = f"{name}[{index}]"
    before = next((entry.note for entry in state.ledger if entry.path == path and entry.note.startswith(_TOLD)), _TOLD)
    ledger.record(state, path, pb.SYNTHESISED, f"{before}{'; ' if before != _TOLD else ''}{note}")
    return note


_OVER = ("finished", "failed")


def _tool_result(call: pb.ToolCall, full: bool, draw: DrawFn) -> str:
    status = draw(st.sampled_from(["finished", "failed", "pending"] if full else ["failed", "pending"]))
    for name in ("result_json", "error_type", "error_message"):
        if name != "result_json" or status != "finished":
            call.ClearField(name)
    call.status = status
    if status == "pending":
        call.ClearField("finished_ns")
        return f"{call.id} does not come back"
    if status == "failed":
        call.error_type = "TimeoutError"
        return f"{call.id} fails"
    call.result_json = json.dumps(draw(st.sampled_from(_results(call.result_json))))
    return f"{call.id} returns {call.result_json}"


def _results(recorded: str) -> list[Any]:
    """Results beside a recorded one: nothing, less of it, a number beside it."""
    try:
        value = json.loads(recorded)
    except ValueError:
        value = None
    found: list[Any] = [None, "", [], {}]
    if isinstance(value, bool):
        found.append(not value)
    elif isinstance(value, int | float):
        found += [0, -value, value - 1, value + 1]
    elif isinstance(value, str):
        found += [value[: len(value) // 2], value + value]
    elif isinstance(value, list):
        found += [value[:-1], value + value]
    elif isinstance(value, dict):
        found += [{key: item for key, item in value.items() if key != gone} for gone in list(value)[:8]]
    return found


def _of_answer(exchange: pb.Exchange) -> tuple[Change, ...]:
    """The bytes of an answer can arrive in other pieces, or not all of them."""
    chunks = exchange.chunks
    if exchange.direction != "out" or not chunks or any(len(chunk.data) != chunk.size for chunk in chunks):
        return ()
    several: tuple[Change, ...] = (_join, _cut_short) if len(chunks) > 1 else ()
    return (*several, _split) if any(chunk.size > 1 for chunk in chunks) else several


def _join(exchange: pb.Exchange, full: bool, draw: DrawFn) -> str:
    """One piece arrives with the next one, when that does."""
    place = draw(st.integers(0, len(exchange.chunks) - 2))
    first, second = exchange.chunks[place : place + 2]
    second.data, second.size = first.data + second.data, first.size + second.size
    second.delay_ns += first.delay_ns
    del exchange.chunks[place]
    return f"pieces {place} and {place + 1} of the answer to {exchange.id} arrive as one"


def _split(exchange: pb.Exchange, full: bool, draw: DrawFn) -> str:
    """One piece arrives as two, one right after the other."""
    place = draw(st.sampled_from([place for place, chunk in enumerate(exchange.chunks) if chunk.size > 1]))
    whole = exchange.chunks[place].data
    at = draw(st.integers(1, len(whole) - 1))
    chunks = [pb.Chunk.FromString(chunk.SerializeToString()) for chunk in exchange.chunks]
    rest = pb.Chunk(data=whole[at:], size=len(whole) - at)
    chunks[place].data, chunks[place].size = whole[:at], at
    exchange.ClearField("chunks")
    exchange.chunks.extend([*chunks[: place + 1], rest, *chunks[place + 1 :]])
    return f"piece {place} of the answer to {exchange.id} arrives in two, after {at} of its {len(whole)} bytes"


def _cut_short(exchange: pb.Exchange, full: bool, draw: DrawFn) -> str:
    """The connection is reset after some pieces; the first one, which has the status, arrives."""
    kept = draw(st.integers(1, len(exchange.chunks) - 1))
    del exchange.chunks[kept:]
    exchange.error, exchange.error_message = "reset", ""
    if not exchange.HasField("ended_ns"):
        began = max(exchange.sent_ns, exchange.started_ns + exchange.connect_ns)
        exchange.ended_ns = began + sum(chunk.delay_ns for chunk in exchange.chunks)
    return f"the answer to {exchange.id} ends after {kept} {'piece' if kept == 1 else 'pieces'}"
