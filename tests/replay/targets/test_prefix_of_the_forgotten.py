"""Prefixes of requests whose token ids the recorder had to give up: what hit them is known, what they were is not."""

from __future__ import annotations

from pathlib import Path

from dumps.schema.reader import open_dump
from replay.targets.job import run_job
from tests.recordings import dump_now, record

PREFIX = [7 * i % 300 + 4 for i in range(16)]
VISITS = 40  # more than the recorder has places for


def forgetful(tiny: Path, folder: Path, *quirks: str) -> Path:
    """A dump that holds hits on blocks which requests wrote whose token ids are gone."""
    prompts = [[*PREFIX, 4 + index] for index in range(VISITS)]
    recording = record(
        tiny,
        folder,
        prompts,
        arrivals=[3 * index for index in range(VISITS)],
        limits=[2] * VISITS,
        kv_blocks=16,
        block_size=4,
        max_num_seqs=1,
        prefix_cache=True,
        checks=True,
        quirks=quirks,
    )
    dump = dump_now(recording)
    return dump


def test_hits_on_their_blocks_are_no_contamination(tiny, tmp_path):
    dump = forgetful(tiny, tmp_path)
    report = run_job({"dump": str(dump), "target": "schedule"}, lambda event: None)
    with open_dump(dump) as opened:
        forgotten = [one.id for one in opened.state.requests if not one.prompt_token_ids]
    assert forgotten, "nothing was forgotten, so this shows nothing"
    assert [one for one in report["findings"] if "not written" in one["message"]] == []
    assert report["failure"] is None


def test_where_requests_read_what_others_left_no_step_is_computed_without_those_before(tiny, tmp_path):
    dump = forgetful(tiny, tmp_path, "prefix-leak")
    report = run_job({"dump": str(dump), "model": str(tiny)}, lambda event: None)
    assert "tokens-absent" in [one["code"] for one in report["findings"]]
    assert report["compared"]["window_steps"] == 0
