"""The dump of a play: sound, the same each time, and honest about what nobody knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dumps.errors import DumpError
from dumps.ledger import weakest
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.validate import validate
from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from replay.errors import UsageError
from replay.scenario import record as module
from replay.scenario.change import without
from replay.scenario.extract import scenario_of
from replay.scenario.play import play
from replay.scenario.record import record
from replay.scenario.scenario import Scenario
from replay.signature import Identity, Signature
from replay.targets.job import run_job
from tests.plays import Visit
from tests.plays import play as serve

OPTIONS: dict[str, Any] = {
    "block_size": 4,
    "kv_blocks": 14,
    "max_model_len": 60,
    "on_kv_exhausted": OnExhausted.RAISE,
    "checks": True,
}


def visit(length: int, seed: int = 0, *, limit: int = 40, **times: Any) -> Visit:
    prompt = tuple((seed * 101 + place * (37 + seed)) % 320 for place in range(length))
    return Visit(prompt=prompt, sampling=SamplingParams(temperature=0, max_tokens=limit, ignore_eos=True), **times)


PEOPLE = [visit(9), visit(7, 1, arrives=2), visit(5, 2, arrives=2, leaves=6), visit(11, 3, arrives=4)]


def state_of(path: Path) -> pb.RuntimeState:
    with open_dump(path) as dump:
        dump.verify()
        return dump.state


@pytest.fixture(scope="module")
def served(tiny, player, tmp_path_factory) -> pb.RuntimeState:
    return state_of(serve(tiny, tmp_path_factory.mktemp("served"), PEOPLE, **OPTIONS).dumps[0])


@pytest.fixture(scope="module")
def scenario(served) -> Scenario:
    return scenario_of(served)


@pytest.fixture(scope="module")
def wanted(served) -> Identity:
    return Signature.recorded(served.failures[-1], served).identity


def test_a_recorded_play_of_a_whole_run_has_its_steps(served, scenario, wanted, player, tmp_path):
    state = record(scenario, tmp_path / "again.pplx", served, player, wanted=wanted).state
    assert validate(state) == []

    def steps(of: pb.RuntimeState) -> list[pb.Step]:
        found = []
        for step in of.steps:
            found.append(pb.Step())
            found[-1].CopyFrom(step)
            found[-1].start_ns = 0
        return found

    assert steps(state) == steps(served)
    assert [r.output_token_ids for r in state.requests] == [r.output_token_ids for r in served.requests]
    assert (state.engine, state.model) == (served.engine, served.model)
    assert state.manifest.platform_fingerprint == served.manifest.platform_fingerprint
    assert (state.kv.used_bytes, state.kv.max_bytes) == (served.kv.used_bytes, served.kv.max_bytes)
    assert state.kv.block_history == served.kv.block_history
    assert state.manifest.reason == "exception"
    assert (len(state.threads), len(state.exceptions)) == (0, 0)
    assert weakest(state, "threads").grade == pb.ABSENT
    assert weakest(state, "steps[0].start_ns").grade == pb.SYNTHESISED


@pytest.mark.parametrize("computed", [False, True])
def test_recording_twice_gives_the_same_bytes(served, scenario, wanted, player, tmp_path, computed):
    paths = [tmp_path / "one.pplx", tmp_path / "other.pplx"]
    for path in paths:
        record(scenario, path, served, player if computed else None, wanted=wanted)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_other_plays_have_other_ids(served, scenario, wanted, player, tmp_path):
    made = [
        record(scenario, tmp_path / "a.pplx", served, wanted=wanted),
        record(scenario, tmp_path / "b.pplx", served, player, wanted=wanted),
        record(scenario, tmp_path / "c.pplx", served),
        record(without(scenario, ["r2"]), tmp_path / "d.pplx", served, wanted=wanted),
    ]
    assert len({one.state.manifest.id for one in made} | {served.manifest.id}) == 5


def test_answers_that_outlive_their_record_have_no_ids_in_a_dump_without_a_model(
    served, scenario, wanted, player, tiny, tmp_path
):
    """Without one of them the others go on until the pool is full again."""
    fewer = without(scenario, ["r3"])
    path = tmp_path / "guessed.pplx"
    made = record(fewer, path, served, wanted=wanted)
    assert made.played.guessed_from is not None
    by_id = {request.id: request for request in made.state.requests}
    assert by_id.keys() == {"r0", "r1", "r2"}
    assert not by_id["r0"].HasField("output_token_ids")
    assert by_id["r0"].num_output_tokens > len(scenario.visits[0].output)
    assert by_id["r2"].HasField("output_token_ids")
    assert all(request.HasField("prompt_token_ids") for request in made.state.requests)
    place = list(by_id).index("r0")
    chunks = [chunk for step in made.state.steps for chunk in step.scheduled if chunk.request == place]
    assert chunks
    assert not any(chunk.HasField("sampled_token") for chunk in chunks)
    assert weakest(made.state, "requests[].output_token_ids").grade == pb.ABSENT
    assert validate(state_of(path)) == []
    report = run_job({"dump": str(path), "target": "schedule"}, lambda event: None)
    assert report["verdict"] == "reproduced"
    computed = record(fewer, tmp_path / "computed.pplx", served, player, wanted=wanted)
    assert all(request.HasField("output_token_ids") for request in computed.state.requests)
    report = run_job({"dump": str(computed.path), "model": str(tiny)}, lambda event: None)
    assert (report["verdict"], report["mode"]) == ("reproduced", "strict")


def test_a_record_without_token_ids_gives_a_dump_without_them(wanted, player, tiny, tmp_path):
    shape = state_of(serve(tiny, tmp_path, PEOPLE, record="shape", prefix_cache=True, **OPTIONS).dumps[0])
    path = tmp_path / "again.pplx"
    state = record(scenario_of(shape), path, shape, wanted=wanted).state
    assert state.manifest.record_level == "shape"
    assert not any(r.HasField("prompt_token_ids") or r.HasField("output_token_ids") for r in state.requests)
    assert validate(state_of(path)) == []
    report = run_job({"dump": str(path), "target": "schedule"}, lambda event: None)
    assert report["verdict"] == "reproduced"


def test_requests_whose_ids_were_lost_are_beside_others_that_have_them(served, scenario, wanted, tmp_path):
    people = [replace(v, prompt=(-1,) * len(v.prompt), output=(-1,) * len(v.output)) for v in scenario.visits[:1]]
    made = record(
        replace(scenario, visits=(*people, *scenario.visits[1:])), tmp_path / "some.pplx", served, wanted=wanted
    )
    assert [r.HasField("prompt_token_ids") for r in made.state.requests] == [False, True, True, True]
    assert validate(made.state) == []
    report = run_job({"dump": str(made.path), "target": "schedule"}, lambda event: None)
    assert report["verdict"] == "reproduced"


def test_a_stall_is_recorded_with_who_waits(player, tiny, tmp_path):
    options = {**OPTIONS, "kv_blocks": 4}
    people = [visit(6, limit=5), visit(30, 1, arrives=3)]
    state = state_of(serve(tiny, tmp_path, people, **options).dumps[0])
    stall = Signature.recorded(state.failures[-1], state)
    assert stall.identity.kind == "stall"
    made = record(scenario_of(state), tmp_path / "again.pplx", state, wanted=stall.identity)
    assert made.played.signature == stall
    assert made.state.manifest.reason == "stall"
    assert validate(made.state) == []


def test_a_play_longer_than_its_ring_is_recorded_in_a_larger_one(served, scenario, wanted, tmp_path, monkeypatch):
    whole = record(scenario, tmp_path / "whole.pplx", served, wanted=wanted)
    monkeypatch.setattr(module, "RING_BYTES", 1024)
    assert record(scenario, tmp_path / "again.pplx", served, wanted=wanted).state == whole.state


def test_a_failure_that_is_followed_by_another_in_its_step_is_the_last_one_of_its_dump(served, tmp_path):
    """Two answers end in one step, the second for another reason."""
    base = scenario_of(served)
    limits = replace(base.config, max_model_len=20, num_blocks=8, on_kv_exhausted=OnExhausted.TRUNCATE)
    short = replace(base.visits[0], id="a", prompt=(5,) * 17, output=(), leaves=None)
    full = replace(short, id="b", prompt=(6,) * 11)
    load = replace(base, config=limits, visits=(short, full), checks=False)
    failures = play(load).failures
    assert [(failure.step, failure.invariant) for failure in failures] == [
        (2, "kv-pool-exhausted"),
        (2, "max-model-len"),
    ]
    for failure in failures:
        identity = Signature.of(failure).identity
        state = record(load, tmp_path / f"{failure.request_id}.pplx", served, wanted=identity).state
        assert Signature.recorded(state.failures[-1], state).identity == identity


def test_without_a_wanted_failure_the_dump_is_of_the_end(served, scenario, tmp_path):
    made = record(without(scenario, ["r0", "r1", "r3"]), tmp_path / "end.pplx", served)
    assert (made.state.manifest.reason, list(made.state.failures)) == ("demand", [])
    assert made.played.failures == ()


def test_what_does_not_come_back_is_not_recorded(served, scenario, wanted, tmp_path):
    path = tmp_path / "none.pplx"
    with pytest.raises(UsageError, match="does not show the wanted failure"):
        record(without(scenario, ["r0", "r1", "r3"]), path, served, wanted=wanted)
    assert not path.exists()


def test_a_dump_is_not_overwritten(served, scenario, wanted, tmp_path):
    path = tmp_path / "there.pplx"
    path.write_bytes(b"mine")
    with pytest.raises(DumpError, match="exists already"):
        record(scenario, path, served, wanted=wanted)
    assert path.read_bytes() == b"mine"
