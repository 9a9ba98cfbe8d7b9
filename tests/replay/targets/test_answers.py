"""Every answer token on record is drawn again once, wherever the window begins."""

from __future__ import annotations

from typing import Any

from dumps.schema.reader import open_dump
from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from tests.job_replays import replayed
from tests.plays import Visit, play


def test_a_request_that_is_computed_again_when_the_window_begins_is_compared_whole(tiny, tmp_path):
    """Preempted with answer tokens, it comes back in chunks; those of the window draw its last one only."""
    greedy = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    people = [Visit(prompt=(5,) * 4, sampling=greedy), Visit(prompt=(9,) * 4, sampling=greedy)]
    options: dict[str, Any] = {
        "kv_blocks": 10,
        "block_size": 2,
        "max_model_len": 20,
        "on_kv_exhausted": OnExhausted.PREEMPT,
    }
    played = play(tiny, tmp_path, people, max_num_batched_tokens=4, **options)
    with open_dump(played.demand) as dump:
        state = dump.state
    again = [
        step.index
        for step in state.steps
        for chunk in step.scheduled
        if not chunk.sampled and chunk.start > 0 and step.index > 4
    ]
    assert again, "nothing was computed again in several chunks"
    last = state.steps[-1].index
    for window in sorted({1, last + 1, *(last + 1 - step for step in again)}):
        report = replayed(played.demand, model=tiny, window=window)
        assert report["compared"]["tokens"] == 24, f"the window begins at step {last + 1 - window}; again: {again}"
        assert report["divergence"] is None
