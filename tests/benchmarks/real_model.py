"""SmolLM2 for the benchmarks: ours, transformers' own, and runners with room for a number of tokens."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

from replay.engine.fast_forward import fast_forward
from replay.engine.kv_store import DTYPES
from replay.engine.loaded import LoadedModel
from replay.engine.request import Request
from replay.engine.runner import ModelRunner
from replay.engine.weights import load_model
from tests.mixing import make_request, random_tokens

BLOCK = 16
PROMPT = 16
"""Tokens of a prompt; the rest of a request is its answer."""


@cache
def ours(folder: Path, dtype: str) -> LoadedModel:
    return load_model(folder, dtype=dtype)


@cache
def stock(folder: Path, dtype: str) -> Any:
    """transformers' model with its default attention."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], local_files_only=True).eval()


class FastForward:
    """Fast-forwards of one request of `count` tokens, again and again into the same cache."""

    def __init__(self, model: LoadedModel, count: int) -> None:
        blocks = -(-count // BLOCK)
        self.count = count
        self.runner = ModelRunner(model, model.kv_store(num_blocks=blocks, block_size=BLOCK))
        self.request: Request = make_request(
            random_tokens(count, model.vocab_size, seed=1), range(blocks), num_prompt=PROMPT
        )

    def run(self) -> None:
        """Keys and values only, as for a request that is not drawn again."""
        fast_forward(self.runner, self.request, self.count)

    def run_drawing(self) -> None:
        """And every token of the answer drawn again, as a replay compares it."""
        fast_forward(self.runner, self.request, self.count, check_from=PROMPT)


def stock_prefill(model: Any, tokens: list[int], *, chunk: int) -> None:
    """transformers' own chunked prefill, without the output head, into a new cache of its own."""
    from transformers import DynamicCache

    ids = torch.tensor([tokens])
    kept = DynamicCache(config=model.config)
    name = "cache" if "cache" in model.model.forward.__code__.co_varnames else "past_key_values"
    with torch.inference_mode():
        for first in range(0, len(tokens), chunk):
            model.model(input_ids=ids[:, first : first + chunk], use_cache=True, **{name: kept})
