"""Neighbours of real dumps: valid, to be played, and no further away than they say."""

from __future__ import annotations

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from dumps.errors import InvalidState
from dumps.ledger import weakest
from dumps.schema import state_pb2 as pb
from dumps.strategies.asked import Run
from dumps.strategies.near import CHANGES, near
from dumps.strategies.quirk_places import renumbered
from dumps.strategies.valid import states
from dumps.validate import validate
from replay.engine.failure import FailureKind
from replay.errors import UsageError
from replay.scenario.extract import scenario_of
from replay.scenario.play import play
from tests.incidents import incident, of_engines
from tests.small_dump import small_state

UNSHRUNK = settings(max_examples=2000, phases=[Phase.generate], database=None)
SHRUNK = settings(database=None)
RUNS_OUT = ("kv-exhaust", "kv-overflow")


def unchanged(state: pb.RuntimeState) -> pb.RuntimeState:
    return Run.of(state).state()


def asked(state: pb.RuntimeState) -> list[tuple[object, ...]]:
    """What visits ask for and when, without how long their answers were."""
    return [
        (v.id, v.prompt, v.arrives, v.leaves, v.leave_cause, v.leave_rank, v.leaves_again, v.sampling.seed)
        for v in scenario_of(state).visits
    ]


@pytest.mark.parametrize("name", of_engines())
def test_no_change_asks_for_what_was_asked_for(name):
    state, _ = incident(name)
    same = unchanged(state)
    assert {finding.rule for finding in validate(same)} <= {finding.rule for finding in validate(state)}
    assert asked(same) == asked(state)
    before, after = scenario_of(state), scenario_of(same)
    assert (after.config, after.quirks, after.bytes_per_block) == (before.config, before.quirks, before.bytes_per_block)
    assert weakest(same, "steps").grade == pb.SYNTHESISED


@pytest.mark.parametrize("name", RUNS_OUT)
def test_no_change_fails_alike_without_a_model(name):
    state, _ = incident(name)
    before, after = play(scenario_of(state)), play(scenario_of(unchanged(state)))
    assert after.signature is not None
    assert after.signature == before.signature


@pytest.mark.parametrize("name", of_engines())
def test_neighbours_are_valid_and_can_be_played(name):
    state, _ = incident(name)
    broken = {finding.rule for finding in validate(state)}

    @settings(max_examples=15)
    @given(near(state))
    def check(changed):
        assert {finding.rule for finding in validate(changed)} <= broken
        scenario = scenario_of(changed)
        assert scenario.visits
        assert not any(visit.output for visit in scenario.visits)

    check()


@given(st.data())
def test_neighbours_of_any_valid_dump_are_valid(data):
    state = data.draw(states().filter(lambda state: state.requests))
    try:
        before = scenario_of(state)
    except UsageError:
        with pytest.raises(InvalidState):
            near(state)
        return
    for was, now in zip(before.visits, scenario_of(unchanged(state)).visits, strict=True):
        assert len(now.prompt) == len(was.prompt)
        assert now.prompt == was.prompt or not was.has_prompt_ids
    changed = data.draw(near(state))
    assert validate(changed) == []
    scenario_of(changed)


@settings(max_examples=20)
@given(st.data())
def test_the_dump_itself_stays_as_it_is(data):
    state = small_state()
    data.draw(near(state))
    assert state == small_state()


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_each_change_is_seen_in_what_is_asked_for(change):
    """Raises `NoSuchExample` otherwise."""
    state = small_state()
    before = unchanged(state)

    @st.composite
    def changed(draw):
        run = Run.of(state)
        return change(run, draw), run.state()

    note, after = find(changed(), lambda made: made[0] and made[1] != before, settings=UNSHRUNK)
    assert note
    assert validate(after) == []
    for made in (before, after):
        made.manifest.id = ""
    assert after != before


def test_they_shrink_to_no_change_and_to_one_change():
    state, _ = incident("kv-overflow")
    assert find(near(state), lambda changed: True, settings=SHRUNK) == unchanged(state)
    fewer = find(near(state), lambda changed: len(changed.requests) < len(state.requests), settings=SHRUNK)
    assert len(fewer.requests) == len(state.requests) - 1
    assert fewer.engine == state.engine
    less = settings(SHRUNK, max_examples=500)
    smaller = find(near(state), lambda changed: changed.engine.num_blocks < state.engine.num_blocks, settings=less)
    assert len(smaller.requests) == len(state.requests)
    assert smaller.engine.block_size == state.engine.block_size


def test_a_neighbour_of_a_run_that_ended_well_runs_out_of_blocks():
    state = enough_blocks()
    assert not play(scenario_of(unchanged(state))).failures

    def runs_out(changed):
        failures = play(scenario_of(changed), max_steps=500).failures
        return any(failure.kind is FailureKind.SILENT_TRUNCATION for failure in failures)

    assert find(near(state), runs_out, settings=UNSHRUNK)


def enough_blocks() -> pb.RuntimeState:
    """The small dump with a pool in which both requests end as they want to."""
    state = small_state()
    state.engine.num_blocks = state.kv.num_blocks = 8
    for request in state.requests:
        request.sampling.max_tokens = 4
    state.kv.ClearField("free_blocks")
    return state


def test_a_record_that_begins_in_the_middle_has_what_was_drawn_before_in_its_prompts():
    state = find(states(), begins_with_drawn_tokens, settings=UNSHRUNK)
    same = unchanged(state)
    assert validate(same) == []
    before, after = scenario_of(state), scenario_of(same)
    assert [visit.prompt for visit in after.visits] == [visit.prompt for visit in before.visits]
    assert [visit.arrives for visit in after.visits] == [visit.arrives for visit in before.visits]


def begins_with_drawn_tokens(state: pb.RuntimeState) -> bool:
    running = state.scheduler.start.running
    return state.manifest.record_level == "tokens" and any(one.num_output_tokens for one in running)


def test_lengths_alone_get_ids_where_prefixes_could_be_shared():
    state = find(
        states(prefix_cache=True),
        lambda state: state.manifest.record_level == "shape" and len(state.requests) > 1,
        settings=UNSHRUNK,
    )
    same = unchanged(state)
    assert validate(same) == []
    assert all(visit.has_prompt_ids for visit in scenario_of(same).visits)
    assert weakest(same, "requests[0].prompt_token_ids").grade == pb.SYNTHESISED


def test_a_dump_with_nothing_to_change_is_refused():
    state = pb.RuntimeState()
    state.tool_calls.add(id="t", status="pending")
    with pytest.raises(InvalidState, match="no neighbours"):
        near(state)
    late = small_state()
    del late.steps[:]
    with pytest.raises(InvalidState, match="known arrival"):
        near(late)


def test_a_quirk_follows_its_request_and_goes_with_it():
    state, _ = incident("nan-block")
    [quirk] = state.quirks
    assert quirk.detail.startswith("request=1,")
    ids = [request.id for request in state.requests]
    later = unchanged(state)
    del later.requests[0]
    renumbered(later, ids)
    assert [quirk.detail for quirk in later.quirks] == [quirk.detail.replace("request=1", "request=0")]
    gone = unchanged(state)
    del gone.requests[1]
    renumbered(gone, ids)
    assert not gone.quirks
