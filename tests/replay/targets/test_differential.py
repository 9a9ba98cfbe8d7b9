"""Whatever a server did and recorded replays without a difference, under every policy and load."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.validate import validate
from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from replay.targets.job import run_job
from tests.job_replays import replayed, verdict_due
from tests.plays import Visit, play

VOCAB = 320
PROFILE = settings()
EXAMPLES = min(PROFILE.max_examples, 300)
# Shrinking one of these takes minutes. The first failure is told at once, and HYPOTHESIS_PROFILE=long makes it small.
PHASES = tuple(Phase) if EXAMPLES > 100 else (Phase.explicit, Phase.reuse, Phase.generate)
SMALL_RING = 4096
"""Below this a record may be too large for the ring, and then steps are honestly missing."""


tokens = st.integers(0, VOCAB - 1)
samplings = st.builds(
    SamplingParams,
    max_tokens=st.sampled_from([40, 7, 20, 60, 0, 1, 2]),
    min_tokens=st.sampled_from([0, 0, 0, 1, 5, 30]),
    temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0, 2.0, 1e-9]),
    top_k=st.sampled_from([0, 0, 1, 5, 1000]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 1e-9]),
    min_p=st.sampled_from([0.0, 0.0, 0.2, 0.999]),
    presence_penalty=st.sampled_from([0.0, 0.0, -2.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 2.0, -0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.1, 0.5, 100.0]),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, 100.0, 0.1, -3.3]), max_size=3).map(
        lambda biases: tuple(sorted(biases.items()))
    ),
    seed=st.sampled_from([0, 1, 2**64 - 1]),
    stop=st.sampled_from([(), (), (), ("e",), ("th", "\n"), ("a", "in", "on "), ("é", "�"), ("zq" * 30,)]),
    stop_token_ids=st.lists(tokens, max_size=3, unique=True).map(tuple),
    ignore_eos=st.booleans(),
)


@st.composite
def visits(draw: st.DrawFn, longest: int) -> Visit:
    arrives = draw(st.sampled_from([0, 0, 0, 1, 2, 5, 9, 14, 25]))
    leaves = draw(st.one_of(st.none(), st.none(), st.integers(0, 30)))
    length = draw(st.one_of(st.integers(1, longest), st.integers(1, min(4, longest)), st.just(longest)))
    seed = draw(st.integers(0, 3))
    return Visit(
        prompt=tuple((seed * 101 + place * (37 + seed)) % VOCAB for place in range(length)),
        sampling=draw(samplings),
        sample_index=draw(st.integers(0, 2)),
        arrives=arrives,
        leaves=None if leaves is None else arrives + leaves,
    )


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[Visit], dict[str, Any]]:
    block_size = draw(st.integers(1, 16))
    max_model_len = draw(st.sampled_from([90, 60, 120, 30, 9, 2]))
    fits = -(-max_model_len // block_size)
    blocks = draw(st.sampled_from([fits, 2 * fits, fits - 1, fits // 2, fits // 2 + 1, 3 * fits // 2, 7 * fits]))
    blocks = max(blocks, 1)
    longest = min(max_model_len - 1, blocks * block_size)
    options = {
        "block_size": block_size,
        "kv_blocks": blocks,
        "max_model_len": max_model_len,
        "max_num_seqs": draw(st.sampled_from([4, 2, 6, 3, 1])),
        "max_num_batched_tokens": draw(st.one_of(st.integers(1, 64), st.integers(1, 8))),
        "on_kv_exhausted": draw(st.sampled_from(list(OnExhausted))),
        "ring_bytes": draw(st.sampled_from([2048, 8192, 16384, 2 * 2**20])),
        "debug_level": draw(st.sampled_from([0, 2])),
        "prefix_cache": draw(st.booleans()),
        "checks": draw(st.booleans()),
    }
    return draw(st.lists(visits(longest), min_size=draw(st.integers(1, 5)), max_size=7)), options


@settings(max_examples=EXAMPLES, phases=PHASES)
@given(load=loads(), window=st.sampled_from([1, 2, 5, 32, 1000]), live=st.booleans())
def test_what_was_recorded_replays_without_a_difference(tiny, load, window, live):
    people, options = load
    with tempfile.TemporaryDirectory() as folder:
        played = play(tiny, Path(folder), people, **options)
        for dump in [*played.dumps[-1:], played.demand]:
            with open_dump(dump) as opened:
                opened.verify()
                state = opened.state
            note(f"{state.manifest.reason}: {len(state.steps)} steps from {[s.index for s in state.steps[:1]]}")
            assert [(f.rule, f.path, f.message) for f in validate(state)] == []
            reports = [
                replayed(dump, tiny, window=window),
                replayed(dump, None, target="schedule", schedule="live" if live else "recorded"),
            ]
            if live:
                reports.append(replayed(dump, tiny, window=window, schedule="live"))
            for report in reports:
                _agrees(report, state, small_ring=options["ring_bytes"] < SMALL_RING)
            assert reports[0]["signature"] == reports[1]["signature"] or not state.failures


def _agrees(report: dict[str, Any], state: pb.RuntimeState, *, small_ring: bool) -> None:
    assert report["divergence"] is None
    if small_ring and not state.steps:
        assert (report["verdict"], report["reason_code"]) == ("inconclusive", "steps-absent")
        return
    assert report["findings"] == []
    if report["target"] == "inference":
        assert report["mode"] == "strict"
        known = sum(r.num_output_tokens for r in state.requests if r.HasField("output_token_ids"))
        assert report["compared"]["tokens"] == known
    assert (report["verdict"], report["reason_code"]) == verdict_due(state)


def test_a_failure_behind_the_kept_steps_is_not_looked_for_in_them(tiny, tmp_path):
    """The last request's header is too long for this ring, and with it the newest steps have no start."""
    brief, long = SamplingParams(ignore_eos=True), SamplingParams(ignore_eos=True, stop=("zq" * 200,))
    people = [Visit(prompt=(5,), sampling=brief, arrives=step) for step in (0, 5)]
    people.append(Visit(prompt=(5,), sampling=long, arrives=10))
    played = play(tiny, tmp_path, people, kv_blocks=2, block_size=1, max_model_len=2, ring_bytes=2048)
    with open_dump(played.dumps[-1]) as dump:
        assert dump.state.failures[-1].step == dump.state.steps[-1].index + 1
    for options in ({"target": "schedule"}, {"model": str(tiny)}):
        report = run_job({"dump": str(played.dumps[-1]), **options}, lambda event: None)
        assert (report["verdict"], report["reason_code"]) == ("inconclusive", "steps-absent")


def test_a_step_too_large_for_the_ring_ends_the_record_before_it(tiny, tmp_path):
    """Its answers go on in the slab, and no kept step drew them."""
    greedy = SamplingParams(max_tokens=1, ignore_eos=True)
    people = [
        Visit(prompt=(5,) * 90, sampling=greedy),
        Visit(prompt=(6,) * 12, sampling=greedy),
        Visit(prompt=(7,) * 90, sampling=greedy, arrives=4),
    ]
    options = {"block_size": 1, "kv_blocks": 200, "max_model_len": 120, "max_num_seqs": 6}
    played = play(tiny, tmp_path, people, steps=14, max_num_batched_tokens=8, ring_bytes=1536, **options)
    with open_dump(played.demand) as dump:
        state = dump.state
    assert state.steps[0].index > 0
    assert "later steps are damaged" in {e.path: e.note for e in state.ledger}["scheduler.next_step"]
    for report in (replayed(played.demand, tiny), replayed(played.demand, None, target="schedule")):
        _agrees(report, state, small_ring=True)
