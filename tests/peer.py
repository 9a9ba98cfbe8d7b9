"""The same prompts through transformers' own generate and through our engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from replay.engine.engine import Engine
from replay.engine.live import LiveScheduler
from replay.engine.loaded import LoadedModel
from replay.engine.request import Request, SamplingParams
from replay.engine.runner import ModelRunner
from replay.engine.schedule import Chunk, EngineConfig
from tests.mixing import BLOCK_SIZE, make_request


def stock_model(folder: Path) -> Any:
    """The model as transformers has it, float32, which generates to the length asked for."""
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    )
    model.generation_config.eos_token_id = None
    return model.eval()


def stock_generate(model: Any, prompt: Sequence[int], length: int) -> list[int]:
    ids = torch.tensor([list(prompt)])
    with torch.inference_mode():
        result = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False, pad_token_id=0
        )
    return [int(token) for token in result[0, len(prompt) :]]


def stock_logits(model: Any, tokens: Sequence[int]) -> Any:
    """Logits [tokens, vocab] of the whole sequence at once."""
    ids = torch.tensor([list(tokens)])
    with torch.inference_mode():
        return model(ids, attention_mask=torch.ones_like(ids)).logits[0].numpy()


def differing_positions(ours: Any, theirs: Any, *, tolerance: float) -> list[int]:
    """Positions at which any logit of two arrays [tokens, vocab] is further apart than that, or is NaN."""
    assert ours.shape == theirs.shape
    positions: list[int] = np.flatnonzero(~(np.abs(ours - theirs).max(axis=1) <= tolerance)).tolist()
    return positions


def our_generate(model: LoadedModel, prompts: Sequence[Sequence[int]], length: int) -> list[list[int]]:
    """All prompts at once through scheduler, chunked prefill and paged cache."""
    blocks = sum(-(-(len(prompt) + length) // BLOCK_SIZE) for prompt in prompts)
    config = EngineConfig(
        num_blocks=blocks, block_size=BLOCK_SIZE, max_model_len=model.max_position_embeddings, max_num_batched_tokens=48
    )
    kv = model.kv_store(num_blocks=blocks, block_size=BLOCK_SIZE)
    engine = Engine(scheduler=LiveScheduler(config), executor=ModelRunner(model, kv))
    sampling = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
    requests = [
        Request(id=str(index), tokens=list(prompt), num_prompt=len(prompt), sampling=sampling)
        for index, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.add(request)
    while engine.step() is not None:
        pass
    return [request.output for request in requests]


def our_logits(model: LoadedModel, tokens: Sequence[int]) -> Any:
    """Logits [tokens, vocab] of the whole sequence at once."""
    blocks = -(-len(tokens) // BLOCK_SIZE)
    runner = ModelRunner(model, model.kv_store(num_blocks=blocks, block_size=BLOCK_SIZE))
    request = make_request(tokens, range(blocks))
    hidden = runner.compute([Chunk(request, 0, request.num_tokens)], step=0)
    return runner.logits(hidden, range(len(tokens)))
