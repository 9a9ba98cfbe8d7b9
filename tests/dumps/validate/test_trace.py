"""Trace events that contradict the rest of a dump are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dumps.schema import state_pb2 as pb
from dumps.trace import FallbackEvent, add_fallback
from dumps.validate import validate
from tests.small_dump import small_state


def traced(**changes) -> pb.RuntimeState:
    """The small dump with a decision at its first drawn token."""
    state = small_state()
    step, chunk = next((s, c) for s in state.steps for c in s.scheduled if c.sampled)
    facts: dict[str, Any] = {
        "request": chunk.request,
        "step": step.index,
        "position": chunk.start + chunk.num_tokens,
        "reason": "below-threshold",
        "confidence": 0.5,
        "token": chunk.sampled_token,
        "candidates": ((chunk.sampled_token, 0.5), (2, 0.25)),
    }
    add_fallback(state, FallbackEvent(**(facts | changes)), correlation_id=1)
    return state


def found(state: pb.RuntimeState) -> list[tuple[str, str]]:
    return [(one.rule, one.path) for one in validate(state) if one.rule.startswith("trace.")]


def test_a_decision_that_its_step_could_take_is_valid():
    assert validate(traced()) == []


@pytest.mark.parametrize(
    ("changes", "rule", "path"),
    [
        ({"request": 9}, "trace.request-index", "trace_events[0].request"),
        ({"step": 99}, "trace.fallback", "trace_events[0].step"),
        ({"position": 9}, "trace.fallback", "trace_events[0]"),
        ({"token": 9}, "trace.fallback", "trace_events[0]"),
        ({"candidates": ((10, 0.5),)}, "trace.fallback", "trace_events[0].args"),
    ],
)
def test_one_defect(changes, rule, path):
    assert found(traced(**changes)) == [(rule, path)]


def test_an_event_that_cannot_be_read_is_named():
    state = traced()
    state.trace_events[0].args[0].value = "four"
    assert found(state) == [("trace.fallback", "trace_events[0]")]


def test_level_shape_has_no_token_ids_in_its_trace():
    state = traced()
    state.manifest.record_level = "shape"
    assert ("trace.level", "trace_events[0].args") in found(state)


def test_other_events_are_left_alone():
    state = small_state()
    state.trace_events.add(name="kernel", phase="X", request=0)
    assert found(state) == []
    state.trace_events[0].request = 5
    assert found(state) == [("trace.request-index", "trace_events[0].request")]


ALTERED: list[tuple[Callable[[pb.RuntimeState], None], bool]] = [
    (lambda s: setattr(s.requests[0].flags, "early_exit", 0.5), True),
    (lambda s: setattr(s.requests[0].flags, "early_exit", 1.0), True),
    (lambda s: setattr(s.requests[0].flags, "early_exit", 0.0), False),
    (lambda s: setattr(s.requests[0].flags, "early_exit", 1.5), False),
    (lambda s: setattr(s.requests[0].flags, "early_exit", float("nan")), False),
]


@pytest.mark.parametrize(("alter", "valid"), ALTERED)
def test_a_threshold_lies_above_zero_and_at_most_at_one(alter, valid):
    state = small_state()
    alter(state)
    expected = [] if valid else [("requests.sampling", "requests[0].flags.early_exit")]
    assert [(one.rule, one.path) for one in validate(state)] == expected
