"""Keys and values in int8: one float32 scale for each head vector, its largest magnitude divided by 127.

The scheme is the symmetric per-token, per-head one that serving engines use for a `kv_cache_quant_bits` of 8. A vector
is stored and read by itself, with operations whose result does not depend on its neighbours, so a cache of int8 leaves
a row's bits as independent of its batch as a cache of floats does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

LEVELS = 127
"""The largest code. -128 is not used, so that a vector and its negative have the same error."""


def quantise(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 codes of `values` [..., head_dim], and their scales [...] in float32.

    A vector that holds a NaN or an infinity gets a scale that is not finite and codes of 0, and reads as NaN: damage
    stays visible. A vector of zeros, or of values too small for a scale above 0, gets a scale of 0 and reads as zeros.
    """
    wide = values.float()
    scales = wide.abs().amax(dim=-1) / LEVELS
    finite = torch.isfinite(scales)
    divisor = torch.where(finite & (scales > 0), scales, 1.0)
    codes = (wide / divisor[..., None]).round_().clamp_(-LEVELS, LEVELS)
    return torch.where(finite[..., None], codes, 0.0).to(torch.int8), scales


def dequantise(codes: torch.Tensor, scales: torch.Tensor, out: torch.Tensor) -> None:
    """Read codes [..., head_dim] with scales [...] into `out`, rounded once to its dtype.

    Each value lies within half a scale of what was stored, and that rounding. Magnitudes within one part in a million
    of the largest float can read as infinity.
    """
    out.copy_(codes.float().mul_(scales[..., None]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDistortion:
    """What int8 did to one layer's keys or values.

    ``largest`` is the largest error of a value, relative to the largest magnitude in its vector. ``rms`` is the root of
    the mean squared error over that of the mean square.
    """

    layer: int
    tensor: str
    largest: float
    rms: float


class Distortion:
    """Adds up the difference between what was written and what will be read, by layer, for keys and values apart.

    The sums are kept on the cache's own device: a GPU need not be waited for at every layer.
    """

    def __init__(self, num_layers: int, device: str = "cpu") -> None:
        self.vectors = 0
        self._non_finite = torch.zeros((), dtype=torch.int64, device=device)
        self._error, self._square, self._largest = torch.zeros((3, num_layers, 2), dtype=torch.float64, device=device)

    @property
    def non_finite(self) -> int:
        """Vectors that were not finite."""
        return int(self._non_finite)

    def add(self, layer: int, values: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
        """Count one write of `values` [n, 2, num_kv_heads, head_dim]. Vectors that are not finite are counted."""
        read = torch.empty_like(values)
        dequantise(codes, scales, read)
        finite = torch.isfinite(scales)
        self.vectors += finite.numel()
        self._non_finite += (~finite).sum()
        wide = torch.where(finite[..., None], values.float(), 0.0)
        error = torch.where(finite[..., None], read.float() - wide, 0.0)
        size = wide.abs().amax(dim=-1)
        relative = torch.where(size > 0, error.abs().amax(dim=-1) / size, 0.0)
        self._largest[layer] = torch.maximum(self._largest[layer], relative.amax(dim=(0, 2)).double())
        self._error[layer] += error.square().sum(dim=(0, 2, 3), dtype=torch.float64)
        self._square[layer] += wide.square().sum(dim=(0, 2, 3), dtype=torch.float64)

    def layers(self) -> list[LayerDistortion]:
        """By layer, keys before values. A layer that nothing was written to shows zeros."""
        largest = self._largest.tolist()
        rms = (self._error / self._square.clamp(min=1e-300)).sqrt().tolist()
        return [
            LayerDistortion(
                layer=layer,
                tensor=tensor,
                largest=largest[layer][which],
                rms=rms[layer][which],
            )
            for layer in range(len(largest))
            for which, tensor in enumerate(("key", "value"))
        ]
