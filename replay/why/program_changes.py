"""The changes that apply to the dump of a program: each tool call that came to nothing is given a result."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from dumps.record.seams.json_text import is_whole
from dumps.schema import state_pb2 as pb
from dumps.text import printable
from replay.why.change import Change, Left

_NULL = "null"


def changes_of_program(state: pb.RuntimeState, given: Mapping[str, str]) -> tuple[list[Change], list[Left]]:
    """What can be changed of a recorded program's world, and what cannot. ``given`` are results by tool call id, as
    JSON; another call is given what a call of the same tool had, or null."""
    both = [*_tools(state, given), *_exchanges(state)]
    return [one for one in both if isinstance(one, Change)], [one for one in both if isinstance(one, Left)]


def _tools(state: pb.RuntimeState, given: Mapping[str, str]) -> Iterator[Change | Left]:
    if not state.tool_calls:
        yield Left("tool.ID.result=JSON", "the program called no tool")
    for call in state.tool_calls:
        key = f"tool.{call.id}.result"
        shown = f"the tool call {printable(call.id, 80)} ({printable(call.name, 80)})"
        if call.status == "finished" and call.id not in given:
            yield Left(
                f"{printable(key, 100)}=JSON", f"it was answered; --try '{printable(key, 80)}=JSON' gives another"
            )
            continue
        state_of = {"pending": "unanswered", "partial": "half asked", "failed": "failing"}.get(call.status, "as it was")
        yield Change(
            settings={key: given.get(call.id) or _answer(state, call.name)},
            subject=key,
            needs=f"{shown} {state_of}",
            points_to=f"With an answer to {shown} the program does not fail: look at that tool, and at what the "
            "program does while it waits for it.",
        )


def _answer(state: pb.RuntimeState, tool: str) -> str:
    """The result of another call of the same tool, or null."""
    for call in state.tool_calls:
        if call.name == tool and call.status == "finished" and _is_json(call.result_json):
            return call.result_json
    return _NULL


def _is_json(text: str) -> bool:
    try:
        return bool(is_whole(json.loads(text)))
    except (ValueError, RecursionError):
        return False


def _exchanges(state: pb.RuntimeState) -> Iterator[Left]:
    for exchange in state.exchanges:
        if exchange.direction == "out" and not exchange.HasField("ended_ns"):
            yield Left(
                f"an answer to {printable(exchange.method, 20)} {printable(exchange.url, 200)}",
                "it was pending, and a replay has no answer to a recorded request but the recorded one; --fork answers "
                "unrecorded ones only",
                applies=True,
            )
