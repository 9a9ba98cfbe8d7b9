"""Rows of a report that only a replayed program has: what it asked of its world, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

MOST_FRAMES = 2  # of the context stack: the innermost say most, and the JSON report has them all

ENDED = {
    "returned": "it came to its end",
    "exited": "it left by sys.exit or os._exit",
    "interrupted": "it was told to end",
    "raised": "it raised an exception",
    "stalled": "it can make no progress any more",
    "stopped": "it was stopped: it wanted what this replay does not give",
}

LIVED_ON = "it lived past the end of the record, where nothing answers any more"


def lived_on(report: Mapping[str, Any]) -> bool:
    """Whether the program came to the end of the record and went on."""
    beyond = any(item["code"] == "beyond-the-record" for item in report["findings"])
    return beyond and report["reason_code"] != "beyond-the-record"


def world_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and values, as `replay.cli.report_view` prints them."""
    world = report.get("world")
    if not world:
        yield "replayed", "nothing: the replay could not begin"
        return
    exchanges, tools = world["exchanges"], world["tool_calls"]
    ended = ENDED.get(world["ended"], world["ended"])
    if world["ended"] in ("stopped", "stalled") and lived_on(report):
        ended = LIVED_ON  # the findings say what it asked for there
    yield "program", f"{report['target'].removeprefix('app=')}: {ended}"
    if failure := report["failure"]:
        if failure.get("message"):
            yield "message", f'"{failure["message"]}"'
        if failure.get("frame"):
            yield "raised in", str(failure["frame"])
        yield from (("waited for", _overdue(one)) for one in report["overdue"])
        yield from (("in the middle of", _frame(one)) for one in report["context"][:MOST_FRAMES])
    asked = f"{exchanges['asked']} of {exchanges['recorded']} recorded requests asked"
    if requests := world["unrecorded_requests"]:
        asked += f", {requests} asked that nobody recorded"
    if others := world["unrecorded"] - world["unrecorded_requests"]:
        asked += f"; {others} file call{'s' * (others != 1)} that nobody recorded"
    yield (
        "world",
        f"{asked}; {tools['begun']} of {tools['recorded']} tool calls; {world['model_answers']} model answers computed",
    )
    if report["mode"] == "fork":
        yield "fork", "handlers answered what was not recorded: this is another run than the recorded one"


def _overdue(call: Mapping[str, Any]) -> str:
    """A call that a deadline ended: for what it waited, how long, and where."""
    text = f"tool call {call['call']} ({call['tool']}), for {call['waited_s']:.3g} s"
    if call["deadline_s"] is not None:
        text += f", deadline {call['deadline_s']:g} s"
    if call["requests"]:
        text += f"; no answer to {', '.join(call['requests'])}"
    stack = " < ".join(f"{frame['frame']} line {frame['line']}" for frame in call["stack"])
    return text + (f"; in {stack}" if stack else "")


def _frame(frame: Mapping[str, Any]) -> str:
    """What the program said that it was doing: kind and payload."""
    payload = json.dumps(frame["payload"], ensure_ascii=False) if frame["payload"] else ""
    return f"{frame['kind']} {payload}".strip()


def world_time(timings: Mapping[str, float], *, answers: int) -> str:
    """The program's own time, the model's, which gave so many ``answers``, and what passed on the program's clock."""
    model = "of it model" if answers else "of it looking for the model"
    names = (("load_s", "load"), ("step_s", "program"), ("model_s", model), ("total_s", "total"))
    parts = [f"{text} {timings[name]:.2f} s" for name, text in names if timings.get(name)]
    if timings.get("virtual_s"):
        parts.append(f"{timings['virtual_s']:.2f} s on the program's clock")
    return ", ".join(parts)
