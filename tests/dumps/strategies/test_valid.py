"""Valid dumps are valid, and varied enough to be worth something."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import Phase, find, given, settings

from dumps.schema import state_pb2 as pb
from dumps.strategies.valid import dumps, states
from dumps.validate import validate


@settings(max_examples=150)
@given(states())
def test_no_rule_is_broken(state):
    assert validate(state) == []


@given(dumps())
def test_sections_go_with_the_state(made):
    state, sections = made
    kinds = Counter(section.kind for section in sections)
    assert set(kinds.values()) <= {1}
    assert bool(kinds["kv-contents"]) == bool(state.kv.contents_blocks)


@pytest.mark.parametrize(
    "feature",
    [
        *("truncate", "preempt-self", "preempt-other", "keyframe", "died", "aborted", "eos", "max-tokens", "chunked"),
        *("hit", "copied", "known at the start", "evicted"),
        *("early-exit", "traced"),
    ],
)
def test_they_cover_what_a_schedule_can_hold(feature):
    """Raises `NoSuchExample` otherwise. Not shrunk: that it exists is enough."""
    only_look = settings(max_examples=5000, phases=[Phase.generate], database=None)
    assert feature in features(find(states(), lambda state: feature in features(state), settings=only_look))


def features(state: pb.RuntimeState) -> set[str]:
    found = {event.outcome for step in state.steps for event in step.exhausted}
    found |= {request.finish_cause for request in state.requests}
    if state.scheduler.HasField("start"):
        found.add("keyframe")
    if state.steps and not state.steps[-1].completed:
        found.add("died")
    hits = [hit for step in state.steps for hit in step.prefix_hits]
    if hits:
        found.add("hit")
    if any(hit.HasField("copied_from") for hit in hits):
        found.add("copied")
    start = {entry.hash for entry in state.scheduler.start.prefix_hashes}
    if start:
        found.add("known at the start")
    if start - {entry.hash for entry in state.kv.prefix_hashes}:
        found.add("evicted")
    if state.trace_events:
        found.add("traced")
    if any(step.aborted for step in state.steps):
        found.add("aborted")
    if any(not chunk.sampled and chunk.num_tokens > 1 for step in state.steps[:-1] for chunk in step.scheduled):
        found.add("chunked")
    return found
