"""Wall clock of a whole replay of a crash at token 4,000, with the model loaded.

The server serves one request with a prompt of 3,500 tokens from a pool of 4,000, which its answer exhausts, and writes
the dump. The replay opens that, computes the 3,968 tokens before the window, draws every token of the answer again,
steps the last 32 and reports.

At this length attention is more than half of the fast-forward (its operations grow with the square of the length, and
its kernel has a third of the linear layers' rate, see `test_fast_forward_speed.py`), and two fifths of a step: each
reads 4,000 keys and values, gathered from their blocks layer by layer.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import pytest
import torch

from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from replay.targets.host import Host
from replay.targets.job import run_job
from replay.targets.load import load_weights
from tests.benchmarks.rows import Row, fastest
from tests.mixing import random_tokens
from tests.recordings import record

TOKENS, PROMPT, BLOCK = 4000, 3500, 16
TARGET_S = 5.0

pytestmark = [pytest.mark.benchmark, pytest.mark.model]


def test_a_crash_at_token_4000(smollm2, tmp_path, measured):
    threads = torch.get_num_threads()
    recording = record(
        smollm2,
        tmp_path,
        [random_tokens(PROMPT, 40_000, seed=1)],
        sampling=SamplingParams(temperature=0.0, max_tokens=2 * TOKENS, ignore_eos=True),
        steps=TOKENS,
        kv_blocks=TOKENS // BLOCK,
        block_size=BLOCK,
        max_num_batched_tokens=512,
        on_kv_exhausted=OnExhausted.TRUNCATE,
        dtype="bfloat16",
        threads=threads,
    )
    (dump,) = recording.dumps
    loaded: dict[str, Any] = {}

    @cache
    def kept(folder: Any, arguments: str) -> Any:
        return load_weights(folder, **loaded)

    def load(folder: Any, **arguments: Any) -> Any:
        loaded.update(arguments)
        return kept(folder, repr(sorted(arguments.items())))

    reports: list[dict[str, Any]] = []

    def replay() -> None:
        job = {"dump": str(dump), "model": str(smollm2)}
        reports.append(run_job(job, lambda _: None, Host(clock=time.perf_counter, load=load)))

    replay()  # loads the model
    took = fastest({"replay": replay}, rounds=3)["replay"]
    report = reports[-1]
    assert (report["verdict"], report["mode"]) == ("reproduced", "strict")
    assert report["compared"]["fast_forwarded_tokens"] >= TOKENS - 64
    parts = ", ".join(f"{name[:-2]} {report['timings'][name]:.2f}" for name in ("fast_forward_s", "step_s"))
    measured(
        Row(
            what=f"a {TOKENS}-token crash, model loaded, bfloat16",
            target=f"under {TARGET_S:.0f} s of wall clock",
            measured=f"{took:.2f} s ({parts})",
            values={"seconds": took},
        )
    )
