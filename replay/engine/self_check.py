"""Compares our forward pass with transformers' own, for a model that is not on the tested list."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from replay.engine.attention import Placed
from replay.engine.loaded import LoadedModel
from replay.engine.request import Request, SamplingParams
from replay.engine.runner import forward
from replay.engine.schedule import Chunk
from replay.errors import UnsupportedModel

TOKENS = 24
CUT = 15
"""The tokens come in two chunks, so that the second one reads keys and values back from the paged cache."""

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
"""Largest difference that counts as rounding, as a part of the largest logit."""


def require_same_as_transformers(whole: Any, loaded: LoadedModel) -> None:
    """Raise `UnsupportedModel` unless `loaded` computes the logits that its causal language model `whole` does.

    On 24 tokens: what begins further on, such as a window or a chunk of attention, is not seen here.
    """
    ids = [int(token) for token in np.random.PCG64(7).random_raw(TOKENS) % loaded.vocab_size]
    try:
        with torch.inference_mode():
            ours, theirs = _ours(loaded, ids), _theirs(whole, ids)
    except Exception as error:  # model code that does not fit our attention fails in its own ways
        raise UnsupportedModel(
            f"{loaded.architecture} does not run in this engine: {type(error).__name__}: {error}",
            remedy="Replay the schedule without the model: --target schedule.",
        ) from error
    worst = float((ours - theirs).abs().max())
    if not worst <= TOLERANCE[loaded.dtype] * max(float(theirs.abs().max()), 1e-6):
        raise UnsupportedModel(
            f"{loaded.architecture} computes something else in this engine than in transformers: "
            f"logits differ by up to {worst:.3g}",
            remedy="Replay the schedule without the model: --target schedule.",
        )


def _ours(loaded: LoadedModel, ids: list[int]) -> torch.Tensor:
    """Logits [TOKENS, vocab_size] by our attention over a paged cache, in blocks out of order."""
    kv = loaded.kv_store(num_blocks=TOKENS, block_size=1)
    greedy = SamplingParams(temperature=0.0)
    request = Request(id="self-check", tokens=ids, num_prompt=TOKENS, sampling=greedy, blocks=list(range(TOKENS))[::-1])
    parts = [Chunk(request, 0, CUT), Chunk(request, CUT, TOKENS - CUT)]
    hidden = torch.cat([forward(loaded, [Placed(chunk, kv)]) for chunk in parts])
    logits: torch.Tensor = loaded.head(hidden).float()
    return logits


def _theirs(whole: Any, ids: list[int]) -> torch.Tensor:
    """Logits [TOKENS, vocab_size] by transformers alone. Our attention is put back afterwards."""
    mine = whole.config._attn_implementation
    whole.set_attn_implementation("eager")
    try:
        logits: torch.Tensor = whole(torch.tensor([ids], device=whole.device), use_cache=False).logits[0].float()
    finally:
        whole.set_attn_implementation(mine)
    return logits
