"""What comes back from a ring is a stretch of what happened, checked against the real scheduler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.ledger import weakest
from dumps.record.recorder import ExhaustedRecord, KeyframeRecord, StepEnd, StepStart
from dumps.record.recover import read_ring, state_from_ring
from dumps.schema import state_pb2 as pb
from dumps.tensors import from_le32
from dumps.validate import validate
from replay.engine.schedule import OnExhausted
from tests.flight import Flight, make_config, make_recorder

SAMPLING = {"top_p": 1.0, "repetition_penalty": 1.0}


def state_of(path: Path, reason: str | None = "demand") -> pb.RuntimeState:
    return state_from_ring(read_ring(path), reason=reason)


def errors(state: pb.RuntimeState) -> list[str]:
    return [f"{f.rule} {f.path}: {f.message}" for f in validate(state) if f.severity == "error"]


@given(
    seed=st.integers(0, 10**6),
    steps=st.integers(0, 120),
    policy=st.sampled_from([OnExhausted.PREEMPT, OnExhausted.TRUNCATE]),
    num_blocks=st.integers(10, 30),
    ring_kib=st.integers(4, 64),
    torn=st.booleans(),
    digests=st.booleans(),
)
def test_the_retained_history_is_what_happened(
    tmp_path_factory, seed, steps, policy, num_blocks, ring_kib, torn, digests
):
    path = tmp_path_factory.mktemp("ring") / "a.ring"
    config = make_config(num_blocks=num_blocks, on_kv_exhausted=policy)
    recorder = make_recorder(path, config, ring_bytes=ring_kib * 1024, slots=64)
    flight = Flight(recorder, config, seed=seed, digests=digests)
    flight.fly(steps)
    in_flight = torn and flight.plan() is not None

    state = state_of(path)

    flight.check(state)
    assert errors(state) == []
    if flight.begins:
        assert state.scheduler.next_step == flight.begins[-1].index + (not in_flight)
        assert state.steps[-1].index == flight.begins[-1].index or not state.steps
    assert [state.requests[i].id for i in state.scheduler.waiting] == [r.id for r in flight.scheduler.waiting]
    for request in state.requests:
        real = next(r for r in flight.requests.values() if r.id == request.id)
        assert request.num_output_tokens == real.num_output
        assert request.HasField("prompt_token_ids")
        assert request.HasField("output_token_ids")
        assert request.finish_cause == (real.finish_cause or "")


def test_a_ring_that_never_wrapped_starts_from_nothing(tmp_path):
    config = make_config()
    flight = Flight(make_recorder(tmp_path / "a.ring", config, ring_bytes=1 << 20), config)
    flight.fly(20)

    state = state_of(tmp_path / "a.ring")

    assert not state.scheduler.HasField("start")
    assert [step.index for step in state.steps] == [begin.index for begin in flight.begins]
    flight.check(state)


@pytest.mark.parametrize("slots", [4, 16, 64])
def test_after_three_laps_the_state_still_starts_from_a_keyframe(tmp_path, slots):
    config = make_config()
    flight = Flight(make_recorder(tmp_path / "a.ring", config, slots=slots, ring_bytes=8192), config)
    while flight.recorder._file.written < 3.5 * 8192:
        flight.fly(10)

    state = state_of(tmp_path / "a.ring")

    assert state.scheduler.start.before_step == state.steps[0].index > 0
    assert state.steps[-1].index == flight.begins[-1].index
    assert len(state.steps) >= 5
    flight.check(state)


def test_tokens_of_a_request_preempted_long_ago_are_still_there(tmp_path):
    """Its last tokens were in no full group, and no step that drew them is left in the ring."""
    config = make_config()
    recorder = make_recorder(tmp_path / "a.ring", config, ring_bytes=4096)
    first = recorder.add_request({"id": "first", "sampling": {"top_p": 1.0}}, [11, 12, 13])
    second = recorder.add_request({"id": "second", "sampling": {"top_p": 1.0}}, [21])
    recorder.begin_step(StepStart(0, 0, [first], [0], [3], [(0, 0)], arrived=[first, second], admitted=[first]))
    recorder.end_step(StepEnd(0, [14]))
    taken = ExhaustedRecord(first, 1, 0, "preempt-self")
    recorder.begin_step(StepStart(1, 0, [second], [0], [1], [(0, 1)], admitted=[second], exhausted=[taken]))
    recorder.end_step(StepEnd(1, [22]))
    for index in range(2, 200):
        recorder.begin_step(StepStart(index, 0, [second], [index - 1], [1]))
        recorder.end_step(StepEnd(index, [20 + index]))
        if recorder.keyframe_due():
            used = [(second, index, index, [1])]
            recorder.keyframe(KeyframeRecord(index + 1, [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0], used, [first]))

    state = state_of(tmp_path / "a.ring")

    assert state.steps[0].index > 150
    by_id = {request.id: request for request in state.requests}
    assert from_le32(by_id["first"].output_token_ids) == [14]
    assert by_id["first"].status == "preempted"
    # A slot of 64 tokens has room for some 130 in groups: what did not fit is missing, and not said to be there.
    assert by_id["second"].num_output_tokens == 199
    assert not by_id["second"].HasField("output_token_ids")


def test_requests_are_as_the_last_kept_step_leaves_them(tmp_path):
    """A step too large for the ring ends the history; what the slab learnt after it belongs to no kept step."""
    config = make_config()
    recorder = make_recorder(tmp_path / "a.ring", config, ring_bytes=2048)
    drawn, idle, late = (
        recorder.add_request({"id": name, "sampling": {"top_p": 1.0}}, [11, 12]) for name in ("drawn", "idle", "late")
    )
    recorder.begin_step(StepStart(0, 0, [drawn], [0], [2], [(0, 0)], arrived=[drawn, idle], admitted=[drawn]))
    recorder.end_step(StepEnd(0, [13]))
    recorder._file._position = 0  # as after a lap: the first step is written over
    recorder.keyframe(KeyframeRecord(1, list(range(12)), [], [drawn, idle], [], [(drawn, 1)]))
    recorder.begin_step(StepStart(1, 0, [], [], [], arrived=[late]))
    recorder.end_step(StepEnd(1, []))
    huge = [(0, block) for block in range(99)]
    everyone = [drawn, idle, late]
    recorder.begin_step(StepStart(2, 0, everyone, [0] * 3, [3, 2, 2], huge, admitted=everyone))
    recorder.end_step(StepEnd(2, [14, 15, 16]))
    recorder.flush()

    state = state_of(tmp_path / "a.ring")

    assert [step.index for step in state.steps] == [1]
    lengths = {request.id: (request.num_output_tokens, request.status) for request in state.requests}
    assert lengths == {"drawn": (1, "preempted"), "idle": (0, "waiting"), "late": (0, "waiting")}
    assert from_le32(state.requests[0].output_token_ids) == [13]


def test_a_slot_taken_over_is_absent_and_its_request_still_named(tmp_path):
    config = make_config()
    flight = Flight(make_recorder(tmp_path / "a.ring", config, slots=6, ring_bytes=32768), config)
    flight.fly(80)

    state = state_of(tmp_path / "a.ring")

    flight.check(state)
    gone = [request for request in state.requests if not request.HasField("prompt_token_ids")]
    assert gone
    assert "requests[].prompt_token_ids" in {e.path for e in state.ledger if e.grade == pb.ABSENT}
    assert all(request.status == "finished" for request in gone if not request.id.startswith("unknown"))


def test_more_live_requests_than_slots(tmp_path):
    config = make_config(num_blocks=64)
    flight = Flight(make_recorder(tmp_path / "a.ring", config, slots=2), config)
    for _ in range(5):
        flight.add(3, max_tokens=5)
    for _ in range(3):
        flight.plan()
        flight.commit()

    state = state_of(tmp_path / "a.ring")

    flight.check(state)
    assert [request.HasField("prompt_token_ids") for request in state.requests] == [True, True, False, False, False]
    assert [request.num_prompt_tokens for request in state.requests] == [3] * 5
    note = next(e.note for e in state.ledger if e.path == "requests[].prompt_token_ids")
    assert "3 requests" in note


def test_a_prompt_longer_than_its_slot_is_cut_and_said_to_be_absent(tmp_path):
    config = make_config(num_blocks=64, max_model_len=200, max_num_batched_tokens=64)
    flight = Flight(make_recorder(tmp_path / "a.ring", config, slot_tokens=8), config)
    long, short = flight.add(100, max_tokens=3), flight.add(4, max_tokens=3)
    flight.fly(6)

    state = state_of(tmp_path / "a.ring")

    flight.check(state)
    by_id = {request.id: request for request in state.requests}
    assert by_id[long.id].num_prompt_tokens == 100
    assert not by_id[long.id].HasField("prompt_token_ids")
    assert by_id[short.id].HasField("prompt_token_ids")
    assert any(e.path == "requests[].prompt_token_ids" and e.grade == pb.ABSENT for e in state.ledger)


def test_a_death_without_a_failure_becomes_one(tmp_path):
    config = make_config()
    flight = Flight(make_recorder(tmp_path / "a.ring", config), config)
    flight.fly(10)
    flight.plan()
    image = read_ring(tmp_path / "a.ring")

    state = state_from_ring(dead(image))

    assert state.manifest.reason == "process-death"
    assert [(f.kind, f.invariant, f.step) for f in state.failures] == [("process-death", "", flight.begins[-1].index)]
    assert errors(state) == []


def test_a_failure_long_before_the_death_is_what_the_dump_is_about(tmp_path):
    config = make_config()
    flight = Flight(make_recorder(tmp_path / "a.ring", config), config)
    flight.fly(10)
    serial = max(flight.requests)
    flight.recorder.failure(
        {
            "kind": "silent-truncation",
            "invariant": "kv-pool-exhausted",
            "request": serial,
            "step": 9,
            "seq_len_exceeded_at": 20,
            "non_finite": {"where": "logits"},
        }
    )
    flight.fly(400)

    state = state_from_ring(dead(read_ring(tmp_path / "a.ring")))

    assert state.manifest.reason == "silent-truncation"
    assert [f.kind for f in state.failures] == ["silent-truncation"]
    assert state.failures[0].non_finite.where == "logits"
    assert state.kv.seq_len_exceeded_at == 20
    assert state.requests[state.failures[0].request].id in (f"req-{serial}", f"unknown-{serial}")
    assert any("later the process ended" in entry.note for entry in state.ledger)
    assert errors(state) == []


def test_a_request_without_kept_steps_is_not_said_to_have_ended(tmp_path):
    """Its header was too long for the ring, so that no history can be read from the ring's beginning."""
    recorder = make_recorder(tmp_path / "a.ring", make_config(), ring_bytes=1024)
    serial = recorder.add_request({"id": "a", "sampling": SAMPLING | {"stop": ["x" * 300]}}, [1, 2])
    recorder.begin_step(StepStart(0, 0, [serial], [0], [2], [(0, 0)], arrived=[serial], admitted=[serial]))
    recorder.end_step(StepEnd(0, [3]))
    recorder.failure({"kind": "exception", "request": serial, "step": 1})

    state = state_of(tmp_path / "a.ring")

    assert len(state.steps) == 0
    assert errors(state) == []
    assert (state.requests[0].status, state.requests[0].finish_reason) == ("running", "")
    assert weakest(state, "requests[0].status").grade == pb.INFERRED


@pytest.mark.parametrize("slots", [1, 64])
def test_a_failed_request_whose_slot_was_taken_over_has_an_unknown_end(tmp_path, slots):
    recorder = make_recorder(tmp_path / "a.ring", make_config(), ring_bytes=1024, slots=slots)
    for index in range(60):
        serial = recorder.add_request({"id": f"r{index}", "sampling": SAMPLING}, [1, 2])
        recorder.begin_step(StepStart(index, 0, [serial], [0], [2], [(0, 0)], arrived=[serial], admitted=[serial]))
        recorder.end_step(StepEnd(index, [3], finished=[(serial, "length", "kv-pool-exhausted")]))
        if index == 0:
            recorder.failure({"kind": "silent-truncation", "invariant": "kv-pool-exhausted", "request": serial})

    state = state_of(tmp_path / "a.ring")

    failed = state.requests[state.failures[0].request]
    assert errors(state) == []
    assert (failed.status, failed.finish_reason) == ("finished", "length" if slots > 1 else "")


def test_a_live_server_gives_its_own_reason(tmp_path):
    config = make_config()
    flight = Flight(make_recorder(tmp_path / "a.ring", config), config)
    flight.fly(3)

    state = state_of(tmp_path / "a.ring", reason="signal")

    assert (state.manifest.reason, len(state.failures)) == ("signal", 0)
    assert state_of(tmp_path / "a.ring", reason=None).manifest.reason == "demand"


def test_history_starts_anew_after_a_step_that_never_ended(tmp_path):
    """No record explains the state of a server that went on after an exception in the middle of a step."""
    config = make_config(num_blocks=64)
    flight = Flight(make_recorder(tmp_path / "a.ring", config, ring_bytes=1 << 20), config)
    for _ in range(3):
        flight.add(5, max_tokens=9)
    flight.plan()
    flight.commit()
    flight.plan()  # the executor raises here
    assert flight.recorder.keyframe_due()
    flight.recorder.keyframe(flight.keyframe())
    assert not flight.recorder.keyframe_due()
    flight.plan()
    flight.commit()

    state = state_of(tmp_path / "a.ring")

    flight.check(state)
    assert [step.index for step in state.steps] == [2]
    assert [request.num_output_tokens for request in state.requests] == [2, 2, 2]
    assert all(request.HasField("output_token_ids") for request in state.requests)
    assert errors(state) == []


def test_recovering_twice_gives_the_same_id_and_another_moment_another_one(tmp_path):
    config = make_config()
    flight = Flight(make_recorder(tmp_path / "a.ring", config), config)
    flight.fly(10)
    first, again = state_of(tmp_path / "a.ring"), state_of(tmp_path / "a.ring")
    flight.fly(1)

    assert first.manifest.id == again.manifest.id != state_of(tmp_path / "a.ring").manifest.id


def dead(image):
    return replace(image, alive=False)
