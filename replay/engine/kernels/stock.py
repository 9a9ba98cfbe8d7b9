"""The recorded batch on torch's own kernels, unpadded: for crashes that depend on the shapes a batch had."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from replay.engine.attention import StepContext, refuse_unknown


def stock_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    *,
    pplx_step: StepContext,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface, one call per request over its true length. Returns [1, rows, heads, dim].

    Raises `UnsupportedModel` for an option that it does not compute.
    """
    refuse_unknown(others)
    layer = module.layer_idx
    pplx_step.write(layer, key, value)
    results = []
    for span in pplx_step.spans:
        both = query.new_empty((span.slots.numel(), 2, span.kv.num_kv_heads, span.kv.head_dim))
        span.kv.gather(layer, span.slots, both)
        keys, values = both.permute(1, 2, 0, 3)
        result = functional.scaled_dot_product_attention(
            query[:, :, span.first_row : span.first_row + span.num_rows],
            keys[None],
            values[None],
            attn_mask=span.masks[sliding_window],
            scale=scaling,
            enable_gqa=True,
        )
        results.append(result.transpose(1, 2))
    return torch.cat(results, dim=1), None
