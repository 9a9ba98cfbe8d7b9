"""An engine at a standstill: the replay proves from scheduler and pool that nothing could go on, and names what
waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dumps.ledger import record
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from tests.job_replays import replayed
from tests.plays import Play, Visit, play

SMALL: dict[str, Any] = {"block_size": 4, "kv_blocks": 8, "max_model_len": 120, "max_num_batched_tokens": 32}


def visit(length: int, seed: int = 0, *, limit: int = 6, **times: Any) -> Visit:
    prompt = tuple((seed * 101 + place * (37 + seed)) % 320 for place in range(length))
    return Visit(prompt=prompt, sampling=SamplingParams(temperature=0.0, max_tokens=limit, ignore_eos=True), **times)


# By name: the load, its options, the step after which nothing went on, and who waits for how many blocks.
STALLS: dict[str, tuple[list[Visit], dict[str, Any], int | None, str, int]] = {
    "before the first step": ([visit(50), visit(9, 1)], {}, None, "r0", 13),
    "when others have ended": ([visit(9), visit(50, 1, arrives=3)], {}, 5, "r1", 13),
    "by its own growth": ([visit(20, limit=40)], {"on_kv_exhausted": OnExhausted.PREEMPT}, 13, "r0", 9),
    "with a prefix cache": ([visit(20), visit(50, arrives=2)], {"prefix_cache": True}, 5, "r1", 13),
    "twice": ([visit(9), visit(50, 1, arrives=1), visit(60, 2, arrives=1)], {}, 5, "r1", 13),
}


@pytest.fixture(scope="module", params=STALLS)
def stalled(request, tiny, tmp_path_factory) -> tuple[str, Play]:
    people, options, *_ = STALLS[request.param]
    return request.param, play(tiny, tmp_path_factory.mktemp("dumps"), people, **SMALL | options)


def state_of(dump: Path) -> pb.RuntimeState:
    with open_dump(dump) as opened:
        return opened.state


@pytest.mark.parametrize("options", [{"target": "schedule"}, {"target": "schedule", "schedule": "live"}, {}])
def test_a_standstill_is_proven_and_its_request_named(stalled, tiny, options):
    name, played = stalled
    _, _, step, request, needed = STALLS[name]
    report = replayed(played.dumps[0], None if "target" in options else tiny, **options)
    assert (report["verdict"], report["reason_code"], report["divergence"]) == ("reproduced", "", None)
    assert report["findings"] == []
    assert all(report["match"].values())
    assert report["signature"] == report["expected_signature"]
    failure = report["failure"]
    assert (failure["kind"], failure["request_id"], failure.get("step")) == ("stall", request, step)
    assert failure["pool"] == {
        "wait_reason": "kv-pool-too-small",
        "blocks_needed": needed,
        "blocks_free": 8,
        "num_blocks": 8,
        "holders": [],
    }
    assert report["kv"]["kv_cache_used_bytes"] == 0


@pytest.mark.parametrize("target", ["schedule", "inference"])
def test_with_more_blocks_the_request_runs(stalled, tiny, target):
    name, played = stalled
    model = tiny if target == "inference" else None
    report = replayed(played.dumps[0], model, target=target, set={"kv.num_blocks": 64})
    assert (report["verdict"], report["signature"]) == ("not-reproduced", None)
    waited = next(one for one in report["requests"] if one["id"] == STALLS[name][3])
    assert waited["finish_cause"] == "max-tokens"


def test_a_dump_of_later_shows_the_last_standstill_from_the_steps_before_it(stalled):
    name, played = stalled
    last = state_of(played.demand).failures[-1]
    report = replayed(played.demand, None, target="schedule")
    assert report["verdict"] == "reproduced"
    assert report["failure"]["request_id"] == ("r2" if name == "twice" else STALLS[name][3])
    assert report["failure"].get("step") == (last.step if last.HasField("step") else None)


def test_alone_a_request_that_no_pool_of_this_size_holds_waits_as_well(stalled, tiny):
    name, played = stalled
    report = replayed(played.dumps[0], tiny, scope="request")
    assert report["verdict"] == "reproduced"
    assert report["failure"]["pool"]["blocks_needed"] == STALLS[name][4]


def test_lengths_are_enough(tiny, tmp_path):
    people, options, *_ = STALLS["when others have ended"]
    played = play(tiny, tmp_path, people, **SMALL | options, record="shape")
    report = replayed(played.dumps[0], None, target="schedule")
    assert (report["verdict"], report["failure"]["pool"]["blocks_needed"]) == ("reproduced", 13)


def altered(dump: Path, folder: Path, alter: Any) -> Path:
    state = state_of(dump)
    alter(state)
    write_dump(folder / "altered.pplx", state)
    return folder / "altered.pplx"


def a_pool_that_could_have_gone_on(state: pb.RuntimeState) -> None:
    state.requests[1].num_prompt_tokens = 9
    state.requests[1].prompt_token_ids = state.requests[1].prompt_token_ids[:36]


def lost_steps(state: pb.RuntimeState) -> None:
    del state.steps[:]
    record(state, "steps", pb.ABSENT, "lost")


ALTERED = {
    "the request fits": (a_pool_that_could_have_gone_on, "not-reproduced", ""),
    "its step is never reached": (lambda s: setattr(s.failures[0], "step", 99), "inconclusive", "steps-absent"),
    "others still run": (lambda s: setattr(s.failures[0], "step", 2), "not-reproduced", ""),
    "the steps are lost": (lost_steps, "inconclusive", "steps-absent"),
}


@pytest.mark.parametrize("name", ALTERED)
def test_what_the_record_does_not_prove_is_not_claimed(tiny, tmp_path, name):
    alter, verdict, reason = ALTERED[name]
    people, options, *_ = STALLS["when others have ended"]
    played = play(tiny, tmp_path, people, **SMALL | options)
    report = replayed(altered(played.dumps[0], tmp_path, alter), None, target="schedule")
    assert (report["verdict"], report["reason_code"]) == (verdict, reason)


def test_who_waited_before_the_first_step_is_known_from_the_queue_alone(tiny, tmp_path):
    people, options, *_ = STALLS["before the first step"]
    dump = play(tiny, tmp_path, people, **SMALL | options).dumps[0]
    assert not state_of(dump).steps
    report = replayed(altered(dump, tmp_path, lambda s: s.scheduler.ClearField("waiting")), None, target="schedule")
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "steps-absent")
