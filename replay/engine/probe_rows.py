"""Rows with which the probe calls a layer: plain ones, and ones that show in what order their products are summed.

A sum in another order differs in the last bit of a float32, and rounding to bfloat16 hides that in all but a few of
many thousand values. Where the products cancel, rounding alone is left, and almost every other order shows.
"""

from __future__ import annotations

import torch

OCTAVES = 16
"""Powers of two over which the sizes of products that cancel are spread. Sums of products of one size are exact."""


def random_rows(rows: int, features: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """Rows [rows, features] from a generator of its own, so that torch's global one is left alone.

    They are the same on every device.
    """
    return torch.randn((rows, features), generator=_generator(rows, features)).to(device, dtype)


def telling_rows(rows: int, weight: torch.Tensor) -> torch.Tensor:
    """Rows [rows, in] for a layer of ``weight`` [out, in]: half are plain, the others cancel in one output each.

    A row that cancels has ``s * w[q]`` at p and ``-s * w[p]`` at q, for pairs p, q of a random order, for one row w of
    the weight, and powers of two s. The outputs that are hit are spread from the first to the last. Which rows cancel
    is drawn, so that every place in a call has both kinds.
    """
    outputs, features = weight.shape
    result = random_rows(rows, features, weight.dtype, weight.device)
    count = rows // 2
    hit = torch.linspace(0, outputs - 1, count).round().long().to(weight.device)
    generator = _generator(rows + 1, features)
    order = torch.rand((count, features), generator=generator).argsort(dim=1).to(weight.device)
    pairs = features // 2
    first, second = order[:, :pairs], order[:, pairs : 2 * pairs]
    chosen = weight[hit]
    largest = chosen.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-30)
    octaves = torch.randint(OCTAVES, (count, pairs), generator=generator).to(weight.device) - OCTAVES
    sizes = torch.exp2(octaves - largest.log2().round()).to(weight.dtype)
    cancelling = torch.zeros_like(chosen)
    cancelling.scatter_(1, first, chosen.gather(1, second) * sizes)
    cancelling.scatter_(1, second, -chosen.gather(1, first) * sizes)
    result[torch.randperm(rows, generator=generator)[:count].to(weight.device)] = cancelling
    return result


def _generator(rows: int, features: int) -> torch.Generator:
    return torch.Generator().manual_seed(rows * 1_000_003 + features)
