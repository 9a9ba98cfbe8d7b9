"""Early exit in a replay: an answer ends where it had ended, by the replay's own confidence, or the report says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from dumps.trace import read_fallback
from dumps.validate import validate
from replay.engine.request import InternalFlags, Request, SamplingParams
from replay.engine.schedule import Confidence, Sample
from replay.errors import UsageError
from replay.targets.fallbacks import exit_difference
from replay.targets.job import run_job
from replay.targets.rebuild import RecordedOutput
from tests.recordings import dump_now, record

THRESHOLD = 0.55
PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [40, 41, 42, 43, 44, 45], [100, 101]]
LIMIT = 40
FLAGS = InternalFlags(early_exit=THRESHOLD, fallback_trace=True)


@pytest.fixture(scope="module")
def greedy(tiny, tmp_path_factory) -> Path:
    """Four answers on the real scheduler; each ends early, after another number of tokens."""
    return recorded(tiny, tmp_path_factory.mktemp("greedy"), temperature=0.0)


@pytest.fixture(scope="module")
def drawn(tiny, tmp_path_factory) -> Path:
    return recorded(tiny, tmp_path_factory.mktemp("drawn"), temperature=1.0, min_tokens=9)


def recorded(
    tiny: Path,
    folder: Path,
    *,
    flags: InternalFlags = FLAGS,
    limit: int = LIMIT,
    level: str = "tokens",
    **sampling: Any,
) -> Path:
    params = SamplingParams(max_tokens=limit, ignore_eos=True, seed=11, **sampling)
    options: dict[str, Any] = {"kv_blocks": 64, "debug_level": 2, "record": level}
    recording = record(tiny, folder, PROMPTS, arrivals=[0, 0, 2, 3], sampling=params, flags=flags, **options)
    path = dump_now(recording)
    recording.session.close()
    return path


def state_of(path: Path) -> pb.RuntimeState:
    with open_dump(path) as dump:
        state = pb.RuntimeState()
        state.CopyFrom(dump.state)
        return state


def replayed(path: Path, tiny: Path, **options: Any) -> dict[str, Any]:
    return run_job({"dump": str(path), "model": str(tiny), **options}, lambda _: None)


def altered(path: Path, folder: Path, alter: Callable[[pb.RuntimeState], object]) -> Path:
    state = state_of(path)
    alter(state)
    write_dump(folder / "altered.pplx", state)
    return folder / "altered.pplx"


def lengths(report: dict[str, Any]) -> list[tuple[str, int]]:
    return [(request["finish_cause"], request["output_len"]) for request in report["requests"]]


def test_the_recording_is_what_the_tests_below_take_it_for(greedy):
    state = state_of(greedy)
    assert validate(state) == []
    assert [request.finish_cause for request in state.requests] == ["early-exit"] * 4
    assert len({request.num_output_tokens for request in state.requests}) >= 3
    assert all(request.num_output_tokens > 1 for request in state.requests)
    for request in state.requests:
        assert (request.flags.early_exit, request.flags.fallback_trace) == (THRESHOLD, True)
    events = [read_fallback(event) for event in state.trace_events]
    assert len(events) == sum(request.num_output_tokens - 1 for request in state.requests)
    assert all(event.confidence < THRESHOLD for event in events)


@pytest.mark.parametrize("name", ["greedy", "drawn"])
@pytest.mark.parametrize("window", [1, 4, 100])
def test_a_replay_ends_early_where_the_record_did_and_decides_the_same(name, window, tiny, request):
    path = request.getfixturevalue(name)
    state = state_of(path)
    report = replayed(path, tiny, window=window, full=True)
    assert (report["mode"], report["divergence"], report["findings"]) == ("strict", None, [])
    assert lengths(report) == [("early-exit", request.num_output_tokens) for request in state.requests]
    assert report["compared"]["tokens"] == sum(request.num_output_tokens for request in state.requests)
    decisions = report["fallbacks"].pop("decisions")
    count = len(state.trace_events)
    assert report["fallbacks"] == {"recorded": count, "replayed": count, "compared": count, "differ": 0}
    theirs = [read_fallback(event) for event in state.trace_events]
    expected = {
        (state.requests[event.request].id, event.position): [event.confidence, event.token, event.reason, event.step]
        for event in theirs
    }
    assert expected == {
        (d["request_id"], d["position"]): [d["confidence"], d["token"], d["reason"], d["step"]] for d in decisions
    }
    assert {event.reason for event in theirs} == (
        {"below-threshold"} if name == "greedy" else {"below-threshold", "min-tokens"}
    )


def test_the_confidence_is_asked_after_bias_and_penalties(tiny, tmp_path):
    """A token that no prompt leads to, biased to certainty, ends every answer at once."""
    biased = 77
    path = recorded(tiny, tmp_path, temperature=0.0, logit_bias=((biased, 100.0),), min_tokens=2)
    state = state_of(path)
    assert [request.num_output_tokens for request in state.requests] == [2] * 4
    for event in map(read_fallback, state.trace_events):
        assert (event.token, event.reason, event.candidates[0][0]) == (biased, "min-tokens", biased)
        assert event.confidence > 0.999
    report = replayed(path, tiny)
    assert report["findings"] == []
    assert report["fallbacks"]["compared"] == 4


def test_target_schedule_ends_such_answers_where_the_record_says(greedy):
    state = state_of(greedy)
    for schedule in ("recorded", "live"):
        report = run_job({"dump": str(greedy), "target": "schedule", "schedule": schedule}, lambda _: None)
        assert lengths(report) == [("early-exit", request.num_output_tokens) for request in state.requests]
        assert report["findings"] == []
        assert report["fallbacks"] is None


def test_lengths_alone_end_early_too(tiny, tmp_path):
    """Record level shape: no token is known, and no target but the schedule has anything to run."""
    path = recorded(tiny, tmp_path, temperature=0.0, level="shape")
    state = state_of(path)
    assert {request.finish_cause for request in state.requests} == {"early-exit"}
    assert all(read_fallback(event).token is None for event in state.trace_events)
    report = run_job({"dump": str(path), "target": "schedule"}, lambda _: None)
    assert lengths(report) == [("early-exit", request.num_output_tokens) for request in state.requests]
    assert report["findings"] == []


@pytest.mark.parametrize("window", [1, 100])
@pytest.mark.parametrize("threshold", [0.3, 0.9, None])
def test_another_threshold_in_the_dump_is_another_run(greedy, tiny, tmp_path, threshold, window):
    def alter(state: pb.RuntimeState) -> None:
        for request in state.requests:
            request.flags.ClearField("early_exit")
            if threshold is not None:
                request.flags.early_exit = threshold

    report = replayed(altered(greedy, tmp_path, alter), tiny, window=window)
    assert report["verdict"] == "diverged"
    where = report["divergence"]
    assert (where["kind"], where["cause"]) == ("finish", "corruption")
    state = state_of(greedy)
    found = next(f for f in report["findings"] if f["code"] == "fallback-differs")
    if threshold is None:
        assert found["replayed"].startswith("no-threshold")
    else:
        assert found["replayed" if threshold == 0.3 else "recorded"] == "no decision"
    if threshold == 0.3:
        events = [read_fallback(event) for event in state.trace_events]
        assert where["recorded"] == "goes on"
        assert where["replayed"].startswith("early-exit")
        assert where["step"] == min(event.step for event in events if event.confidence >= 0.3)
    else:
        assert where["recorded"] == "early-exit"
        assert where["replayed"].startswith("goes on")
        assert where["step"] == min(request.finish_step for request in state.requests)


def test_a_longer_recorded_answer_is_another_run(greedy, tiny, tmp_path):
    """A dump that claims the answer ended for another reason than the replay's confidence says."""

    def alter(state: pb.RuntimeState) -> None:
        state.requests[0].finish_cause = "max-tokens"
        state.requests[0].finish_reason = "length"
        for step in state.steps:
            for end in step.finished:
                if end.request == 0:
                    end.reason, end.cause = "length", "max-tokens"

    for window in (1, 100):
        report = replayed(altered(greedy, tmp_path, alter), tiny, window=window)
        (tmp_path / "altered.pplx").unlink()
        assert report["verdict"] == "diverged"
        assert report["divergence"]["request_id"] == "r0"


def test_settings_move_the_threshold_and_turn_it_off(greedy, tiny):
    base = replayed(greedy, tiny)
    sooner = replayed(greedy, tiny, set={"sampling.early_exit": 0.3}, full=True)
    assert sum(r["output_len"] for r in sooner["requests"]) < sum(r["output_len"] for r in base["requests"])
    assert {cause for cause, _ in lengths(sooner)} == {"early-exit"}
    assert sooner["divergence"] is None
    assert all(d["confidence"] < 0.3 for d in sooner["fallbacks"]["decisions"])
    assert (sooner["fallbacks"]["compared"], sooner["fallbacks"]["differ"]) == (0, 0)
    off = replayed(greedy, tiny, set={"sampling.early_exit": "0"}, full=True)
    longer = [r["output_len"] > b["output_len"] for r, b in zip(off["requests"], base["requests"], strict=True)]
    assert sum(longer) >= 3, "a replay ends with the record, and so does the answer that ended last"
    assert {d["reason"] for d in off["fallbacks"]["decisions"]} == {"no-threshold"}
    for wrong in ("1.5", "-0.1", "off"):
        with pytest.raises(UsageError, match=r"sampling\.early_exit"):
            replayed(greedy, tiny, set={"sampling.early_exit": wrong})
    with pytest.raises(UsageError, match="changes nothing in --target schedule"):
        replayed(greedy, tiny, target="schedule", set={"sampling.early_exit": 0.5})


def spoil(place: int, key: str, value: str) -> Callable[[pb.RuntimeState], None]:
    def alter(state: pb.RuntimeState) -> None:
        next(pair for pair in state.trace_events[place].args if pair.key == key).value = value

    return alter


@pytest.mark.parametrize("window", [1, 100])
@pytest.mark.parametrize(
    ("alter", "recorded_words", "replayed_words"),
    [
        (spoil(2, "confidence", "0.25"), "confidence 0.25", "below-threshold"),
        (spoil(2, "reason", "min-tokens"), "min-tokens", "below-threshold"),
        (spoil(2, "candidates", "[[7,0.5]]"), "below-threshold", "below-threshold"),
        (lambda state: state.trace_events.pop(2), "no decision", "below-threshold"),
    ],
)
def test_a_decision_that_differs_is_a_finding_and_no_divergence(
    greedy, tiny, tmp_path, alter, recorded_words, replayed_words, window
):
    event = read_fallback(state_of(greedy).trace_events[2])
    report = replayed(altered(greedy, tmp_path, alter), tiny, window=window)
    assert report["divergence"] is None
    found = next(f for f in report["findings"] if f["code"] == "fallback-differs")
    assert recorded_words in found["recorded"]
    assert replayed_words in found["replayed"]
    assert (found["request_id"], found["step"], found["differ"]) == (f"r{event.request}", event.step, 1)
    assert report["fallbacks"]["differ"] == 1


def test_the_first_of_several_differences_is_named(greedy, tiny, tmp_path):
    def alter(state: pb.RuntimeState) -> None:
        for place in (1, 3, 5):
            spoil(place, "confidence", "0.5")(state)

    first = read_fallback(state_of(greedy).trace_events[1])
    report = replayed(altered(greedy, tmp_path, alter), tiny)
    found = next(f for f in report["findings"] if f["code"] == "fallback-differs")
    assert (found["step"], found["request_id"], found["differ"]) == (first.step, f"r{first.request}", 3)


def test_a_decision_to_go_on_where_the_replay_ended_is_a_finding(greedy, tiny, tmp_path):
    """An event is added at the token that ended the answer."""

    def alter(state: pb.RuntimeState) -> None:
        request = state.requests[0]
        mine = [event for event in state.trace_events if event.request == 0]
        extra = state.trace_events.add()
        extra.CopyFrom(mine[-1])
        position = str(request.num_prompt_tokens + request.num_output_tokens - 1)
        next(pair for pair in extra.args if pair.key == "position").value = position
        extra.step = request.finish_step

    report = replayed(altered(greedy, tmp_path, alter), tiny)
    found = next(f for f in report["findings"] if f["code"] == "fallback-differs")
    assert (found["request_id"], found["replayed"]) == ("r0", "no decision")


def test_events_that_cannot_be_read_are_counted_and_the_rest_compared(greedy, tiny, tmp_path):
    count = len(state_of(greedy).trace_events)
    report = replayed(altered(greedy, tmp_path, spoil(2, "confidence", "much")), tiny)
    codes = [f["code"] for f in report["findings"]]
    assert "fallback-unreadable" in codes
    assert "invalid-state" in codes
    assert report["divergence"] is None
    assert report["fallbacks"]["recorded"] == count


def test_events_that_the_recorder_had_no_room_for_are_not_missed(greedy, tiny, tmp_path):
    def alter(state: pb.RuntimeState) -> None:
        state.trace_events.pop(2)
        state.ledger.add(path="trace_events", grade=pb.ABSENT, note="1 fallback decisions had no room")

    count = len(state_of(greedy).trace_events)
    report = replayed(altered(greedy, tmp_path, alter), tiny)
    assert report["findings"] == []
    assert report["fallbacks"] == {"recorded": count - 1, "replayed": count, "compared": count - 1, "differ": 0}


def elsewhere(threshold: float) -> Callable[[pb.RuntimeState], None]:
    """The dump of another platform, with another threshold."""

    def alter(state: pb.RuntimeState) -> None:
        state.manifest.platform_fingerprint = "0" * 64
        state.manifest.ClearField("platform")
        for request in state.requests:
            request.flags.early_exit = threshold

    return alter


def confidences_of_ends(path: Path, tiny: Path) -> list[float]:
    """At the tokens that ended answers; a replay without a threshold has decisions there."""
    whole = replayed(path, tiny, set={"sampling.early_exit": 0}, full=True)
    decisions = {(d["request_id"], d["position"]): d["confidence"] for d in whole["fallbacks"]["decisions"]}
    ends = [(r.id, r.num_prompt_tokens + r.num_output_tokens - 1) for r in state_of(path).requests]
    return [decisions[end] for end in ends]


def test_forced_mode_feeds_recorded_ends_and_calls_small_differences_noise(greedy, tiny, tmp_path):
    """The platform is another one, so a confidence may fall on the other side by rounding, and no further."""
    state = state_of(greedy)
    ends = [("early-exit", request.num_output_tokens) for request in state.requests]
    nearest = max(read_fallback(event).confidence for event in state.trace_events)
    least = min(confidences_of_ends(greedy, tiny))
    assert nearest < THRESHOLD <= least
    for threshold in (nearest - 1e-4, least + 1e-4):
        for window in (1, 100):
            report = replayed(altered(greedy, tmp_path, elsewhere(threshold)), tiny, window=window)
            (tmp_path / "altered.pplx").unlink()
            assert (report["mode"], report["divergence"]) == ("forced", None)
            assert report["compared"]["noise"] == 1
            assert lengths(report) == ends
    report = replayed(altered(greedy, tmp_path, elsewhere(0.3)), tiny)
    assert (report["mode"], report["verdict"], report["divergence"]["kind"]) == ("forced", "diverged", "finish")


def test_in_strict_mode_nothing_is_noise(greedy, tiny, tmp_path):
    nearest = max(read_fallback(event).confidence for event in state_of(greedy).trace_events)

    def alter(state: pb.RuntimeState) -> None:
        for request in state.requests:
            request.flags.early_exit = nearest

    for window in (1, 100):
        report = replayed(altered(greedy, tmp_path, alter), tiny, window=window)
        (tmp_path / "altered.pplx").unlink()
        assert (report["mode"], report["verdict"], report["divergence"]["kind"]) == ("strict", "diverged", "finish")


@pytest.mark.parametrize("window", [1, 100])
def test_an_answer_that_ends_otherwise_decides_nothing_at_its_end(tiny, tmp_path, window):
    path = recorded(tiny, tmp_path, flags=InternalFlags(fallback_trace=True), temperature=0.0, limit=6)
    report = replayed(path, tiny, window=window)
    assert lengths(report) == [("max-tokens", 6)] * 4
    assert report["findings"] == []
    assert report["fallbacks"] == {"recorded": 20, "replayed": 20, "compared": 20, "differ": 0}


def test_an_end_before_the_record_begins_is_not_known_and_not_compared():
    """A ring that wrapped has lost the step in which an answer ended, and with it whether by its confidence."""
    request = Request(id="r", tokens=[1, 2, 3], num_prompt=2, sampling=SamplingParams(), flags=FLAGS)
    sample = Sample(3, confidence=Confidence(((3, 0.9),)), early_exit=True)
    facts: dict[str, Any] = {"num_tokens": 1, "tokens": (3,), "digests": {}, "cause": None}
    lost = RecordedOutput(drawn_before=1, steps=(), **facts)
    kept = RecordedOutput(drawn_before=0, steps=(7,), **facts)
    assert exit_difference(request, lost, 0, sample, dtype="float32") is None
    assert exit_difference(request, kept, 0, sample, dtype="float32") is not None
