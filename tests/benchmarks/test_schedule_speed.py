"""How fast the target schedule goes through a large incident: 64 requests, 100,000 tokens, no model.

    python -m pytest -m benchmark -s tests/benchmarks/test_schedule_speed.py

Makes a dump with the server's own recorder, scheduler and engine and a draw that costs nothing, in which the pool runs
empty at the end. Prints the time of each part, the fastest of several runs, and asserts no time, since machines differ.
The goal is less than one second from the opened dump to the verdict's facts. `opening` is what reads and seals take,
`checking` the validation that a job does; both are beside that goal and shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dumps.record.image import read_ring
from dumps.record.recorder import FlightRecorder, RecordLevel
from dumps.record.state import state_from_ring
from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from replay.engine.engine import Engine
from replay.engine.live import LiveScheduler
from replay.engine.request import Request, SamplingParams
from replay.engine.schedule import EngineConfig, OnExhausted, Sample, StepPlan
from replay.serving.hooks import RecorderHook
from replay.serving.jobs import Job
from replay.targets.admit import admit
from replay.targets.drive import Deadline
from replay.targets.expected import own_signature
from replay.targets.job import run_job
from replay.targets.rebuild import rebuild
from replay.targets.schedule import run_schedule
from replay.targets.settings import Overrides
from tests.benchmarks.rows import Row
from tests.flight import identity

REQUESTS, TOKENS = 64, 100_000
PROMPT = 500  # tokens of the first prompt; the next ones are longer, a block apart, and begin alike
RUNS = 5


class Draw:
    """A draw that depends on nothing but the position."""

    def execute(self, plan: StepPlan) -> dict[str, Sample]:
        return {c.request.id: Sample(c.request.num_tokens % 1000 + 10) for c in plan.chunks if c.samples}


def incident(folder: Path, *, prefix_cache: bool) -> Path:
    """Record until the pool is empty and a request is cut, at about `TOKENS` tokens."""
    config = EngineConfig(
        num_blocks=TOKENS // 16,
        block_size=16,
        max_model_len=4096,
        max_num_seqs=REQUESTS,
        max_num_batched_tokens=512,
        on_kv_exhausted=OnExhausted.TRUNCATE,
        prefix_cache=prefix_cache,
    )
    facts = identity(config)
    facts["engine"]["prefix_cache"] = prefix_cache
    scheduler = LiveScheduler(config)
    recorder = FlightRecorder(
        folder / "flight.ring",
        facts,
        level=RecordLevel.TOKENS,
        slots=2 * REQUESTS,
        slot_tokens=config.max_model_len,
        ring_bytes=64 * 2**20,
        slot_blocks=config.max_model_len // config.block_size,
    )
    hook = RecorderHook(recorder, scheduler, keep_text=False)
    engine = Engine(scheduler=scheduler, executor=Draw(), bytes_per_block=512, hooks=[hook])
    for number in range(REQUESTS):
        length = PROMPT + 16 * (number % 8) + number // 8
        prompt = [(place * 31) % 900 + (number if place >= 320 else 0) for place in range(length)]
        request = Request(id=f"r{number}", tokens=prompt, num_prompt=length, sampling=SamplingParams(ignore_eos=True))
        sink: asyncio.Queue[Any] = asyncio.Queue()
        hook.arrived(Job(request=request, choice=0, sink=sink, endpoint="", stream=False, arrival_ns=0))
        engine.add(request)
    while (outcome := engine.step()) is not None:
        if outcome.failures:
            break
    assert not hook.broken
    path = folder / "incident.pplx"
    write_dump(path, state_from_ring(read_ring(recorder.path), reason="silent-truncation"))
    recorder.close(clean=True)
    return path


def least(run: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs."""
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


@pytest.mark.benchmark
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_schedule_speed(tmp_path, prefix_cache, measured):
    path = incident(tmp_path, prefix_cache=prefix_cache)

    def opened() -> None:
        with open_dump(path) as dump:
            len(dump.state.steps)

    opening = least(opened)
    with open_dump(path) as dump:
        state = dump.state
        failure = own_signature(state)
        rebuilding = least(lambda: rebuild(state, Overrides()))
        results = []

        def replay() -> None:
            run = run_schedule(rebuild(state, Overrides()), failure=failure, deadline=Deadline(None), emit=ignore)
            results.append(run)

        whole = least(replay)
        checking = least(lambda: admit(state))
        tokens = sum(chunk.num_tokens for step in state.steps for chunk in step.scheduled)
        cached = sum(hit.num_tokens for step in state.steps for hit in step.prefix_hits)
        steps = len(state.steps)
    report = run_job({"dump": str(path), "target": "schedule"}, ignore)
    assert (report["verdict"], report["findings"]) == ("reproduced", [])
    assert results[-1].difference is None
    job = report["timings"]["total_s"]
    measured(
        Row(
            what=f"target schedule, {REQUESTS} requests, {tokens + cached:,} tokens, {steps} steps, prefix cache "
            f"{'on' if prefix_cache else 'off'}",
            target="under 1 s",
            measured=f"{whole:.2f} s ({steps / whole:,.0f} steps/s; with opening and validation {job:.2f} s)",
            values={
                "replay_s": whole,
                "rebuild_s": rebuilding,
                "opening_s": opening,
                "checking_s": checking,
                "job_s": job,
            },
        )
    )


def ignore(event: dict[str, Any]) -> None:
    """A place for progress to go."""
