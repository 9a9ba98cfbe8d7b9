"""Perplexity in the report: of the recorded answers, under the model that replays them."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from dumps.tensors import from_le32
from replay.cli.report_view import show
from replay.engine.perplexity import IGNORE_INDEX, loss
from replay.engine.request import SamplingParams
from replay.targets.job import run_job
from tests.peer import stock_logits, stock_model
from tests.recordings import dump_now, record

PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [40, 41, 42]]


@pytest.fixture(scope="module")
def dump(tiny, tmp_path_factory) -> Path:
    """Answers drawn with noise, so that their tokens are not the likeliest; the third request is still running."""
    sampling = SamplingParams(temperature=1.0, seed=3, ignore_eos=True, repetition_penalty=1.2)
    folder = tmp_path_factory.mktemp("dump")
    recording = record(tiny, folder, PROMPTS, limits=[9, 12, 60], steps=30, sampling=sampling, kv_blocks=64)
    path = dump_now(recording)
    recording.session.close()
    return path


def replayed(path: Path, **options: Any) -> dict[str, Any]:
    return run_job({"dump": str(path), **options}, lambda _: None)


def test_it_is_transformers_loss_of_the_recorded_answers_alone(dump, tiny):
    report = replayed(dump, model=str(tiny))
    peer = stock_model(tiny)
    total, count = 0.0, 0
    with open_dump(dump) as opened:
        for request, entry in zip(opened.state.requests, report["requests"], strict=True):
            prompt, output = from_le32(request.prompt_token_ids), from_le32(request.output_token_ids)
            labels = np.array([IGNORE_INDEX] * len(prompt) + list(output))
            mean = loss(stock_logits(peer, [*prompt, *output]), labels)
            assert entry["perplexity"] == pytest.approx(math.exp(mean), rel=1e-3)
            total, count = total + mean * len(output), count + len(output)
    assert report["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-3)
    assert report["compared"]["tokens"] == count
    assert report["perplexity"] > 1.5, "greedy answers would not tell these numbers from 1"


def test_it_does_not_depend_on_which_tokens_the_window_draws(dump, tiny):
    values = [replayed(dump, model=str(tiny), window=window) for window in (1, 7, 100)]
    assert len({report["perplexity"] for report in values}) == 1
    assert len({tuple(r["perplexity"] for r in report["requests"]) for report in values}) == 1


def test_fed_tokens_count_as_well(dump, tiny, tmp_path):
    with open_dump(dump) as opened:
        state = pb.RuntimeState()
        state.CopyFrom(opened.state)
    state.manifest.platform_fingerprint = "0" * 64
    write_dump(tmp_path / "elsewhere.pplx", state)
    forced = replayed(tmp_path / "elsewhere.pplx", model=str(tiny))
    assert (forced["mode"], forced["compared"]["tokens"]) == ("forced", 0)
    assert forced["compared"]["not_compared"] > 0
    assert forced["perplexity"] == replayed(dump, model=str(tiny))["perplexity"]


def test_it_is_null_where_no_recorded_token_met_the_model(dump, tiny):
    for report in (
        replayed(dump, target="schedule"),
        replayed(dump, model=str(tiny), set={"sampling.temperature": 0.0}),
    ):
        assert report["perplexity"] is None
        assert [request["perplexity"] for request in report["requests"]] == [None] * 3


def test_people_see_it_when_it_is_known(dump, tiny):
    def shown(report: dict[str, Any]) -> str:
        text = io.StringIO()
        show(Console(file=text, width=200), report)
        return text.getvalue()

    report = replayed(dump, model=str(tiny))
    assert f"{report['perplexity']:.4g} of the recorded answers, under this model" in shown(report)
    assert "perplexity" not in shown(replayed(dump, target="schedule"))
