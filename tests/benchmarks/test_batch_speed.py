"""Sixteen dumps in one batch against the same dumps one by one, on the real model.

    python -m pytest -m benchmark -s tests/benchmarks/test_batch_speed.py

Two ways of one by one: a ``pplx-replay run`` for each against one ``pplx-replay batch`` of all, both with everything
that belongs to a command; and in this process, with the model loaded once for either, where only the packing of steps
is left. Measures both ratios and the parts of the latter, minima of runs in turns, in wall-clock time and in processor
time, which is what counts on a machine with other work. Asserts that every report is the same but for its timings, and
no time, since machines differ. The goal is 3. `commands` and `in_process` give the numbers.

The dumps are real recordings: chats fill a small KV pool until one of them is cut. Packing makes the 32 steps of the
window cheap, and does little for the fast-forward to it: so the ratio falls with the length of what lies before the
window. The cases show both ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from replay.isolate.worker import error_event
from replay.targets import batch_model
from replay.targets.batch import run_batch
from replay.targets.host import Host
from replay.targets.job import run_job
from replay.targets.load import load_weights
from tests.benchmarks.rows import Row
from tests.mixing import random_tokens
from tests.recordings import make_server, record
from tests.reports import without_times
from tests.threads import torch_threads

DUMPS = 16
BLOCK = 16
RUNS = 2
PARTS = ("fast_forward_s", "step_s")
GOAL = 3

Report = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """``chats`` requests of about ``prompt`` tokens, in a pool of ``blocks``."""

    name: str
    chats: int
    prompt: int
    blocks: int


CASES = (
    Case("one chat of 113 tokens each", 1, 45, 7),
    Case("three chats of 160 tokens each", 3, 70, 31),
    Case("one chat of 510 tokens each", 1, 440, 32),
)


@dataclass
class Times:
    """Seconds, minima. ``parts`` sums those of the reports."""

    wall: float = float("inf")
    processor: float = float("inf")
    parts: dict[str, float] = field(default_factory=dict)

    def take(self, work: Callable[[], list[Report]]) -> list[Report]:
        wall, processor = time.perf_counter(), time.process_time()
        reports = work()
        spent = time.perf_counter() - wall
        if spent < self.wall:
            self.wall = spent
            self.parts = {part: sum(report["timings"][part] for report in reports) for part in PARTS}
        self.processor = min(self.processor, time.process_time() - processor)
        return reports


def make_dumps(model: Path, folder: Path, case: Case, *, dtype: str) -> list[str]:
    server = make_server(
        model,
        folder,
        dtype=dtype,
        kv_blocks=case.blocks,
        block_size=BLOCK,
        max_num_batched_tokens=512,
        max_num_seqs=8,
        on_kv_exhausted=OnExhausted.TRUNCATE,
    )
    dumps = []
    for index in range(DUMPS):
        prompts = [random_tokens(case.prompt + 3 * chat, 40_000, seed=100 * index + chat) for chat in range(case.chats)]
        sampling = SamplingParams(temperature=0.7 * (index % 2), seed=index, ignore_eos=True)
        recording = record(model, folder, prompts, sampling=sampling, server=server)
        recording.session.close()
        dumps.append(str(recording.dumps[0]))
    return dumps


def in_process(model: Path, dumps: list[str], *, runs: int = RUNS) -> tuple[Times, Times]:
    """Times one by one, and in a batch. The model is loaded before, for both of them."""
    loaded: dict[tuple[Any, ...], Any] = {}

    def load(folder: Path, **options: Any) -> Any:
        key = (folder, *sorted(options.items()))
        if key not in loaded:
            loaded[key] = load_weights(folder, **options)
        return loaded[key]

    def one_by_one() -> list[Report]:
        return [run_job({"dump": dump, "model": str(model)}, lambda _: None, Host(load=load)) for dump in dumps]

    def together() -> list[Report]:
        ended: dict[int, Report] = {}

        def emit(event: dict[str, Any]) -> None:
            if event["event"] == "item" and event["state"] != "begun":
                ended[event["index"]] = event["report"]

        run_batch({"dumps": dumps, "model": str(model)}, emit, error_event=error_event)
        return [ended[index] for index in range(len(dumps))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_model, "load_weights", load)
        run_job({"dump": dumps[0], "model": str(model)}, lambda _: None, Host(load=load))
        alone, batch = Times(), Times()
        for _ in range(runs):
            assert _same(alone.take(one_by_one), batch.take(together))
    return alone, batch


def commands(model: Path, dumps: list[str]) -> tuple[float, float]:
    """Wall-clock seconds of a ``run`` for each dump, and of one ``batch``."""

    def command(*arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "replay.cli", "replay", *arguments, "--model", str(model), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        return json.loads(done.stdout)

    began = time.perf_counter()
    alone = [command("run", dump) for dump in dumps]
    between = time.perf_counter()
    batch = command("batch", *dumps)
    ended = time.perf_counter()
    assert _same(alone, [entry["report"] for entry in batch["dumps"]])
    return between - began, ended - between


def _same(some: list[Report], others: list[Report]) -> bool:
    return [*map(without_times, some)] == [*map(without_times, others)] and all(
        report["verdict"] == "reproduced" for report in some
    )


@pytest.fixture(autouse=True)
def one_thread():
    with torch_threads(1):
        yield


@pytest.mark.benchmark
@pytest.mark.model
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_batch_against_one_by_one(smollm2, tmp_path, measured, case, dtype):
    dumps = make_dumps(smollm2, tmp_path, case, dtype=dtype)
    alone, batch = in_process(smollm2, dumps)
    parts = ", ".join(f"{part.removesuffix('_s')} {alone.parts[part] / batch.parts[part]:.1f}x" for part in PARTS)
    what = f"{DUMPS} dumps in a batch vs one by one: {case.name}, {dtype}"
    target = f"at least {GOAL}x faster"
    measured(
        Row(
            what=f"{what}, model loaded",
            target=target,
            measured=f"{alone.wall / batch.wall:.1f}x ({batch.wall:.1f} s against {alone.wall:.1f} s; {parts})",
            values={"ratio": alone.wall / batch.wall, "processor_ratio": alone.processor / batch.processor},
        )
    )
    if case is CASES[0] and dtype == "bfloat16":
        each, together = commands(smollm2, dumps)
        found = f"{each / together:.1f}x ({together:.0f} s against {each:.0f} s)"
        measured(Row(what=f"{what}, as commands", target=target, measured=found, values={"ratio": each / together}))
