"""Tries a model that was just loaded: whether it runs at all, and for one that is not on the tested list, whether our
forward pass computes what transformers' own does."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from replay.engine.attention import Placed
from replay.engine.loaded import LoadedModel
from replay.engine.request import Request, SamplingParams
from replay.engine.runner import forward, head
from replay.engine.schedule import Chunk
from replay.errors import UnsupportedModel

TOKENS = 24
CUT = 15
"""The tokens come in two chunks, so that the second one reads keys and values back from the paged cache."""

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
"""Largest difference that counts as rounding, as a part of the largest logit."""


def require_it_runs(loaded: LoadedModel) -> None:
    """Raise `UnsupportedModel` unless `loaded` computes a short chunk: what config.json says may not fit together."""
    ids = [0] * min(2, loaded.max_position_embeddings)
    try:
        with torch.inference_mode():
            _ours(loaded, ids, cut=len(ids))
    except Exception as error:
        raise _does_not_run(loaded, error) from error


def require_same_as_transformers(whole: Any, loaded: LoadedModel) -> None:
    """Raise `UnsupportedModel` unless `loaded` computes the logits that its causal language model `whole` does.

    On 24 tokens: what begins further on, such as a window or a chunk of attention, is not seen here.
    """
    ids = [int(token) for token in np.random.PCG64(7).random_raw(TOKENS) % loaded.vocab_size]
    try:
        with torch.inference_mode():
            ours, theirs = _ours(loaded, ids, cut=CUT), _theirs(whole, ids)
    except Exception as error:  # model code that does not fit our attention fails in its own ways
        raise _does_not_run(loaded, error) from error
    worst = float((ours - theirs).abs().max())
    if not worst <= TOLERANCE[loaded.dtype] * max(float(theirs.abs().max()), 1e-6):
        raise UnsupportedModel(
            f"{loaded.architecture} computes something else in this engine than in transformers: "
            f"logits differ by up to {worst:.3g}",
            remedy="Replay the schedule without the model: --target schedule.",
        )


def _does_not_run(loaded: LoadedModel, error: Exception) -> UnsupportedModel:
    return UnsupportedModel(
        f"{loaded.architecture} does not run in this engine: {type(error).__name__}: {error}",
        remedy="Replay the schedule without the model: --target schedule.",
    )


def _ours(loaded: LoadedModel, ids: list[int], *, cut: int) -> torch.Tensor:
    """Logits [len(ids), vocab_size] by our attention over a paged cache, in blocks out of order."""
    count = len(ids)
    kv = loaded.kv_store(num_blocks=count, block_size=1)
    greedy = SamplingParams(temperature=0.0)
    request = Request(id="self-check", tokens=ids, num_prompt=count, sampling=greedy, blocks=list(range(count))[::-1])
    parts = [Chunk(request, first, stop - first) for first, stop in ((0, cut), (cut, count)) if stop > first]
    hidden = torch.cat([forward(loaded, [Placed(chunk, kv)]) for chunk in parts])
    return head(loaded, hidden).float()


def _theirs(whole: Any, ids: list[int]) -> torch.Tensor:
    """Logits [TOKENS, vocab_size] by transformers alone. Our attention is put back afterwards."""
    mine = whole.config._attn_implementation
    whole.set_attn_implementation("eager")
    try:
        logits: torch.Tensor = whole(torch.tensor([ids], device=whole.device), use_cache=False).logits[0].float()
    finally:
        whole.set_attn_implementation(mine)
    return logits
