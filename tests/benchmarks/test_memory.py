"""Peak memory of a fast-forward of 4,000 tokens beyond weights and KV cache.

A process of its own imports what it needs, loads the model, touches its cache of 4,000 tokens and computes a few. Then
the kernel's high-water mark of its memory is reset, and read again after a fast-forward that draws every token again.
What counts is that mark less the imports, the weights once (by their number and type) and the cache. Part of it
is there before: SmolLM2's output head is its embedding, and the packed product has a copy of its own.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.benchmarks.rows import Row

TOKENS = 4000
TARGET_MB = 300

PROGRAM = """
import ctypes, sys
from pathlib import Path
import transformers.models.llama.modeling_llama
from replay.engine.fast_forward import fast_forward
from tests.benchmarks.real_model import PROMPT, FastForward, ours

def status(name):
    ctypes.CDLL(None).malloc_trim(0)  # what the C library keeps of freed memory is nobody's
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024

imports = status("VmRSS")
forward = FastForward(ours(Path(sys.argv[1]), sys.argv[2]), int(sys.argv[3]))
kv = forward.runner.kv
kv.fill_blocks(range(kv.num_blocks), 0.0)
fast_forward(forward.runner, forward.request, 32, check_from=PROMPT)
loaded = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
forward.run_drawing()
peak = status("VmHWM")
rest = imports + int(sys.argv[4]) * kv.data.element_size() + kv.data.nbytes
print((peak - rest) / 1e6, (loaded - rest) / 1e6)
"""


@pytest.mark.benchmark
@pytest.mark.model
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's high-water mark")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_peak_memory(smollm2, measured, dtype):
    root = Path(__file__).resolve().parents[2]
    with safe_open(smollm2 / "model.safetensors", framework="numpy") as file:
        numbers = sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(smollm2), dtype, str(TOKENS), str(numbers)],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    peak, before = map(float, ran.stdout.split()[-2:])
    measured(
        Row(
            what=f"peak memory beyond weights + KV, {TOKENS} tokens, {dtype}",
            target=f"at most {TARGET_MB} MB",
            measured=f"{peak:.0f} MB, {before:.0f} of it before the fast-forward",
            values={"mb": peak, "before_mb": before},
        )
    )
