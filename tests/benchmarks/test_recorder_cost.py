"""What the flight recorder costs per step: 256 running requests, one token each.

    python -m pytest -m benchmark -s tests/benchmarks/test_recorder_cost.py

Prints times and asserts none, since machines differ. The goal is at most 100 us per step at p99. The same steps are
recorded several times: "as it was" is the time of all of them, "own cost" takes for each step its fastest run, which
leaves out what other processes on the machine took. About 1.3 requests end and arrive in every step.
"""

from __future__ import annotations

import gc
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dumps.record.recorder import FlightRecorder, KeyframeRecord, RecordLevel, StepEnd, StepStart
from tests.benchmarks.rows import Row
from tests.flight import identity, make_config

ROWS = 256
STEPS = 2000
RUNS = 5
BLOCK_SIZE = 16
PROMPT = list(range(100, 400))
LIFE = 200  # tokens that a request draws before it ends and another one takes its place
DECODE_STEP_NS = 20e6  # a fast decode step of 256 rows on one GPU; a CPU takes far longer


@dataclass
class Times:
    """Nanoseconds."""

    steps: list[int] = field(default_factory=list)
    keyframes: list[int] = field(default_factory=list)
    adds: list[int] = field(default_factory=list)


@pytest.mark.benchmark
@pytest.mark.parametrize("level", list(RecordLevel))
@pytest.mark.parametrize("digests", [False, True])
def test_cost_per_step(tmp_path, level, digests, measured):
    runs = [record(tmp_path / f"{run}.ring", level, digests) for run in range(RUNS)]
    own = [min(times) for times in zip(*(run.steps for run in runs), strict=True)]
    keyframes = [min(times) for times in zip(*(run.keyframes for run in runs), strict=True)]
    name = f"{level.value}{' + digests' if digests else ''}"
    wall = [time for run in runs for time in run.steps]
    measured(
        Row(
            what=f"recorder, {ROWS} requests, level {name}",
            target="p99 at most 100 us a step",
            measured=f"wall {_quantiles(wall)}; own cost {_quantiles(own)} us; keyframe {max(keyframes) / 1e3:.0f} us",
            values={
                "wall_p99_us": sorted(wall)[len(wall) * 99 // 100] / 1e3,
                "own_p99_us": sorted(own)[STEPS * 99 // 100] / 1e3,
                "share_of_20_ms": sorted(own)[STEPS * 99 // 100] / DECODE_STEP_NS,
                "add_request_us": min(sorted(run.adds)[len(run.adds) // 2] for run in runs) / 1e3,
            },
        )
    )


def record(path: Path, level: RecordLevel, digests: bool) -> Times:
    config = make_config(num_blocks=8192, block_size=BLOCK_SIZE, max_model_len=2048, max_num_seqs=ROWS)
    recorder = FlightRecorder(
        path, identity(config), level=level, slots=512, slot_tokens=2048, ring_bytes=8 << 20, slot_blocks=128
    )
    chance = random.Random(1)
    header: dict[str, Any] = {"id": "r", "arrival_ns": 1, "endpoint": "/v1/completions", "sampling": {"seed": 1}}
    header["prompt_text"] = "x" * 900
    serials = [recorder.add_request(header, PROMPT) for _ in range(ROWS)]
    lengths = [len(PROMPT) + chance.randrange(LIFE) for _ in range(ROWS)]
    times = Times()
    finished: list[tuple[int, str, str]] = []
    gc.disable()
    for index in range(STEPS):
        arrived = []
        for serial, _, _ in finished:
            row = serials.index(serial)
            begin = time.perf_counter_ns()
            serials[row] = recorder.add_request(header, PROMPT)
            times.adds.append(time.perf_counter_ns() - begin)
            lengths[row] = len(PROMPT)
            arrived.append(serials[row])
        finished = [(serials[row], "length", "max-tokens") for row in range(ROWS) if lengths[row] >= 300 + LIFE]
        start = StepStart(
            index,
            index,
            list(serials),
            list(lengths),
            [1] * ROWS,
            [(row, index % 8192) for row in range(ROWS) if lengths[row] % BLOCK_SIZE == 0],
            arrived=arrived,
            admitted=list(arrived),
        )
        drawn = [chance.randrange(49152) for _ in range(ROWS)]
        end = StepEnd(index, drawn, [chance.getrandbits(64) for _ in drawn] if digests else None, finished)
        begin = time.perf_counter_ns()
        recorder.begin_step(start)
        recorder.end_step(end)
        times.steps.append(time.perf_counter_ns() - begin)
        lengths = [length + 1 for length in lengths]
        if recorder.keyframe_due():
            frame = KeyframeRecord(
                index + 1, list(range(8192)), [(serial, 500, 200, list(range(32))) for serial in serials], []
            )
            begin = time.perf_counter_ns()
            recorder.keyframe(frame)
            times.keyframes.append(time.perf_counter_ns() - begin)
    gc.enable()
    recorder.close(clean=True)
    path.unlink()
    return times


def _quantiles(times: list[int]) -> str:
    ordered = [value / 1e3 for value in sorted(times)]
    return f"p50 {ordered[len(ordered) // 2]:.0f}, p99 {ordered[len(ordered) * 99 // 100]:.0f}, max {ordered[-1]:.0f}"
