"""Runs with a prefix cache, recorded by the server's own parts: what they drew, and how they replay."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.tensors import from_le32, le32
from dumps.validate import validate
from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from replay.targets.cached_prefix import BlockContents
from tests.job_replays import replayed, verdict_due
from tests.plays import Visit, play

VOCAB = 320
PROFILE = settings()
EXAMPLES = 300 if PROFILE.max_examples > 300 else 4
PHASES = tuple(Phase) if EXAMPLES > 100 else (Phase.explicit, Phase.reuse, Phase.generate)


def stem(length: int, seed: int = 1) -> tuple[int, ...]:
    return tuple((seed * 101 + place * (37 + seed)) % (VOCAB - 4) + 4 for place in range(length))


GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def state_of(dump: Path) -> pb.RuntimeState:
    with open_dump(dump) as opened:
        return opened.state


@st.composite
def visits(draw: st.DrawFn, longest: int) -> Visit:
    arrives = draw(st.sampled_from([0, 0, 1, 3, 6, 10, 15]))
    shared = draw(st.sampled_from([32, 16, 24, longest, 9, 0]))
    own = draw(st.sampled_from([0, 0, 1, 5, 20])) if shared else draw(st.integers(1, longest))
    prompt = (stem(shared) + stem(own, seed=draw(st.integers(2, 4))))[:longest]
    leaves = draw(st.one_of(st.none(), st.none(), st.integers(0, 20)))
    return Visit(
        prompt=prompt,
        sampling=SamplingParams(
            max_tokens=draw(st.sampled_from([12, 3, 30, 0])),
            temperature=draw(st.sampled_from([0.0, 0.0, 1.0])),
            seed=draw(st.integers(0, 2)),
            ignore_eos=draw(st.booleans()),
        ),
        arrives=arrives,
        leaves=None if leaves is None else arrives + leaves,
    )


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[Visit], dict[str, Any]]:
    block_size = draw(st.sampled_from([4, 1, 3, 8, 16]))
    max_model_len = draw(st.sampled_from([48, 90]))
    fits = -(-max_model_len // block_size)
    blocks = draw(st.sampled_from([fits, 2 * fits, 3 * fits // 2, 6 * fits]))
    options = {
        "prefix_cache": True,
        "block_size": block_size,
        "kv_blocks": blocks,
        "max_model_len": max_model_len,
        "max_num_seqs": draw(st.sampled_from([4, 2, 6, 1])),
        "max_num_batched_tokens": draw(st.sampled_from([64, 16, 5])),
        "on_kv_exhausted": draw(st.sampled_from(list(OnExhausted))),
        "ring_bytes": draw(st.sampled_from([2 * 2**20, 16384, 2 * 2**20, 8192])),
        "debug_level": draw(st.sampled_from([0, 2])),
    }
    longest = min(max_model_len - 1, 40)
    return draw(st.lists(visits(longest), min_size=2, max_size=8)), options


SEEN: dict[str, int] = {"hits": 0, "copies": 0, "wrapped": 0}


@settings(max_examples=EXAMPLES, phases=PHASES, suppress_health_check=list(HealthCheck))
@given(load=loads(), window=st.sampled_from([8, 3, 1, 32, 1000]), schedule=st.sampled_from(["recorded", "live"]))
def test_what_was_recorded_replays_without_a_difference(tiny, load, window, schedule):
    people, options = load
    with tempfile.TemporaryDirectory() as folder:
        done = play(tiny, Path(folder), people, **options)
        for dump in [*done.dumps[-1:], done.demand]:
            state = state_of(dump)
            note(f"{state.manifest.reason}: {len(state.steps)} steps from {[s.index for s in state.steps[:1]]}")
            assert [(f.rule, f.path, f.message) for f in validate(state)] == []
            hits = [hit for step in state.steps for hit in step.prefix_hits]
            SEEN["hits"] += len(hits)
            SEEN["copies"] += sum(hit.HasField("copied_from") for hit in hits)
            SEEN["wrapped"] += bool(state.scheduler.start.prefix_hashes)
            agrees(replayed(dump, tiny, window=window, schedule=schedule), state)
            agrees(replayed(dump, None, target="schedule", schedule="live"), state)
            agrees(replayed(dump, None, target="schedule"), state)


def test_the_loads_of_the_test_before_share_and_copy_and_wrap():
    if SEEN["hits"]:  # not run by itself
        assert SEEN["copies"]
        assert SEEN["wrapped"]


def agrees(report: dict[str, Any], state: pb.RuntimeState) -> None:
    assert report["divergence"] is None
    assert report["findings"] == []
    if report["target"] == "inference" and state.steps:
        assert report["mode"] == "strict"
        known = sum(r.num_output_tokens for r in state.requests if r.HasField("output_token_ids"))
        assert report["compared"]["tokens"] == known
    assert (report["verdict"], report["reason_code"]) == verdict_due(state)


@settings(max_examples=max(EXAMPLES // 3, 3), phases=PHASES, suppress_health_check=list(HealthCheck))
@given(people=st.lists(visits(40), min_size=2, max_size=6), block_size=st.sampled_from([4, 1, 16]))
def test_tokens_and_digests_are_those_without_a_cache_bit_for_bit(tiny, people, block_size):
    answers = []
    for prefix_cache in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            options = {"block_size": block_size, "kv_blocks": 2048, "max_model_len": 90, "debug_level": 2}
            stay = [Visit(prompt=v.prompt, sampling=v.sampling, arrives=v.arrives) for v in people]
            state = state_of(play(tiny, Path(folder), stay, prefix_cache=prefix_cache, **options).demand)
        assert any(step.prefix_hits for step in state.steps) <= prefix_cache
        answers.append({r.id: (r.output_token_ids, r.output_digests, r.finish_cause) for r in state.requests})
    assert answers[0] == answers[1]
    assert all(digests for _, digests, _ in answers[0].values())


@pytest.fixture(scope="module")
def shared(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which a prompt comes back when nobody holds its blocks any more, and then again beside itself."""
    people = [
        Visit(prompt=stem(32), sampling=GREEDY),
        Visit(prompt=stem(20, seed=5), sampling=SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)),
        Visit(prompt=(*stem(32), 7, 8), sampling=GREEDY, arrives=40),
        Visit(prompt=stem(32), sampling=GREEDY, arrives=41),
    ]
    folder = tmp_path_factory.mktemp("shared")
    return play(tiny, folder, people, prefix_cache=True, block_size=8, kv_blocks=64, debug_level=2).demand


def test_blocks_that_nobody_holds_are_computed_for_those_who_come(shared, tiny):
    state = state_of(shared)
    hits = {state.requests[hit.request].id: hit for step in state.steps for hit in step.prefix_hits}
    assert {name: hit.num_tokens for name, hit in hits.items()} == {"r2": 32, "r3": 31}
    report = replayed(shared, tiny, window=25)
    assert report["findings"] == []
    assert report["divergence"] is None
    # 32 cached tokens, and r1's; r0 has ended and is drawn again in a cache of its own.
    assert report["compared"]["window_steps"] == 25
    assert report["compared"]["tokens"] == sum(r.num_output_tokens for r in state.requests)


def test_a_record_that_begins_with_a_full_cache(tiny, tmp_path):
    """The ring has lost the steps of the request that wrote the blocks, and the request with them."""
    long = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)
    people = [
        Visit(prompt=stem(32), sampling=GREEDY),
        Visit(prompt=stem(20, seed=5), sampling=long),
        Visit(prompt=(*stem(32), 7, 8), sampling=GREEDY, arrives=138),
    ]
    options = {"block_size": 8, "kv_blocks": 64, "ring_bytes": 8192, "debug_level": 2}
    dump = play(tiny, tmp_path, people, prefix_cache=True, steps=170, **options).demand
    state = state_of(dump)
    assert len(state.scheduler.start.prefix_hashes) >= 4
    assert first_hit(state).num_tokens == 32
    assert [request.id for request in state.requests] == ["r1", "r2"]
    agrees(replayed(dump, tiny), state)
    agrees(replayed(dump, None, target="schedule", schedule="live"), state)


def test_a_block_is_stamped_with_the_step_that_wrote_it_whoever_has_it_now(shared, tiny, monkeypatch):
    stamps: list[list[set[int]]] = []

    def compute(self: BlockContents, running: Any, cached: Any = ()) -> None:
        computed(self, running, cached)
        stamps.append([set(self.runner.kv.written_step[b * 8 : b * 8 + 8].tolist()) for b in blocks])

    computed, blocks = BlockContents.compute, from_le32(first_hit(state_of(shared)).blocks)
    monkeypatch.setattr(BlockContents, "compute", compute)
    replayed(shared, tiny, window=25)
    assert stamps == [[{0}] * 4]  # r0 had its whole prompt computed in the first step, and has ended


def test_contents_left_uncomputed_are_noticed(shared, tiny, monkeypatch):
    monkeypatch.setattr("replay.targets.inference.within_reach", lambda *arguments: [])
    report = replayed(shared, tiny, window=25)
    assert report["divergence"] is not None
    assert "kv-not-computed" in [f["code"] for f in report["findings"]]


def test_switched_off_the_answers_stay_and_the_schedule_is_another(shared, tiny):
    report = replayed(shared, tiny, set={"scheduler.prefix_cache": "false"})
    assert [f["code"] for f in report["findings"]] == ["schedule-differs"]
    assert "nothing cached" in report["findings"][0]["message"]
    assert report["divergence"] is None
    assert report["compared"]["tokens"] == sum(r.num_output_tokens for r in state_of(shared).requests)


def altered(shared: Path, folder: Path, change: Callable[[pb.RuntimeState], None]) -> Path:
    from dumps.schema.writer import write_dump

    state = pb.RuntimeState()
    state.CopyFrom(state_of(shared))
    change(state)
    path = folder / "altered.pplx"
    write_dump(path, state, [])
    return path


def first_hit(state: pb.RuntimeState) -> pb.PrefixHit:
    return next(hit for step in state.steps for hit in step.prefix_hits)


@pytest.mark.parametrize("schedule", ["recorded", "live"])
def test_an_altered_hit_is_named(shared, tmp_path, schedule):
    def fewer(state: pb.RuntimeState) -> None:
        hit = first_hit(state)
        hit.num_tokens, hit.blocks = 24, le32(from_le32(hit.blocks)[:3])

    report = replayed(altered(shared, tmp_path, fewer), None, target="schedule", schedule=schedule)
    found = next(f for f in report["findings"] if f["code"] == "schedule-differs")
    assert found["what"] == "prefix"
    assert found["recorded"].startswith("tokens 0..23 cached in blocks")
    assert found["replayed"].startswith("tokens 0..31 cached in blocks")
    assert found["request_id"] == "r2"
