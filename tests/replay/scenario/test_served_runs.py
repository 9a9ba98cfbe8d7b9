"""Whatever fails on a server fails in a play of its dump's scenario as well, and in the replay of that play's dump."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, example, given, note, settings
from hypothesis import strategies as st

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.validate import validate
from replay.engine.quirks import KINDS
from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from replay.errors import UsageError
from replay.scenario.extract import scenario_of
from replay.scenario.play import Ended, play
from replay.scenario.record import record
from replay.signature import Signature
from replay.targets.job import run_job
from tests.plays import Visit
from tests.plays import play as serve
from tests.replay.targets.test_differential import loads
from tests.replay.targets.test_quirks_replayed import SCENES, SMALL

EXAMPLES = min(settings().max_examples // 5, 200)
PHASES = tuple(Phase) if EXAMPLES > 20 else (Phase.explicit, Phase.reuse, Phase.generate)


def state_of(path: Path) -> pb.RuntimeState:
    with open_dump(path) as dump:
        dump.verify()
        return dump.state


def replay(dump: Path, model: Path | None) -> dict[str, Any]:
    target = {"model": str(model)} if model else {"target": "schedule"}
    return run_job({"dump": str(dump), **target}, lambda event: None)


@pytest.mark.parametrize("text", [text for text in SCENES if not KINDS[text.partition(":")[0]].at_the_door])
def test_a_quirk_fails_in_a_play_as_on_the_server(tiny, player, tmp_path, text):
    people, options = SCENES[text]
    state = state_of(serve(tiny, tmp_path / "served", people, quirks=(text,), **SMALL | options).dumps[0])
    own = Signature.recorded(state.failures[-1], state)
    scenario = scenario_of(state)
    for computing in (None, player):
        played = play(scenario, computing, wanted=own.identity)
        if computing is None and KINDS[text.partition(":")[0]].needs_model:
            assert (played.failures, played.ended) == ((), Ended.DONE)
            continue
        assert played.signature == own
        path = tmp_path / f"{computing is None}.pplx"
        record(scenario, path, state, computing, wanted=own.identity)
        # An engine with such a defect contradicts itself; its play contradicts itself no otherwise.
        assert [finding.rule for finding in validate(state_of(path))] == [finding.rule for finding in validate(state)]
        report = replay(path, tiny if computing else None)
        assert (report["verdict"], report["signature"]) == ("reproduced", own.to_json())
        assert report["mode"] == ("strict" if computing else "schedule")


greedy = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
CROWD = [Visit(prompt=(n,) * 9, sampling=greedy, arrives=n) for n in range(4)]
POOL = {"block_size": 4, "kv_blocks": 16, "max_model_len": 60, "ring_bytes": 2**21, "checks": True}


@settings(max_examples=EXAMPLES, phases=PHASES)
@given(load=loads(), with_model=st.booleans())
@example(load=(CROWD, {**POOL, "on_kv_exhausted": OnExhausted.RAISE}), with_model=True)
@example(load=(CROWD, {**POOL, "on_kv_exhausted": OnExhausted.TRUNCATE}), with_model=False)
@example(load=(CROWD, {**POOL, "kv_blocks": 9, "on_kv_exhausted": OnExhausted.PREEMPT}), with_model=True)
def test_a_load_fails_in_a_play_as_on_the_server(tiny, player, load, with_model):
    people, options = load
    with tempfile.TemporaryDirectory() as folder:
        played = serve(tiny, Path(folder), people, **options)
        for place, dump in enumerate([*played.dumps[-1:], played.demand]):
            state = state_of(dump)
            note(f"{state.manifest.reason}: {len(state.steps)} steps from {[s.index for s in state.steps[:1]]}")
            if not _whole(state):
                continue
            scenario = scenario_of(state)
            computing = player if with_model else None
            recorded = [Signature.recorded(failure, state) for failure in state.failures]
            again = play(scenario, computing).failures[: len(recorded)]  # it goes on where the dump was written
            assert [Signature.of(failure) for failure in again] == recorded
            if not state.failures:
                continue
            identity = recorded[-1].identity
            assert play(scenario, computing, wanted=identity).ended is Ended.WANTED
            path = Path(folder) / f"again-{place}.pplx"
            made = record(scenario, path, state, computing, wanted=identity)
            assert validate(state_of(path)) == []
            assert made.played.ended is Ended.WANTED
            report = replay(path, tiny if with_model else None)
            assert (report["verdict"], report["divergence"]) == ("reproduced", None)


def _whole(state: pb.RuntimeState) -> bool:
    """Whether the record goes back to the first step, with all requests and their token ids, and to the dump's own
    moment."""
    absent = {entry.path for entry in state.ledger if entry.grade == pb.ABSENT}
    lost = {"steps", "requests[].sampling", "requests[].prompt_token_ids", "requests[].output_token_ids"} & absent
    if state.scheduler.HasField("start") or lost or not state.steps:
        return False
    return not any(entry.path == "scheduler.next_step" for entry in state.ledger) and state.steps[0].index == 0


@settings(max_examples=max(EXAMPLES // 2, 1), phases=PHASES)
@given(load=loads())
def test_a_wrapped_record_gives_a_scenario_that_plays_or_says_why_not(tiny, player, load):
    people, options = load
    with tempfile.TemporaryDirectory() as folder:
        played = serve(tiny, Path(folder), people, **{**options, "ring_bytes": 3072})
        for dump in [*played.dumps[-1:], played.demand]:
            state = state_of(dump)
            lost = not state.requests or any(request.num_output_tokens for request in state.requests)
            if lost and not (state.steps or state.scheduler.HasField("start")):
                with pytest.raises(UsageError, match="steps that led to its failure were not kept"):
                    scenario_of(state)
                continue
            scenario = scenario_of(state)
            assert play(scenario).ended in (Ended.DONE, Ended.EXCEPTION)
            if all(visit.has_prompt_ids for visit in scenario.visits):
                assert play(scenario, player) == play(scenario, player)
