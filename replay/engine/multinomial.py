"""The quirk multinomial: tokens drawn as engines do that leave it to torch, in float16, with nothing to hold overflow.

Our own sampler (`replay.engine.sampler`) works in float64 with the maximum subtracted first and cannot fail this way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from replay.engine import sampler
from replay.engine.failure import Blame, NonFinitePlace, blame
from replay.engine.request import Request, SamplingParams


def draw(row: sampler.Row, request: Request, *, position: int, eos_token_ids: Sequence[int] = ()) -> int:
    """The token at `position`, drawn from a logits row, float32 [V], by `torch.multinomial`.

    The generator is seeded from (seed, sample index, position), so that a replay draws the same. Raises what torch
    raises for probabilities that are not finite, with the request and the stage that spoilt them as its `Blame`.
    """
    sampling = request.sampling
    adjusted = sampler.adjusted(
        row,
        sampling,
        prompt=request.tokens[: request.num_prompt],
        output=request.tokens[request.num_prompt : position],
        eos_token_ids=eos_token_ids,
    )
    if sampling.temperature == 0.0:
        return int(adjusted.argmax())
    scaled = torch.from_numpy(adjusted).half() / sampling.temperature
    stage = "softmax" if bool(torch.isfinite(scaled.max())) else "temperature"
    probabilities = torch.softmax(_cut(scaled, sampling), dim=-1)
    try:
        return int(torch.multinomial(probabilities, 1, generator=_generator(request, position)))
    except RuntimeError as error:
        blame(error, Blame(request_id=request.id, position=position, non_finite=NonFinitePlace(where=stage)))
        raise


def _cut(scaled: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Scaled logits [V] without those that min_p, top_k and top_p leave out, which become -inf."""
    out = torch.zeros_like(scaled, dtype=torch.bool)
    probabilities = torch.softmax(scaled, dim=-1)
    if sampling.min_p > 0.0:
        out |= probabilities < sampling.min_p * probabilities.max()
    ranked, order = torch.sort(probabilities, descending=True, stable=True)
    if sampling.top_k:
        out[order[sampling.top_k :]] = True
    if sampling.top_p < 1.0:
        before = torch.cumsum(ranked.float(), dim=-1) - ranked
        out[order[before >= sampling.top_p]] = True
    return scaled.masked_fill(out, float("-inf"))


def _generator(request: Request, position: int) -> torch.Generator:
    key = f"{request.sampling.seed} {request.sample_index} {position}".encode()
    seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1
    return torch.Generator().manual_seed(seed)
