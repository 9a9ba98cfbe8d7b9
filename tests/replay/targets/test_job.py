"""Replays of real recordings of a tiny model, through the same function that the child process calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dumps.errors import DumpError
from dumps.schema.reader import open_dump
from dumps.schema.writer import SectionData, write_dump
from dumps.tensors import from_le32, le32
from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from replay.errors import BudgetSpent, UsageError
from replay.targets.job import run_job
from tests.mixing import random_tokens
from tests.recordings import Recording, dump_now, record
from tests.tiny import make_tiny_model

TRUNCATE = OnExhausted.TRUNCATE
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


def prompts(count: int, length: int = 9) -> list[list[int]]:
    return [random_tokens(length + index, 256, seed=index) for index in range(count)]


@pytest.fixture(scope="module")
def overflow(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Three requests share a pool that is too small for them; the first one that asks in vain is cut."""
    folder = tmp_path_factory.mktemp("overflow")
    return record(
        tiny,
        folder,
        prompts(3),
        arrivals=(0, 1, 3),
        sampling=ENDLESS,
        kv_blocks=24,
        block_size=4,
        on_kv_exhausted=TRUNCATE,
    )


@pytest.fixture(scope="module")
def bit_flip(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """One bit of a cached key flips after step 12, in the middle of three healthy requests."""
    return record(
        tiny,
        tmp_path_factory.mktemp("flip"),
        prompts(3),
        sampling=ENDLESS,
        kv_blocks=64,
        block_size=4,
        quirks=("kv-bit-flip:request=1,layer=1,position=4,after_step=12",),
    )


def replay(dump: Path, tiny: Path | None = None, **options: Any) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    model = str(tiny) if tiny and options.get("target") != "schedule" else None
    job = {"dump": str(dump), "model": model, **options}
    report = run_job(job, events.append)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    return report


def test_a_truncation_is_reproduced_at_its_place_with_its_numbers(overflow, tiny):
    report = replay(overflow.dumps[0], tiny)
    assert (report["verdict"], report["mode"], report["kernels"]) == ("reproduced", "strict", "exact")
    assert all(report["match"].values())
    assert report["kv"]["kv_cache_used_bytes"] == report["kv"]["max_kv_cache_bytes"] > 0
    cut = next(r for r in overflow.requests if r.finished)
    assert report["kv"]["seq_len_exceeded_at"] == cut.num_tokens
    assert report["compared"]["tokens"] == sum(r.num_output for r in overflow.requests)


def test_the_schedule_target_says_the_same_without_weights(overflow, tiny):
    whole, schedule = replay(overflow.dumps[0], tiny), replay(overflow.dumps[0], target="schedule")
    assert schedule["verdict"] == "reproduced"
    for key in ("signature", "expected_signature", "match", "kv", "failure"):
        assert schedule[key] == whole[key]


def test_a_short_window_fast_forwards_to_the_same_verdict_and_compares_as_much(overflow, tiny):
    short, whole = replay(overflow.dumps[0], tiny, window=2), replay(overflow.dumps[0], tiny, window=1000)
    assert short["verdict"] == whole["verdict"] == "reproduced"
    assert short["compared"]["window_steps"] == 2
    assert short["compared"]["fast_forwarded_tokens"] > 0
    assert whole["compared"]["fast_forwarded_tokens"] == 0
    assert short["compared"]["tokens"] == whole["compared"]["tokens"]
    assert [r["output_sha256"] for r in short["requests"]] == [r["output_sha256"] for r in whole["requests"]]


@pytest.mark.parametrize("target", ["inference", "schedule"])
def test_more_blocks_do_not_fail_and_the_cut_answer_goes_on(tiny, tmp_path, target):
    limited = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=60)
    recording = record(
        tiny, tmp_path, prompts(3), sampling=limited, kv_blocks=24, block_size=4, on_kv_exhausted=TRUNCATE
    )
    report = replay(recording.dumps[0], tiny, target=target, set={"kv.num_blocks": 512})
    assert report["verdict"] == "not-reproduced"
    name = report["expected_signature"]["location"]["request_id"]
    cut = next(r for r in report["requests"] if r["id"] == name)
    assert (cut["finish_cause"], cut["output_len"]) == ("max-tokens", 60)
    assert cut["recorded_output_len"] < 60
    assert [f["code"] for f in report["findings"]] == ["schedule-differs", *["record-ends"] * (target == "schedule")]


def test_a_failure_past_the_record_is_known_with_the_model_and_guessed_without(overflow, tiny):
    """These answers end nowhere but at the model's own limit, and to be cut there is another failure."""
    more = {"kv.num_blocks": 512}
    assert replay(overflow.dumps[0], tiny, set=more)["verdict"] == "different-failure"
    schedule = replay(overflow.dumps[0], target="schedule", set=more)
    assert (schedule["verdict"], schedule["reason_code"]) == ("inconclusive", "record-ends")
    assert schedule["signature"] is None


def test_a_few_more_blocks_are_never_taken_for_a_cure(overflow, tiny):
    for blocks in (25, 26, 30):
        schedule = replay(overflow.dumps[0], target="schedule", set={"kv.num_blocks": blocks})
        assert schedule["verdict"] in ("inconclusive", "reproduced")
        assert replay(overflow.dumps[0], tiny, set={"kv.num_blocks": blocks})["verdict"] == "reproduced"


@pytest.mark.parametrize("place", [0, 1, 5, -1])
def test_one_altered_token_is_where_the_replay_diverges(overflow, tiny, tmp_path, place):
    with open_dump(overflow.dumps[0]) as dump:
        state = dump.state
    tokens = from_le32(state.requests[0].output_token_ids)
    tokens[place] = (tokens[place] + 1) % 256
    state.requests[0].output_token_ids = le32(tokens)
    write_dump(tmp_path / "altered.pplx", state)
    for window in (2, 1000):
        report = replay(tmp_path / "altered.pplx", tiny, window=window)
        assert report["verdict"] == "diverged"
        assert report["divergence"]["request_id"] == "r0"
        assert report["divergence"]["output_index"] == place % len(tokens)
        assert report["divergence"]["recorded"] == str(tokens[place])
        assert report["divergence"]["step"] is not None


def test_bits_are_compared_where_they_were_recorded(tiny, tmp_path):
    """The same token from other logits is a divergence, too."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    recording = record(
        tiny,
        folder,
        prompts(3),
        sampling=ENDLESS,
        kv_blocks=24,
        block_size=4,
        on_kv_exhausted=TRUNCATE,
        debug_level=2,
    )
    assert replay(recording.dumps[0], tiny)["compared"]["digests"] > 0
    with open_dump(recording.dumps[0]) as dump:
        state = dump.state
    digests = bytearray(state.requests[1].output_digests)
    digests[8 * 2] ^= 1
    state.requests[1].output_digests = bytes(digests)
    write_dump(tmp_path / "altered.pplx", state)
    report = replay(tmp_path / "altered.pplx", tiny)
    assert report["verdict"] == "diverged"
    assert (report["divergence"]["kind"], report["divergence"]["output_index"]) == ("logits", 2)


def test_a_flipped_bit_is_found_and_comes_back_only_through_the_recorded_bytes(bit_flip, tiny):
    restored = replay(bit_flip.dumps[0], tiny)
    assert restored["verdict"] == "reproduced"
    place = restored["failure"]["non_finite"]
    assert (place["where"], place["layer"], place["tensor"], place["position"]) == ("kv-cache", 1, "key", 4)
    assert place["written_by_step"] == 0
    differs = next(f for f in restored["findings"] if f["code"] == "kv-differs")
    assert (differs["count"], differs["layer"], differs["tensor"], differs["position"]) == (1, 1, "key", 4)
    flipped = int(differs["recorded_bits"], 16) ^ int(differs["computed_bits"], 16)
    assert flipped == 1 << 30
    assert restored["quirks"][0]["name"] == "kv-bit-flip"

    recomputed = replay(bit_flip.dumps[0], tiny, kv="recompute")
    assert recomputed["verdict"] == "not-reproduced"
    assert recomputed["failure"] is None


def test_where_bits_may_differ_only_the_nan_counts_as_damage(bit_flip, tiny):
    """Stock kernels round otherwise in most values; the recorded NaN is still found, and no rounding is blamed."""
    report = replay(bit_flip.dumps[0], tiny, kernels="stock")
    assert (report["verdict"], report["mode"]) == ("reproduced", "forced")
    differs = next(f for f in report["findings"] if f["code"] == "kv-differs")
    assert (differs["count"], differs["layer"], differs["position"]) == (1, 1, 4)


def test_a_failure_in_the_numbers_needs_the_model(bit_flip):
    report = replay(bit_flip.dumps[0], target="schedule")
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "needs-inference")


def test_neither_dump_reproduces_the_others_failure(overflow, bit_flip, tiny):
    for dump, other in ((overflow, bit_flip), (bit_flip, overflow)):
        report = replay(dump.dumps[0], tiny, signature=str(other.dumps[0]))
        assert report["verdict"] == "different-failure"
        assert report["signature"]["identity"] != report["expected_signature"]["identity"]
        assert not all(report["match"].values())


def test_the_failing_request_alone_says_what_it_said_and_is_not_cut(overflow, tiny):
    """That it is not cut then is no cure: alone it lacks nothing that the others had taken."""
    for target in ("inference", "schedule"):
        options = {"scope": "request", "target": target, "set": {"sampling.max_tokens": 40}}
        report = replay(overflow.dumps[0], tiny, **options)
        assert (report["verdict"], report["reason_code"]) == ("inconclusive", "ran-alone")
    cut = next(r for r in overflow.requests if r.finished)
    alone = replay(overflow.dumps[0], tiny, scope="request", full=True)
    assert alone["requests"][0]["output_token_ids"][: cut.num_output] == cut.output
    assert alone["compared"]["tokens"] >= cut.num_output


def test_a_pool_that_no_request_fits_into_is_a_stall_and_not_the_truncation(overflow, tiny):
    for target in ("inference", "schedule"):
        report = replay(overflow.dumps[0], tiny, target=target, set={"kv.num_blocks": 1})
        assert report["verdict"] == "different-failure"
        assert report["signature"]["identity"]["kind"] == "stall"
        assert report["failure"]["message"].endswith("the whole pool has 1")


def test_a_dump_without_token_ids_says_what_would_have_sufficed(tiny, tmp_path):
    recording = record(
        tiny,
        tmp_path,
        prompts(3),
        sampling=ENDLESS,
        kv_blocks=24,
        block_size=4,
        on_kv_exhausted=TRUNCATE,
        record="shape",
    )
    report = replay(recording.dumps[0], tiny)
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "tokens-absent")
    assert "--record tokens" in report["findings"][0]["remedy"]
    assert report["fidelity"]["requests[].prompt_token_ids"] == "absent"
    assert replay(recording.dumps[0], target="schedule")["verdict"] == "reproduced"


def test_a_raised_exhaustion_is_an_exception_with_its_type(tiny, tmp_path):
    recording = record(
        tiny, tmp_path, prompts(3), sampling=ENDLESS, kv_blocks=24, block_size=4, on_kv_exhausted=OnExhausted.RAISE
    )
    report = replay(recording.dumps[0], tiny)
    assert report["verdict"] == "reproduced"
    assert report["signature"]["identity"]["exception_type"] == "replay.errors.KVCacheExhausted"
    policy = {"scheduler.on_kv_exhausted": "preempt", "sampling.max_tokens": 30}
    assert replay(recording.dumps[0], tiny, set=policy)["verdict"] == "not-reproduced"


def test_preempted_requests_replay_bit_for_bit(tiny, tmp_path):
    recording = record(
        tiny,
        tmp_path,
        prompts(4),
        sampling=SamplingParams(temperature=0.8, seed=7, max_tokens=30, ignore_eos=True),
        kv_blocks=24,
        block_size=4,
        debug_level=2,
    )
    dump = dump_now(recording)
    for window in (3, 1000):
        report = replay(dump, tiny, window=window)
        assert (report["verdict"], report["reason_code"]) == ("inconclusive", "no-failure-recorded")
        assert report["divergence"] is None
        assert report["findings"] == []
        assert report["compared"]["tokens"] == 4 * 30
        assert report["compared"]["digests"] >= 4 * 30 - 4


def test_a_schedule_derived_again_is_the_recorded_one(overflow, tiny):
    report = replay(overflow.dumps[0], tiny, schedule="live")
    assert report["verdict"] == "reproduced"
    assert report["findings"] == []
    other = replay(overflow.dumps[0], target="schedule", schedule="live", set={"scheduler.max_num_batched_tokens": 5})
    assert other["findings"][0]["code"] == "schedule-differs"


def test_forced_mode_feeds_recorded_tokens_and_says_that_bits_were_not_compared(overflow, tiny):
    report = replay(overflow.dumps[0], tiny, mode="forced", kernels="stock")
    assert (report["verdict"], report["mode"], report["kernels"]) == ("reproduced", "forced", "stock")
    assert report["findings"][0]["code"] == "platform-differs"


def test_other_weights_are_not_taken_for_the_recorded_ones(overflow, tmp_path):
    other = make_tiny_model(tmp_path / "other", seed=1)
    report = replay(overflow.dumps[0], other)
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "weights-unavailable")


def test_repeat_counts(overflow, tiny):
    assert replay(overflow.dumps[0], tiny, repeat=3)["repeat"] == {"n": 3, "reproduced": 3}


def test_a_budget_ends_a_replay(overflow, tiny):
    with pytest.raises(BudgetSpent, match="did not end within"):
        replay(overflow.dumps[0], tiny, timeout_s=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sloppy"},
        {"repeat": 0},
        {"repeat": True},
        {"window": -1},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"set": {"kv.num_block": 3}},
        {"set": {"kv.num_blocks": "many"}},
        {"set": []},
        {"full": "yes"},
        {"signature": 3},
        {"signature": __file__},
        {"set": {"sampling.temperature": 0}},
    ],
)
def test_options_that_cannot_be_used_are_usage_errors(overflow, options):
    with pytest.raises(UsageError):
        replay(overflow.dumps[0], target="schedule", **options)


def test_contents_that_do_not_fit_the_cache_are_a_bad_dump(bit_flip, tiny, tmp_path):
    with open_dump(bit_flip.dumps[0]) as dump:
        state, contents = dump.state, dump.tensor("kv-contents")
    state.kv.contents_blocks = le32([9999] * contents.shape[0])
    section = SectionData(kind="kv-contents", data=contents.tobytes(), dtype="float32", shape=contents.shape)
    write_dump(tmp_path / "bad.pplx", state, [section])
    with pytest.raises(DumpError):
        replay(tmp_path / "bad.pplx", tiny)


def test_a_ring_that_wrapped_three_times_replays_from_its_keyframe(tiny, tmp_path):
    recording = record(
        tiny,
        tmp_path,
        prompts(12, length=20),
        arrivals=[index * 15 for index in range(12)],
        sampling=SamplingParams(temperature=0.7, seed=3, max_tokens=60, ignore_eos=True),
        steps=200,
        kv_blocks=40,
        block_size=4,
        debug_level=2,
        ring_bytes=8192,
    )
    dump = dump_now(recording)
    with open_dump(dump) as opened:
        state = opened.state
    assert state.scheduler.HasField("start")
    kept = state.steps[-1].index + 1 - state.steps[0].index
    assert state.steps[0].index > 3 * kept
    report = replay(dump, tiny, window=kept)
    assert (report["divergence"], report["findings"]) == (None, [])
    assert report["mode"] == "strict"
    assert report["compared"]["window_steps"] == kept
    known = sum(r.num_output_tokens for r in state.requests if r.HasField("output_token_ids"))
    assert report["compared"]["tokens"] == known > 0
    assert report["compared"]["digests"] > 0


def test_requests_whose_token_ids_are_gone_do_not_stop_a_replay_of_those_that_are_there(tiny, tmp_path):
    """One request at a time gives the recorder few slots; the last request is too long for the pool."""
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    recording = record(
        tiny,
        tmp_path,
        [*prompts(20, length=6), random_tokens(30, 256, seed=99)],
        arrivals=[9 * index for index in range(20)] + [200],
        sampling=sampling,
        limits=[4] * 20 + [0],
        kv_blocks=9,
        block_size=4,
        max_num_seqs=1,
        on_kv_exhausted=TRUNCATE,
    )
    with open_dump(recording.dumps[0]) as dump:
        state = dump.state
    gone = [r.id for r in state.requests if not r.HasField("prompt_token_ids")]
    assert 0 < len(gone) < 20
    for window in (1000, 3):
        report = replay(recording.dumps[0], tiny, window=window)
        assert (report["verdict"], report["reason_code"]) == ("reproduced", "")
        known = sum(r.num_output_tokens for r in state.requests if r.HasField("prompt_token_ids"))
        assert report["compared"]["tokens"] == known
    assert replay(recording.dumps[0], target="schedule")["verdict"] == "reproduced"

    # Without those of the failing request there is nothing to compute.
    state.requests[-1].ClearField("prompt_token_ids")
    write_dump(tmp_path / "blind.pplx", state)
    report = replay(tmp_path / "blind.pplx", tiny)
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "tokens-absent")
