"""`--kv restore`: a replay that stands on recorded KV contents says of the failing step what computing says of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dumps.errors import InvalidState, TornDump
from dumps.record.recover import recover
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import SectionData, write_dump
from dumps.tensors import from_le32, le32
from replay.engine.kv_store import KVStore
from replay.engine.request import FinishCause, SamplingParams
from replay.engine.schedule import OnExhausted
from replay.errors import UsageError
from replay.targets.job import run_job
from replay.targets.kv_restore import KvRestore
from replay.targets.rebuild import rebuild
from replay.targets.settings import Overrides
from tests.incidents import MODEL, incident, replayed
from tests.led import led_to
from tests.mixing import random_tokens
from tests.recordings import Recording, dump_now, record
from tests.reports import findings
from tests.tiny import make_tiny_model

ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)
LIVE: dict[str, Any] = {"kv_blocks": 24, "block_size": 4, "record_kv": "live", "debug_level": 2, "sampling": ENDLESS}


def prompts(count: int, length: int = 9) -> list[list[int]]:
    return [random_tokens(length + index, 256, seed=index) for index in range(count)]


def cut_short(tiny: Path, folder: Path, **options: Any) -> Recording:
    """Three requests in a pool that is too small for them: the one that asks in vain is cut, the others decode."""
    return record(tiny, folder, prompts(3), arrivals=(0, 1, 3), on_kv_exhausted=OnExhausted.TRUNCATE, **LIVE, **options)


KINDS: dict[str, dict[str, Any]] = {"float32": {}, "bfloat16": {"dtype": "bfloat16"}, "int8": {"kv_quant_bits": 8}}


@pytest.fixture(scope="module")
def overflow(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return cut_short(tiny, tmp_path_factory.mktemp("overflow"))


@pytest.fixture(scope="module", params=KINDS)
def any_cache(request, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return cut_short(tiny, tmp_path_factory.mktemp(request.param), **KINDS[request.param])


@pytest.fixture(scope="module")
def bit_flip(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    quirk = "kv-bit-flip:request=1,layer=1,position=4,after_step=12"
    return record(tiny, tmp_path_factory.mktemp("flip"), prompts(3), quirks=(quirk,), **LIVE | {"kv_blocks": 64})


def replay(dump: Path, tiny: Path, **options: Any) -> dict[str, Any]:
    report = run_job({"dump": str(dump), "model": str(tiny), **options}, lambda _: None)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    return report


def altered(dump: Path, folder: Path, change: Callable[[pb.RuntimeState, dict[str, np.ndarray]], object]) -> Path:
    """A copy of a dump whose state and KV tensors `change` may alter."""
    with open_dump(dump) as opened:
        state = opened.state
        tensors = {s.kind: np.array(opened.tensor(s.kind)) for s in opened.sections}
        dtypes = {s.kind: s.dtype for s in opened.sections}
    change(state, tensors)
    sections = [SectionData(kind=k, data=t.tobytes(), dtype=dtypes[k], shape=t.shape) for k, t in tensors.items()]
    path = folder / "altered.pplx"
    path.unlink(missing_ok=True)
    write_dump(path, state, sections)
    return path


def without(*rows: int) -> Callable[[pb.RuntimeState, dict[str, np.ndarray]], None]:
    """Removes recorded blocks by their place in the list."""

    def change(state: pb.RuntimeState, tensors: dict[str, np.ndarray]) -> None:
        blocks = from_le32(state.kv.contents_blocks)
        kept = [row for row in range(len(blocks)) if row not in rows]
        state.kv.contents_blocks = le32([blocks[row] for row in kept])
        for kind in tensors:
            tensors[kind] = tensors[kind][kept]

    return change


def test_it_agrees_with_the_record_and_with_computing_in_the_failing_step(any_cache, tiny):
    restored = replay(any_cache.dumps[0], tiny, kv="restore")
    computed = replay(any_cache.dumps[0], tiny, kv="recompute")
    assert (restored["verdict"], restored["mode"], restored["divergence"]) == ("reproduced", "strict", None)
    assert restored["signature"] == computed["signature"] == restored["expected_signature"]
    assert restored["kv"] == computed["kv"]
    assert restored["compared"]["fast_forwarded_tokens"] == 0
    assert (restored["compared"]["window_steps"], restored["compared"]["digests"]) == (1, 2)
    digests = {request["id"]: request["logits_digest"] for request in computed["requests"]}
    drew = {request["id"]: request["logits_digest"] for request in restored["requests"] if request["logits_digest"]}
    assert len(drew) == 2
    assert drew.items() <= digests.items()
    (said,) = findings(restored, "kv-restored")
    assert said["requests"] == sorted(drew)
    assert (said["computed"], findings(restored, "kv-differs")) == ([], [])
    with open_dump(any_cache.dumps[0]) as dump:
        assert said["blocks"] == len(from_le32(dump.state.kv.contents_blocks))
        assert said["bytes"] == sum(section.raw_size for section in dump.sections)


def test_contents_in_many_parts_are_the_same(tiny, tmp_path, monkeypatch):
    """A part holds at least one block, however small parts are wanted."""
    monkeypatch.setattr("replay.serving.contents.PART_BYTES", 1)
    recording = cut_short(tiny, tmp_path, kv_quant_bits=8)
    with open_dump(recording.dumps[0]) as dump:
        assert len(dump.parts("kv-contents")) == len(from_le32(dump.state.kv.contents_blocks)) > 10
    for kv in ("auto", "restore"):
        report = replay(recording.dumps[0], tiny, kv=kv)
        assert (report["verdict"], findings(report, "kv-differs")) == ("reproduced", [])


def test_what_was_recorded_is_what_is_used(any_cache, tiny, tmp_path):
    """One changed number: laid over a computed cache it is found, restored it makes other logits."""

    def change(state: pb.RuntimeState, tensors: dict[str, np.ndarray]) -> None:
        # Whoever holds block 0 of the first table reads its first slot in the failing step.
        block = from_le32(state.kv.tables[0].blocks)[0]
        row = from_le32(state.kv.contents_blocks).index(block)
        tensors["kv-contents"][row, 0, 1, 0, 0, 0] += 64

    dump = altered(any_cache.dumps[0], tmp_path, change)
    restored = replay(dump, tiny, kv="restore")
    assert (restored["verdict"], restored["divergence"]["cause"]) == ("diverged", "corruption")
    assert findings(restored, "kv-differs") == []
    laid_over = replay(dump, tiny)
    (difference,) = findings(laid_over, "kv-differs")
    assert (difference["count"], difference["layer"], difference["tensor"]) == (1, 0, "value")
    assert laid_over["verdict"] == "diverged"
    assert replay(dump, tiny, kv="recompute")["verdict"] == "reproduced"


def test_contents_that_are_not_all_there_are_computed_and_the_report_says_whose(overflow, tiny, tmp_path):
    with open_dump(overflow.dumps[0]) as dump:
        state = dump.state
    table = state.kv.tables[1]
    row = from_le32(state.kv.contents_blocks).index(from_le32(table.blocks)[2])
    report = replay(altered(overflow.dumps[0], tmp_path, without(row)), tiny, kv="restore")
    assert (report["verdict"], report["compared"]["digests"]) == ("reproduced", 2)
    (said,) = findings(report, "kv-restored")
    assert said["computed"] == [state.requests[table.request].id]
    assert len(said["requests"]) == 1
    assert f"{report['compared']['fast_forwarded_tokens']} tokens of 1 more were computed" in said["message"]
    assert report["compared"]["fast_forwarded_tokens"] > 20


def test_a_flipped_bit_is_restored_with_its_writer(bit_flip, tiny):
    with open_dump(bit_flip.dumps[0]) as dump:
        recorded = dump.state.failures[-1].non_finite
    restored, computed = replay(bit_flip.dumps[0], tiny, kv="restore"), replay(bit_flip.dumps[0], tiny)
    assert restored["verdict"] == computed["verdict"] == "reproduced"
    assert restored["failure"]["non_finite"] == computed["failure"]["non_finite"]
    assert restored["failure"]["non_finite"]["written_by_step"] == recorded.written_by_step
    assert findings(restored, "facts-differ") == []
    assert restored["compared"]["fast_forwarded_tokens"] == 0


def test_the_golden_nan_comes_back_from_the_damaged_block_alone(tmp_path):
    """Its dump holds the faulty block only: what else its requests need is computed."""
    state, sections = incident("nan-block")
    assert state.kv.contents_selection == "faulty"
    report = replayed(tmp_path, state, sections, model=str(MODEL), kv="restore")
    assert report["verdict"] == "reproduced"
    (said,) = findings(report, "kv-restored")
    assert (said["blocks"], bool(said["computed"])) == (len(from_le32(state.kv.contents_blocks)), True)
    assert len(findings(report, "kv-differs")) == 1


def test_a_request_that_ends_in_the_failing_step_is_restored_too(tiny, tmp_path):
    """Its blocks are free by the time the dump is written, and still hold what the step read."""
    folders = [tmp_path / "first", tmp_path / "second"]
    first = record(tiny, folders[0], prompts(2), on_kv_exhausted=OnExhausted.TRUNCATE, **LIVE)
    limits = [0 if request.finished else request.num_output for request in first.requests]
    second = record(tiny, folders[1], prompts(2), limits=limits, on_kv_exhausted=OnExhausted.TRUNCATE, **LIVE)
    (ended,) = (request.id for request in second.requests if request.finish_cause is FinishCause.MAX_TOKENS)
    report = replay(second.dumps[0], tiny, kv="restore")
    (said,) = findings(report, "kv-restored")
    assert (said["requests"], said["computed"]) == ([ended], [])
    assert (report["verdict"], report["compared"]["digests"]) == ("reproduced", 1)


def test_a_block_that_changed_hands_in_the_failing_step_is_no_damage(tiny, tmp_path):
    """A preempted request's block belongs to another one by the time the contents are read."""
    crowd = {**LIVE, "on_kv_exhausted": OnExhausted.PREEMPT}
    whole = record(tiny, tmp_path / "whole", prompts(3)[::-1], steps=40, **crowd)
    with open_dump(dump_now(whole)) as opened:
        taken = next(step.index for step in opened.state.steps if step.exhausted)
    again = record(tiny, tmp_path / "cut", prompts(3)[::-1], steps=taken + 1, **crowd)
    dump = dump_now(again)
    with open_dump(dump) as opened:
        last = opened.state.steps[-1]
        assert [(entry.request, entry.outcome) for entry in last.exhausted] == [(0, "preempt-other")]
        assert from_le32(last.scheduled[0].new_blocks)
    for kv in ("auto", "restore"):
        report = replay(dump, tiny, kv=kv)
        assert (findings(report, "kv-differs"), report["divergence"]) == ([], None)
        assert report["compared"]["digests"] > 0
    # In another run it may keep its block, and must not find the other one's tokens there.
    with open_dump(dump) as opened:
        rebuilt, (taken,) = rebuild(opened.state, Overrides()), from_le32(last.scheduled[0].new_blocks)
        recorded = from_le32(opened.state.kv.contents_blocks)
        scheduler = led_to(rebuilt, last.index)
        assert taken in scheduler.running[2].blocks
        cache = KVStore(num_blocks=24, block_size=4, num_layers=2, num_kv_heads=2, head_dim=16, dtype="float32")
        cache.fill_blocks(range(24), 0.0)
        contents = KvRestore(opened, rebuilt, cache, following=False)
        contents.lay_over(scheduler.running, before=last.index, strict=False)
    assert {block for block in range(24) if cache.read_blocks([block]).any()} == set(recorded) - {taken}


def test_contents_of_a_later_moment_are_not_used(tiny, tmp_path):
    recording = record(
        tiny, tmp_path, prompts(3), on_kv_exhausted=OnExhausted.TRUNCATE, stop_at_failure=False, steps=36, **LIVE
    )
    later = dump_now(recording)
    with open_dump(later) as dump:
        assert dump.state.steps[-1].index > dump.state.failures[-1].step
    report = replay(later, tiny)
    assert report["verdict"] == "reproduced"
    assert "last recorded step" in findings(report, "kv-contents-unused")[0]["message"]
    refused = replay(later, tiny, kv="restore")
    assert (refused["verdict"], refused["reason_code"]) == ("inconclusive", "kv-contents-absent")
    assert "last recorded step" in findings(refused, "kv-contents-absent")[0]["message"]


def test_without_contents_it_is_inconclusive_and_says_what_would_have_sufficed(tiny, tmp_path):
    recording = record(tiny, tmp_path, prompts(3), on_kv_exhausted=OnExhausted.TRUNCATE, **LIVE | {"record_kv": "none"})
    report = replay(recording.dumps[0], tiny, kv="restore")
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "kv-contents-absent")
    assert "--record-kv live" in findings(report, "kv-contents-absent")[0]["remedy"]
    assert report["compared"]["tokens"] == 0


def stages(dump: Path, tiny: Path, **options: Any) -> tuple[list[str], dict[str, Any]]:
    """What a replay said that it was at, and its report; empty for one that was refused."""
    seen: list[str] = []
    report: dict[str, Any] = {}
    with contextlib.suppress(UsageError):
        report = run_job(
            {"dump": str(dump), "model": str(tiny), **options}, lambda event: seen.append(event.get("stage", ""))
        )
    return seen, report


def test_a_ring_has_no_contents_and_no_setting_of_the_server_is_named_that_would_have_helped(tiny, tmp_path):
    recording = record(tiny, tmp_path, prompts(3), on_kv_exhausted=OnExhausted.TRUNCATE, **LIVE)
    dump = recover(recording.session.ring, tmp_path / "ring.pplx", force=True)
    seen, report = stages(dump, tiny, kv="restore")
    (found,) = findings(report, "kv-contents-absent")
    assert "recovered from a flight recorder" in found["message"]
    assert "a dump that the living server writes" in found["remedy"]
    assert "load" not in seen


def test_contents_of_another_kind_than_the_cache_are_refused_before_the_model_is_loaded(any_cache, tiny):
    with open_dump(any_cache.dumps[0]) as dump:
        other = 8 - dump.state.engine.kv_quant_bits
    seen, report = stages(any_cache.dumps[0], tiny, set={"kv.quant_bits": other})
    assert (report, "load" in seen) == ({}, False)
    with pytest.raises(UsageError, match=r"int8 (blocks|ones)"):
        replay(any_cache.dumps[0], tiny, set={"kv.quant_bits": other})


def test_contents_that_agree_are_said_to(any_cache, tiny):
    (said,) = findings(replay(any_cache.dumps[0], tiny), "kv-agrees")
    with open_dump(any_cache.dumps[0]) as dump:
        recorded = len(from_le32(dump.state.kv.contents_blocks))
    # The failing step is the first to write to one of them.
    assert said["message"] == f"recorded KV: {recorded - 1} blocks, all bits as computed"
    assert findings(replay(any_cache.dumps[0], tiny, kv="recompute"), "kv-agrees") == []
    (forced,) = findings(replay(any_cache.dumps[0], tiny, mode="forced"), "kv-agrees")
    assert "all bits" not in forced["message"]


def test_weights_that_are_not_the_recorded_ones_are_not_used_with_recorded_contents(bit_flip, tiny, tmp_path):
    other = make_tiny_model(tmp_path / "other", seed=1)
    report = replay(bit_flip.dumps[0], other, kv="restore")
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "weights-unavailable")
    unnamed = altered(bit_flip.dumps[0], tmp_path, lambda s, _: s.model.ClearField("weights_fingerprint"))
    report = replay(unnamed, tiny, kv="restore")
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "kv-contents-absent")
    assert replay(unnamed, tiny)["verdict"] == "reproduced"


def test_a_section_that_was_cut_off_is_not_there(bit_flip, tiny, tmp_path):
    whole = bit_flip.dumps[0].read_bytes()
    with open_dump(bit_flip.dumps[0]) as dump:
        (section,) = dump.sections
    torn = tmp_path / "torn.pplx"
    torn.write_bytes(whole[: section.data_offset + section.data_size // 2])
    with pytest.raises(TornDump):
        replay(torn, tiny, kv="restore")
    report = replay(torn, tiny, kv="restore", salvage=True)
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "kv-contents-absent")


def test_a_cache_of_another_kind_or_size_is_refused(overflow, tiny, tmp_path):
    with pytest.raises(UsageError, match="KV contents are"):
        replay(overflow.dumps[0], tiny, kv="restore", set={"kv.num_blocks": 8})
    dump = altered(overflow.dumps[0], tmp_path, lambda s, _: setattr(s.kv, "head_dim", 2 * s.kv.head_dim))
    with pytest.raises(InvalidState, match="section kv-contents has shape"):
        replay(dump, tiny, kv="restore")


@pytest.mark.parametrize(
    "options",
    [
        {"scope": "request"},
        {"schedule": "live"},
        {"set": {"sampling.temperature": 1.0}},
        {"set": {"model.dtype": "bfloat16"}},
        {"set": {"kv.quant_bits": 8}},
    ],
)
def test_options_that_make_another_run_exclude_it(bit_flip, tiny, options):
    with pytest.raises(UsageError, match="kv: restore"):
        replay(bit_flip.dumps[0], tiny, kv="restore", **options)


def test_a_larger_pool_makes_another_run_after_the_contents(overflow, tiny):
    larger = {"kv.num_blocks": 200, "model.max_model_len": 50}
    restored = replay(overflow.dumps[0], tiny, kv="restore", set=larger)
    computed = replay(overflow.dumps[0], tiny, kv="recompute", set=larger)
    ours, theirs = ([(r["output_sha256"], r["output_len"]) for r in each["requests"]] for each in (restored, computed))
    assert ours == theirs
    assert restored["signature"] == computed["signature"]
    assert restored["signature"]["identity"]["invariant"] == "max-model-len"


@pytest.mark.parametrize("first_ends", [False, True])
def test_a_prefix_that_the_failing_step_hits_is_restored_with_what_it_copies(tiny, tmp_path, first_ends):
    """The second request comes with the first one's prompt, so its last block is a private copy; where the first has
    ended, that copy is all that the dump holds of it."""
    prompt = random_tokens(16, 256, seed=3)
    recording = record(
        tiny,
        tmp_path,
        [prompt, prompt, random_tokens(9, 256, seed=8)],
        arrivals=(0, 12, 0),
        limits=(4 if first_ends else 30, 30, 30),
        steps=13,
        prefix_cache=True,
        **LIVE,
    )
    dump = dump_now(recording)
    with open_dump(dump) as opened:
        (hit,) = opened.state.steps[-1].prefix_hits
        assert (hit.num_tokens, hit.HasField("copied_from")) == (15, True)
        recorded = from_le32(opened.state.kv.contents_blocks)
        assert (hit.copied_from in recorded) is not first_ends
        assert set(from_le32(hit.blocks)) <= set(recorded)
    report = replay(dump, tiny, kv="restore")
    assert (report["divergence"], report["compared"]["fast_forwarded_tokens"]) == (None, 0)
    assert report["compared"]["digests"] == (2 if first_ends else 3)
    assert [item["code"] for item in report["findings"]] == ["kv-restored"], report["findings"]


def test_what_the_failing_step_does_not_read_is_neither_computed_nor_compared(tiny, tmp_path):
    """A step that raises for want of blocks computes nothing, so nothing need be there to compare with."""
    recording = record(tiny, tmp_path, prompts(3), on_kv_exhausted=OnExhausted.RAISE, **LIVE)
    report = replay(recording.dumps[0], tiny, kv="restore")
    assert (report["verdict"], [item["code"] for item in report["findings"]]) == ("reproduced", ["kv-restored"])
