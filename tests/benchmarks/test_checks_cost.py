"""What the checks cost of a replay: time with them over time without, one after the other in the same process.

    python -m pytest -m benchmark -s tests/benchmarks/test_checks_cost.py

Prints the share of processor time, from the fastest of several runs of each kind; asserts none, since machines differ.
The goal is less than 25 % of replay time. Loading the model does not count: both have the same.
`checks_share` gives the number for one dump.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replay.engine.request import SamplingParams
from replay.targets.host import Host
from replay.targets.job import run_job
from replay.targets.load import load_weights
from tests.benchmarks.rows import Row
from tests.benchmarks.test_schedule_speed import incident
from tests.plays import Visit, play
from tests.tiny import make_tiny_model

RUNS = 5


def checks_share(dump: Path, *, runs: int = RUNS, **options: Any) -> float:
    """(time with checks - time without) / time with checks, of a whole job from the opened dump to its report, without
    loading a model."""
    host = Host(clock=time.process_time, load=loaded_once())
    least = {"on": float("inf"), "off": float("inf")}
    for _ in range(runs):
        for checks in least:
            report = run_job({"dump": str(dump), "checks": checks, **options}, lambda event: None, host)
            least[checks] = min(least[checks], report["timings"]["total_s"] - report["timings"]["load_s"])
    return (least["on"] - least["off"]) / least["on"]


def loaded_once() -> Callable[..., Any]:
    kept: dict[str, Any] = {}

    def load(folder: Path, **arguments: Any) -> Any:
        key = f"{folder} {sorted(arguments.items())}"
        if key not in kept:
            kept[key] = load_weights(folder, **arguments)
        return kept[key]

    return load


def load_of(people: int, prompt: int, limit: int) -> list[Visit]:
    """Requests that share a third of their prompt, so that a prefix cache has work."""
    sampling = SamplingParams(temperature=0.0, max_tokens=limit, ignore_eos=True)
    return [
        Visit(
            prompt=tuple((place * 37 + (number if place > prompt // 3 else 0)) % 300 for place in range(prompt)),
            sampling=sampling,
            arrives=2 * number,
        )
        for number in range(people)
    ]


@pytest.mark.benchmark
@pytest.mark.parametrize("window", [32, 100_000])
def test_checks_cost_on_a_tiny_model(tmp_path, measured, window):
    model = make_tiny_model(tmp_path / "model")
    played = play(model, tmp_path, load_of(16, 90, 100), steps=400, prefix_cache=True, kv_blocks=300, block_size=16)
    share = checks_share(played.demand, model=str(model), window=window)
    measured(_row(f"tiny model, window {window}", share))


@pytest.mark.benchmark
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_checks_cost_without_a_model(tmp_path, measured, prefix_cache):
    share = checks_share(incident(tmp_path, prefix_cache=prefix_cache), target="schedule")
    cache = "with" if prefix_cache else "without"
    measured(_row(f"target schedule, 64 requests, 100,000 tokens, {cache} prefix cache", share))


@pytest.mark.benchmark
@pytest.mark.model
def test_checks_cost_on_smollm2(smollm2, tmp_path, measured):
    played = play(smollm2, tmp_path, load_of(6, 300, 40), steps=200, prefix_cache=True, kv_blocks=300, block_size=16)
    share = checks_share(played.demand, runs=2, window=1000, model=str(smollm2))
    measured(_row("SmolLM2, all steps", share))


def _row(case: str, share: float) -> Row:
    return Row(
        what=f"checks, share of replay time: {case}",
        target="under 25 %",
        measured=f"{100 * share:.1f} %",
        values={"share": share},
    )
