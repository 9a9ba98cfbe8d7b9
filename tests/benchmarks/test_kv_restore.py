"""What it costs to get 1,500 tokens of KV back: from a dump's contents, or by computing them again.

    python -m pytest -m benchmark -s tests/benchmarks/test_kv_restore.py

Both in one process on the real model, in turns, warm: the dump is in the page cache and the caches were written before.
Restoring opens the dump, verifies every byte that it uses, copies the blocks into the cache and stamps them. Computing
is the fast-forward, without drawing the answer. Prints the ratio of the minima and the size of the dump.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dumps.schema.reader import open_dump
from replay.engine.fast_forward import fast_forward
from replay.engine.request import SamplingParams
from replay.engine.runner import ModelRunner
from replay.engine.weights import load_model
from replay.targets.kv_restore import KvRestore
from replay.targets.rebuild import rebuild
from replay.targets.settings import Overrides
from tests.benchmarks.rows import Row
from tests.led import led_to
from tests.mixing import random_tokens
from tests.recordings import dump_now, record

TOKENS = 1500
BLOCK = 16
TARGET = 50
RUNS = 3


def measure(model_folder: Path, folder: Path, *, dtype: str, quant_bits: int = 0, runs: int = RUNS) -> dict[str, Any]:
    """Minima in seconds of restoring and of computing, their ratio, and the sizes of contents and dump in bytes."""
    threads = torch.get_num_threads()
    recording = record(
        model_folder,
        folder,
        [random_tokens(TOKENS - 8, 40_000, seed=1)],
        sampling=SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True),
        steps=TOKENS // 256 + 9,
        kv_blocks=TOKENS // BLOCK + 4,
        block_size=BLOCK,
        max_num_batched_tokens=256,
        record_kv="live",
        dtype=dtype,
        kv_quant_bits=quant_bits,
        threads=threads,
    )
    began = time.perf_counter()
    path = dump_now(recording)
    dump_s = time.perf_counter() - began
    model = load_model(model_folder, dtype=dtype)
    with open_dump(path) as dump:
        rebuilt = rebuild(dump.state, Overrides())
    last = rebuilt.steps[-1].index
    scheduler = led_to(rebuilt, last)
    (request,) = scheduler.running

    def cache() -> ModelRunner:
        kv = model.kv_store(num_blocks=rebuilt.config.num_blocks, block_size=BLOCK, quant_bits=quant_bits)
        kv.fill_blocks(range(kv.num_blocks), 0.0)  # its pages are there
        return ModelRunner(model, kv)

    computed, restored = cache(), cache()

    def restore() -> None:
        with open_dump(path) as dump:
            contents = KvRestore(dump, rebuilt, restored.kv, following=True)
            plan = contents.plan(scheduler.running, at_failure=True)
            contents.lay_over(scheduler.running, restored=plan.restored, before=last, strict=True)
            assert (plan.restored, plan.computed) == ([request], [])

    def compute() -> None:
        fast_forward(computed, request, request.num_computed)

    times: dict[str, list[float]] = {"restore": [], "compute": []}
    for _ in range(runs):
        times["restore"].append(_timed(restore))
        times["compute"].append(_timed(compute))
    full = request.num_computed // BLOCK
    ours, theirs = (runner.kv.read_blocks(request.blocks[:full]).tobytes() for runner in (restored, computed))
    assert ours == theirs
    assert request.num_computed >= TOKENS - 1
    with open_dump(path) as dump:
        contents_bytes = sum(section.raw_size for section in dump.sections)
    return {
        "tokens": request.num_computed,
        "restore_s": min(times["restore"]),
        "compute_s": min(times["compute"]),
        "ratio": min(times["compute"]) / min(times["restore"]),
        "contents_bytes": contents_bytes,
        "dump_bytes": path.stat().st_size,
        "dump_s": dump_s,
    }


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@pytest.mark.benchmark
@pytest.mark.model
@pytest.mark.parametrize(("dtype", "quant_bits"), [("float32", 0), ("bfloat16", 0), ("bfloat16", 8)])
def test_restoring_is_faster_than_computing(smollm2, tmp_path, measured, dtype, quant_bits):
    found = measure(smollm2, tmp_path, dtype=dtype, quant_bits=quant_bits)
    name = f"{dtype}, int8 KV" if quant_bits else dtype
    measured(
        Row(
            what=f"KV restore vs recompute, {found['tokens']} tokens, warm, {name}",
            target=f"at least {TARGET}x faster",
            measured=f"{found['ratio']:.0f}x ({found['restore_s'] * 1e3:.0f} ms against {found['compute_s']:.2f} s; "
            f"{found['contents_bytes'] / 1e6:.1f} MB)",
            values=found,
        )
    )
