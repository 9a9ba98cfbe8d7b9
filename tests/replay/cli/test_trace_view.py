"""Trace events and decisions of early exit as people see them."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from dumps.schema import state_pb2 as pb
from dumps.schema.writer import write_dump
from dumps.trace import FallbackEvent, add_fallback
from replay.cli.groups import state as pplx_state
from replay.cli.trace_view import MOST_EVENTS, describe_trace
from tests.small_dump import small_state


def traced(*confidences: float, threshold: float | None = 0.8, reason: str = "below-threshold") -> pb.RuntimeState:
    state = small_state()
    if threshold is not None:
        state.requests[0].flags.early_exit = threshold
    for number, confidence in enumerate(confidences):
        event = FallbackEvent(
            request=0,
            step=0,
            position=3 + number,
            reason=reason,
            confidence=confidence,
            token=5,
            candidates=((5, confidence), (2, 0.0625)),
        )
        add_fallback(state, event, correlation_id=1)
    return state


def printed(tmp_path: Path, state: pb.RuntimeState, *options: str) -> str:
    path = tmp_path / "a.pplx"
    write_dump(path, state)
    result = CliRunner().invoke(pplx_state, ["dump", str(path), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_decision_says_what_was_drawn_and_why_it_did_not_end_the_answer(tmp_path):
    text = printed(tmp_path, traced(0.41))
    section = text.split("\nTrace\n")[1].split("\n\n")[0]
    assert section.splitlines() == [
        "  1 fallback",
        "  answers went on: 1 below-threshold",
        "  step 0, request 0: token 5 at position 3: confidence 0.41 below 0.8; of 5 0.41, 2 0.0625",
    ]


def test_other_reasons_stand_by_their_name():
    assert describe_trace(traced(0.9, reason="min-tokens"))[2].endswith(
        "confidence 0.9, min-tokens; of 5 0.9, 2 0.0625"
    )
    lines = describe_trace(traced(0.9, threshold=None, reason="no-threshold"))
    assert "confidence 0.9, no-threshold" in lines[2]


def test_a_confidence_just_below_is_not_rounded_up_to_its_threshold():
    assert "confidence 0.79999999 below 0.8" in describe_trace(traced(0.79999999))[2]


def test_the_first_few_are_shown_and_the_rest_is_counted(tmp_path):
    lines = describe_trace(traced(*[0.5] * (MOST_EVENTS + 3)))
    assert len(lines) == 2 + MOST_EVENTS + 1
    assert lines[-1] == f"... and 3 more: --field trace_events[{MOST_EVENTS}]"
    assert len(describe_trace(traced(*[0.5] * MOST_EVENTS))) == 2 + MOST_EVENTS


def test_one_event_by_its_path(tmp_path):
    event = json.loads(printed(tmp_path, traced(0.41, 0.5), "--field", "trace_events[1]"))
    assert event["name"] == "fallback"
    assert {"key": "confidence", "value": "0.5"} in event["args"]


def test_no_events_no_section(tmp_path):
    assert "Trace" not in printed(tmp_path, small_state())


def test_events_of_any_content_are_escaped_and_never_raise():
    state = small_state()
    event = state.trace_events.add(name="\x1b[31mred", phase="i", request=99)
    event.args.add(key="a\x1b", value="b" * 10_000)
    spoiled = state.trace_events.add(name="fallback", step=1, request=99)
    spoiled.args.add(key="reason", value="\x1b[0m")
    state.trace_events.add()
    lines = describe_trace(state)
    assert not any("\x1b" in line for line in lines)
    assert all(len(line) < 400 for line in lines)
    assert any("not readable" in line for line in lines)
