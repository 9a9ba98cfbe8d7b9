"""The scenario of a served run: whoever came and left, and nothing of what the engine made of it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from replay.engine.request import FinishCause, SamplingParams
from replay.engine.schedule import OnExhausted
from replay.errors import UsageError
from replay.scenario.extract import scenario_of
from replay.scenario.play import Ended, play
from replay.scenario.record import record
from replay.scenario.scenario import UNKNOWN_TOKEN, Scenario
from replay.signature import Signature
from tests.plays import Play, Visit
from tests.plays import play as serve

SMALL: dict[str, Any] = {
    "block_size": 4,
    "kv_blocks": 12,
    "max_num_batched_tokens": 16,
    "max_num_seqs": 4,
    "max_model_len": 60,
}


def visit(length: int, seed: int = 0, *, limit: int = 12, **times: Any) -> Visit:
    prompt = tuple((seed * 101 + place * (37 + seed)) % 320 for place in range(length))
    return Visit(prompt=prompt, sampling=SamplingParams(temperature=0, max_tokens=limit, ignore_eos=True), **times)


def state_of(path: Path) -> pb.RuntimeState:
    with open_dump(path) as dump:
        return dump.state


@pytest.fixture(scope="module")
def served(tiny, player, tmp_path_factory) -> Play:
    """Five people, one of whom leaves, and a pool that is too small for them."""
    people = [visit(9), visit(7, 1, limit=40, arrives=2), visit(5, 2, limit=40, arrives=2, leaves=6)]
    people += [visit(20, 3, limit=30, arrives=4), visit(3, 4, limit=3, arrives=25)]
    folder = tmp_path_factory.mktemp("served")
    return serve(tiny, folder, people, on_kv_exhausted=OnExhausted.TRUNCATE, checks=True, **SMALL)


def test_visits_have_what_was_served(served):
    state = state_of(served.demand)
    scenario = scenario_of(state)
    assert [(v.id, len(v.prompt), v.arrives, v.leaves, v.leave_cause) for v in scenario.visits] == [
        ("r0", 9, 0, None, FinishCause.CLIENT_GONE),
        ("r1", 7, 2, None, FinishCause.CLIENT_GONE),
        ("r2", 5, 2, 6, FinishCause.CLIENT_GONE),
        ("r3", 20, 4, None, FinishCause.CLIENT_GONE),
        ("r4", 3, 25, None, FinishCause.CLIENT_GONE),
    ]
    assert [len(v.output) for v in scenario.visits] == [r.num_output_tokens for r in state.requests]
    assert all(v.has_prompt_ids and v.has_output_ids and v.ends is None for v in scenario.visits)
    assert scenario.visits[1].sampling == visit(7, limit=40).sampling
    assert (scenario.checks, scenario.vocab_size, scenario.eos_token_ids) == (True, 320, (2,))
    assert scenario.bytes_per_block == state.kv.max_bytes // state.kv.num_blocks
    assert scenario.notes == ()
    assert Scenario.from_json(scenario.to_json()) == scenario


def test_the_same_run_recorded_without_token_ids_plays_alike(served, tiny, player, tmp_path):
    people = [visit(9), visit(7, 1, limit=40, arrives=2), visit(5, 2, limit=40, arrives=2, leaves=6)]
    people += [visit(20, 3, limit=30, arrives=4), visit(3, 4, limit=3, arrives=25)]
    shape = serve(tiny, tmp_path, people, on_kv_exhausted=OnExhausted.TRUNCATE, checks=True, record="shape", **SMALL)
    scenario = scenario_of(state_of(shape.demand))
    assert all(set(v.prompt) | set(v.output) == {UNKNOWN_TOKEN} for v in scenario.visits)
    blind, seeing = play(scenario), play(scenario_of(state_of(served.demand)))
    assert blind.failures == seeing.failures != ()
    assert [len(one.output) for one in blind.answers] == [len(one.output) for one in seeing.answers]
    with pytest.raises(UsageError, match="token ids of r0 are not in the dump"):
        play(scenario, player)


def test_equal_prefixes_are_found_again_without_token_ids(tiny, player, tmp_path):
    """The second has a whole prompt cached and copies a block; the last goes on where the first had answered."""
    people = [visit(9, limit=40), visit(8, limit=40, arrives=4), visit(14, 5, limit=40, arrives=5)]
    options = {"prefix_cache": True, "on_kv_exhausted": OnExhausted.RAISE, **SMALL, "kv_blocks": 18}
    first = state_of(serve(tiny, tmp_path / "first", people, **options).dumps[0])
    answered = scenario_of(first).visits[0]
    people.append(Visit(prompt=answered.prompt + answered.output[:8], sampling=people[0].sampling, arrives=11))
    hits = {}
    for level in ("tokens", "shape"):
        state = state_of(serve(tiny, tmp_path / level, people, record=level, **options).dumps[0])
        hits[level] = [hit.num_tokens for step in state.steps for hit in step.prefix_hits]
        scenario = scenario_of(state)
        own = Signature.recorded(state.failures[-1], state)
        again = record(scenario, tmp_path / f"{level}.pplx", state, wanted=own.identity)
        assert again.played.signature == own
        taken = [(hit.num_tokens, hit.HasField("copied_from")) for step in state.steps for hit in step.prefix_hits]
        assert [(h.num_tokens, h.HasField("copied_from")) for s in again.state.steps for h in s.prefix_hits] == taken
        assert [copied for _, copied in taken].count(True) == 1
        assert len(taken) > 1
        if level == "shape":
            assert min(scenario.visits[0].prompt) < UNKNOWN_TOKEN
            assert scenario.visits[1].prompt[:4] == scenario.visits[0].prompt[:4]
    assert hits["tokens"] == hits["shape"] != []


def test_prompts_on_record_stay_where_their_answers_are_lost(tiny, player, tmp_path):
    """A later prompt goes on where the first request had answered, and so tells what that answer was."""
    people = [visit(9, limit=40), visit(8, limit=40, arrives=4), visit(14, 5, limit=40, arrives=5)]
    options = {"prefix_cache": True, "on_kv_exhausted": OnExhausted.RAISE, **SMALL, "kv_blocks": 18}
    first = scenario_of(state_of(serve(tiny, tmp_path / "first", people, **options).dumps[0])).visits[0]
    people.append(Visit(prompt=first.prompt + first.output[:8], sampling=people[0].sampling, arrives=11))
    state = state_of(serve(tiny, tmp_path / "whole", people, **options).dumps[0])
    seen = scenario_of(state)
    for request in state.requests:
        request.ClearField("output_token_ids")
    for step in state.steps:
        for chunk in step.scheduled:
            chunk.ClearField("sampled_token")
    scenario = scenario_of(state)
    assert [one.prompt for one in scenario.visits] == [one.prompt for one in seen.visits]
    hit = max(hit.num_tokens for step in state.steps for hit in step.prefix_hits)
    known = hit - len(first.prompt)
    assert known > 0
    assert scenario.visits[0].output[:known] == first.output[:known]
    own = Signature.recorded(state.failures[-1], state)
    again = record(scenario, tmp_path / "again.pplx", state, wanted=own.identity)
    assert again.played.signature == own
    assert [one.HasField("prompt_token_ids") for one in again.state.requests] == [True] * len(people)


def test_a_record_that_begins_in_the_middle_has_the_running_requests_at_step_0(tiny, player, tmp_path):
    long: dict[str, Any] = {
        "block_size": 4,
        "kv_blocks": 40,
        "max_model_len": 120,
        "on_kv_exhausted": OnExhausted.RAISE,
    }
    people = [visit(9, n, limit=100, arrives=n) for n in range(3)] + [visit(6, 9, limit=90, arrives=30)]
    played = serve(tiny, tmp_path, people, ring_bytes=3072, **long)
    state = state_of(played.dumps[0])
    start = state.scheduler.start
    assert start.before_step > 3
    scenario = scenario_of(state)
    drawn = {state.requests[one.request].id: one.num_output_tokens for one in start.running}
    assert drawn["r0"] > 0
    for one in scenario.visits:
        served = state.requests[[r.id for r in state.requests].index(one.id)]
        before = drawn.get(one.id, 0)
        assert one.arrives == (0 if one.id in drawn else served.arrival_step - start.before_step)
        assert len(one.prompt) == served.num_prompt_tokens + before
        assert len(one.output) == served.num_output_tokens - before
        assert one.sampling.max_tokens == served.sampling.max_tokens - before
    assert "begins at step" in scenario.notes[0]
    own = Signature.recorded(state.failures[-1], state)
    for computing in (None, player):
        again = play(scenario, computing, wanted=own.identity)
        assert again.ended is Ended.WANTED
        step = again.failures[-1].step
        assert step is not None
        assert abs(step + start.before_step - state.failures[-1].step) <= 2


def test_damage_in_a_record_that_begins_in_the_middle_is_aimed_at_the_request_that_failed(tiny, player, tmp_path):
    people = [visit(5, 7, limit=2)] + [visit(9, n, limit=100, arrives=n) for n in range(3)]
    options: dict[str, Any] = {"block_size": 4, "kv_blocks": 90, "max_model_len": 120, "ring_bytes": 3072}
    quirk = "kv-bit-flip:request=3,layer=1,position=4,after_step=60"
    state = state_of(serve(tiny, tmp_path, people, quirks=(quirk,), **options).dumps[0])
    first = state.scheduler.start.before_step
    assert first > 3
    scenario = scenario_of(state)
    assert scenario.quirks[0].parameters["after_step"] == 60 - first
    assert scenario.visits[scenario.quirks[0].parameters["request"]].id == "r3"
    assert [visit.id for visit in scenario.visits] == ["r1", "r2", "r3"]
    own = Signature.recorded(state.failures[-1], state)
    again = play(scenario, player, wanted=own.identity).signature
    assert again is not None
    assert again.location.request_id == "r3"


def test_a_stall_before_the_first_step_has_its_request(tiny, player, tmp_path):
    """Its record has no steps."""
    played = serve(tiny, tmp_path, [visit(30), visit(3, arrives=1)], **{**SMALL, "kv_blocks": 4})
    state = state_of(played.dumps[0])
    assert (state.failures[-1].kind, len(state.steps)) == ("stall", 0)
    scenario = scenario_of(state)
    assert [(v.id, len(v.prompt), v.arrives) for v in scenario.visits] == [("r0", 30, 0)]
    assert play(scenario).signature == Signature.recorded(state.failures[-1], state)


def test_who_left_because_the_engine_failed_has_not_left(tiny, player, tmp_path):
    played = serve(tiny, tmp_path, [visit(30), visit(3, arrives=1)], **{**SMALL, "kv_blocks": 4})
    scenario = scenario_of(state_of(played.demand))
    assert [v.leaves for v in scenario.visits] == [None, None]
    assert [failure.kind.value for failure in play(scenario).failures] == ["stall"]


def test_a_deadline_is_taken_from_the_failure_that_it_was(served):
    """The dump of a deadline is written before its request is ended."""
    state = copy.deepcopy(state_of(served.dumps[0]))
    running = next(r for r in state.requests if r.status == "running")
    place = [r.id for r in state.requests].index(running.id)
    state.failures.add(
        kind="timeout",
        invariant="request-timeout",
        message=f"request ran past its deadline after {running.num_output_tokens} tokens",
        request=place,
        step=state.steps[-1].index,
        position=running.num_prompt_tokens + running.num_output_tokens,
    )
    scenario = scenario_of(state)
    late = scenario.visit(running.id)
    assert (late.leaves, late.leave_cause) == (state.steps[-1].index + 1, FinishCause.TIMEOUT)
    own = Signature.recorded(state.failures[-1], state)
    assert play(scenario, wanted=own.identity).signature == own


def test_a_quirk_that_is_not_known_is_left_out_with_a_note(served):
    state = copy.deepcopy(state_of(served.demand))
    state.quirks.add(name="from-the-future", detail="power=9")
    scenario = scenario_of(state)
    assert scenario.quirks == ()
    assert scenario.notes == ("quirk from-the-future:power=9 is not known here and left out",)


def test_the_dump_of_a_program_is_refused():
    state = pb.RuntimeState(program=pb.Program(entry="app:main"))
    state.manifest.id = "0" * 16
    with pytest.raises(UsageError, match="that of a program") as error:
        scenario_of(state)
    assert error.value.remedy


def test_a_record_whose_steps_are_lost_is_refused(served):
    state = copy.deepcopy(state_of(served.demand))
    del state.steps[:]
    state.scheduler.Clear()
    with pytest.raises(UsageError, match="no requests whose arrival is known"):
        scenario_of(state)
