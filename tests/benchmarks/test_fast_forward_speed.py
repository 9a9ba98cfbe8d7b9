"""How fast known tokens are computed, exact: beside transformers' own chunked prefill, and beside the floor.

The peer computes the same 1,500 tokens in the same dtype and process, in chunks of 256 and of 512, of which the faster
counts; it has no exactness and no paged cache. The floor is what the multiply-adds take at the rate of the model's
widest product at 512 rows, measured in the same run: all linear layers but the output head, and causal attention
without its softmax.

What stands between: torch's attention kernel. It computes the products over keys in blocks of 32 or 64 queries, and
takes exponentials between them, at 60-75 GFLOP/s a core in bfloat16 where the linear layers reach 210; with 1,500
tokens that is two fifths of the time. Tried, all with the same bits: one call for a whole chunk instead of tiles of 16
queries (12-20 % of attention), padding keys to 192 and 384 instead of 512 (10 %), tiles of 256 queries (no more than 64
gives), keys gathered contiguously per head (1-4 %, less than the copy costs), gate and up projections fused (nothing at
256 rows). Without a mask the kernel is 10 % faster, but then it is causal from position 0 only. Products and softmax as
calls of their own have half its speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from replay.engine.kernels.exact import KERNELS, packing_available
from replay.engine.kv_store import DTYPES
from tests.benchmarks.real_model import FastForward, ours, stock, stock_prefill
from tests.benchmarks.rows import Row, fastest

TOKENS = 1500
ROUNDS = 5
TARGETS = {"float32": 1.0, "bfloat16": 1.15}
FLOOR_TARGET = 2.0

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning"),
]


@pytest.mark.parametrize("dtype", list(TARGETS))
def test_fast_forward_against_stock_prefill_and_floor(smollm2, measured, dtype):
    found = measure(smollm2, dtype)
    against = f"fast-forward of {TOKENS} tokens, exact, {dtype}"
    ratio, floor = found["ours"] / found["stock"], found["ours"] / found["floor"]
    measured(
        Row(
            what=f"{against}, vs transformers' chunked prefill",
            target=f"at most {TARGETS[dtype]:.2f}x",
            measured=f"{ratio:.2f}x ({found['ours']:.2f} s against {found['stock']:.2f} s)",
            values={"ratio": ratio, **found},
        )
    )
    measured(
        Row(
            what=f"{against}, vs its multiply-adds at the matmul rate",
            target=f"within {FLOOR_TARGET:.1f}x",
            measured=f"{floor:.2f}x (floor {found['floor']:.2f} s at {found['gflops']:.0f} GFLOP/s)",
            values={"ratio": floor, **found},
        )
    )
    measured(
        Row(
            what=f"{against}, every token drawn again",
            target="-",
            measured=f"{found['drawing'] / found['ours']:.2f}x of without ({found['drawing']:.2f} s)",
            values={"ratio": found["drawing"] / found["ours"]},
        )
    )


def measure(folder: Path, dtype: str) -> dict[str, float]:
    """Seconds of ours, of the peer and of the floor, and the rate behind the floor."""
    peer, mine = stock(folder, dtype), FastForward(ours(folder, dtype), TOKENS)
    tokens = mine.request.tokens
    product = _product(peer.config, dtype)
    rate = 0.0

    def one_product() -> None:
        nonlocal rate
        rate = max(rate, product())

    times = fastest(
        {
            "ours": mine.run,
            "stock 256": lambda: stock_prefill(peer, tokens, chunk=256),
            "stock 512": lambda: stock_prefill(peer, tokens, chunk=512),
            "drawing": mine.run_drawing,
            "rate": one_product,
        },
        rounds=ROUNDS,
    )
    return {
        "ours": times["ours"],
        "drawing": times["drawing"],
        "stock": min(times["stock 256"], times["stock 512"]),
        "floor": operations(peer.config, TOKENS) / rate,
        "gflops": rate / 1e9,
    }


def operations(config: Any, tokens: int) -> float:
    """Floating-point operations of the layers for so many tokens, two for each multiply-add."""
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    dim = config.head_dim
    linear = 2 * heads * dim * hidden + 2 * config.num_key_value_heads * dim * hidden + 3 * hidden * inner
    attention = 2 * heads * dim * (tokens + 1) / 2
    return float(2 * config.num_hidden_layers * tokens * (linear + attention))


def _product(config: Any, dtype: str) -> Callable[[], float]:
    """A function that gives the rate of some products [512, hidden] x [hidden, inner], in operations a second."""
    rows = torch.randn(512, config.hidden_size).to(DTYPES[dtype])
    weight = torch.randn(config.intermediate_size, config.hidden_size).to(DTYPES[dtype])
    linear = KERNELS["packed" if packing_available() else "plain"](weight, None)

    operations_a_call = 2.0 * 512 * int(config.hidden_size) * int(config.intermediate_size)

    def rate() -> float:
        best = float("inf")
        with torch.inference_mode():
            for _ in range(20):
                began = time.perf_counter()
                linear(rows)
                best = min(best, time.perf_counter() - began)
        return operations_a_call / best

    return rate
