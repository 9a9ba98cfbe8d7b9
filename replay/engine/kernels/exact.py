"""Kernels whose result for a row does not depend on the other rows of a call.

The recipe and its measurements: a linear layer is called with row counts that were proven equal (see
`replay.engine.probe`), activations use only operations whose vector body and scalar tail agree, and attention runs in
tiles of fixed size over keys padded to fixed blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from replay.engine.attention import StepContext

LinearFunction = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearForm:
    """How a linear layer is called. ``kernel``: "packed" (oneDNN, weights reordered once) or "plain" (`F.linear`).

    ``rows`` is the row count of each call, 0 for any proven multiple of the tile. ``most`` bounds the rows of a call.
    """

    kernel: str
    rows: int = 0
    most: int = 512

    def __str__(self) -> str:
        return f"{self.kernel}/strict-{self.rows}" if self.rows else self.kernel


def packing_available() -> bool:
    """Whether this torch build has oneDNN's packed linear. The operators are private, so they may go away."""
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


def packed_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> LinearFunction:
    """``x @ weight.T + bias`` on oneDNN with weights packed once. `weight` is [out, in], CPU."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
    operator = torch.ops.mkldnn._linear_pointwise.default

    def apply(rows: torch.Tensor) -> torch.Tensor:
        return operator(rows, packed, bias, "none", [], "")

    return apply


def plain_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> LinearFunction:
    """``x @ weight.T + bias`` as torch does it."""

    def apply(rows: torch.Tensor) -> torch.Tensor:
        return functional.linear(rows, weight, bias)

    return apply


KERNELS: dict[str, Callable[[torch.Tensor, torch.Tensor | None], LinearFunction]] = {
    "packed": packed_linear,
    "plain": plain_linear,
}


class ExactLinear(torch.nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Stands in for `nn.Linear`. Its input's rows must be a multiple of the tile for which `form` was proven."""

    def __init__(self, function: LinearFunction, form: LinearForm) -> None:
        super().__init__()
        self.function = function
        self.form = form

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        count = hidden.shape[-2]
        step = self.form.rows or self.form.most
        if count <= step:
            return self.function(hidden)
        parts = [self.function(part) for part in hidden.split(step, dim=-2)]
        return torch.cat(parts, dim=-2)


class ExactSiLU(torch.nn.Module):  # type: ignore[misc]
    """``x * sigmoid(x)`` written as ``x / (1 + exp(-x))``: torch's own silu differs between vector body and tail."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = hidden.float()
        result = wide.neg().exp_().add_(1.0)
        return torch.div(wide, result, out=result).to(hidden.dtype)


def exact_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    *,
    pplx_step: StepContext,
    **unused: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface over `StepContext` tiles. Returns [1, padded rows, heads, head_dim]."""
    layer = module.layer_idx
    pplx_step.write(layer, key, value)
    heads, dim = query.shape[1], query.shape[3]
    kv_heads = key.shape[1]
    repeat = heads // kv_heads
    results = []
    for group in pplx_step.groups:
        for kv, source, target in zip(group.stores, group.sources, group.targets, strict=True):
            kv.gather(layer, source, target)
        tiles, _, packed, keys = group.mask.shape
        tile = query[0].index_select(1, group.query_rows).view(kv_heads, repeat, tiles, group.queries, dim)
        tile = tile.permute(2, 0, 1, 3, 4).reshape(tiles, kv_heads, packed, dim)
        both = group.buffer.permute(2, 0, 3, 1, 4).expand(2, tiles, kv_heads, keys, dim)
        result = functional.scaled_dot_product_attention(tile, both[0], both[1], attn_mask=group.mask, scale=scaling)
        result = result.view(tiles, kv_heads, repeat, group.queries, dim).permute(0, 3, 1, 2, 4)
        results.append(result.reshape(tiles * group.queries, heads, dim))
    joined = results[0] if len(results) == 1 else torch.cat(results)
    return joined.index_select(0, pplx_step.output_rows)[None], None
