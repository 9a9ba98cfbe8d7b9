"""Valid dumps are valid, and varied enough to be worth something."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import Phase, find, given, settings

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
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


@given(dumps())
def test_what_is_written_is_read(tmp_path_factory, made):
    state, sections = made
    path = tmp_path_factory.mktemp("valid") / "one.pplx"
    write_dump(path, state, sections)
    with open_dump(path) as dump:
        assert dump.state == state
        assert [dump.read_section(section.kind) for section in sections] == [bytes(one.data) for one in sections]


CACHED = ("hit", "copied", "known at the start", "evicted")


@pytest.mark.parametrize(
    "feature",
    [
        *("truncate", "preempt-self", "preempt-other", "keyframe", "died", "aborted", "eos", "max-tokens", "chunked"),
        *CACHED,
        *("early-exit", "traced"),
        *("threads", "awaited", "exception chain", "tool call of a request", "exchange", "context stack"),
    ],
)
def test_they_cover_what_a_dump_can_hold(feature):
    """Raises `NoSuchExample` otherwise. Not shrunk: that it exists is enough."""
    only_look = settings(max_examples=5000, phases=[Phase.generate], database=None)
    drawn = states(prefix_cache=True if feature in CACHED else None)
    assert feature in features(find(drawn, lambda state: feature in features(state), settings=only_look))


def test_they_shrink_to_nothing():
    state = find(states(), lambda state: True, settings=settings(database=None))
    assert (len(state.requests), len(state.steps), len(state.threads), len(state.tool_calls)) == (0, 0, 0, 0)


@pytest.mark.long
def test_a_run_shrinks_to_one_request_and_one_step():
    ran = find(states(prefix_cache=False), lambda state: state.kv.tables, settings=settings(database=None))
    assert (len(ran.requests), len(ran.steps)) == (1, 1)
    assert ran.requests[0].num_prompt_tokens == 1


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
    found |= surroundings(state)
    if state.trace_events:
        found.add("traced")
    if any(step.aborted for step in state.steps):
        found.add("aborted")
    if any(not chunk.sampled and chunk.num_tokens > 1 for step in state.steps[:-1] for chunk in step.scheduled):
        found.add("chunked")
    return found


def surroundings(state: pb.RuntimeState) -> set[str]:
    found = {
        "threads": len(state.threads) > 1,
        "awaited": any(thread.awaited_by for thread in state.threads),
        "exception chain": any(raised.link for raised in state.exceptions),
        "tool call of a request": any(call.HasField("request") for call in state.tool_calls),
        "exchange": state.exchanges,
        "context stack": state.context_stack,
    }
    return {name for name, there in found.items() if there}
