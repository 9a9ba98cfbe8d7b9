"""What recording takes of a decode step at each `PPLX_DEBUG` level: eight requests on SmolLM2, one token each.

    python -m pytest -m benchmark -s tests/benchmarks/test_debug_levels.py

Four sessions, one a level, take their steps in turns. Of each step the time outside the model's executor is counted:
scheduling, stop checks and the recorder. What a level adds inside it, such as the digests of logits from level 2 on,
shows in the time of a whole step beside that of level 0. `test_recorder_cost.py` has the recorder alone, at 256
requests.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from replay.engine.request import Request, SamplingParams
from replay.engine.schedule import Sample, StepPlan
from replay.serving.main import _set_up_logging
from tests.benchmarks.rows import Row
from tests.mixing import random_tokens
from tests.recordings import _job, make_server

LEVELS = (0, 1, 2, 3)
REQUESTS, PROMPT, STEPS = 8, 100, 60

pytestmark = [pytest.mark.benchmark, pytest.mark.model]


class _Timed:
    """An executor, and how long it took in all."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.seconds = 0.0

    def execute(self, plan: StepPlan) -> dict[str, Sample]:
        began = time.perf_counter()
        result: dict[str, Sample] = self._executor.execute(plan)
        self.seconds += time.perf_counter() - began
        return result


def open_session(model: Path, folder: Path, level: int) -> tuple[Any, _Timed]:
    """A session at a debug level whose requests have been prefilled."""
    server = make_server(model, folder, dtype="bfloat16", debug_level=level, max_num_batched_tokens=1024, threads=0)
    session = server.sessions().open()
    for index in range(REQUESTS):
        tokens = random_tokens(PROMPT, 40_000, seed=index)
        sampling = SamplingParams(temperature=0.0, max_tokens=10 * STEPS, ignore_eos=True)
        session.add(_job(Request(id=f"r{index}", tokens=tokens, num_prompt=PROMPT, sampling=sampling)))
    session.engine.step()
    timed = _Timed(session.engine.executor)
    session.engine.executor = timed
    return session.engine, timed


def test_share_of_decode_time(smollm2, tmp_path, measured):
    sessions = {level: open_session(smollm2, tmp_path / str(level), level) for level in LEVELS}
    outside: dict[int, list[float]] = {level: [] for level in LEVELS}
    whole: dict[int, list[float]] = {level: [] for level in LEVELS}
    for _ in range(STEPS):
        for level, (engine, timed) in sessions.items():
            _set_up_logging(level)  # of the process, not of a session
            timed.seconds = 0.0
            began = time.perf_counter()
            outcome = engine.step()
            took = time.perf_counter() - began
            assert outcome is not None
            assert not outcome.failures
            whole[level].append(took)
            outside[level].append(took - timed.seconds)
    base = min(whole[0])
    for level in LEVELS:
        share = statistics.median(outside[level]) / statistics.median(whole[level])
        slower = min(whole[level]) / base
        measured(
            Row(
                what=f"recording at PPLX_DEBUG={level}, {REQUESTS} requests decoding",
                target="-",
                measured=f"{share:.2%} of a step outside the model; a step {slower:.3f}x of level 0's",
                values={"share": share, "ratio": slower, "step_s": min(whole[level])},
            )
        )
