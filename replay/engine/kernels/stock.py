"""The recorded batch on torch's own kernels, unpadded: for crashes that depend on the shapes a batch had."""

from __future__ import annotations

import torch
from torch.nn import functional

from replay.engine.attention import StepContext, Window
from replay.engine.kernels.interface import attention_interface


@attention_interface
def stock_attention(
    step: StepContext, query: torch.Tensor, *, layer: int, kv_heads: int, window: Window, scale: float
) -> torch.Tensor:
    """One call per request over its true length."""
    results = []
    for span in step.spans:
        both = query.new_empty((span.slots.numel(), 2, kv_heads, query.shape[3]))
        span.kv.gather(layer, span.slots, both)
        keys, values = both.permute(1, 2, 0, 3)
        result = functional.scaled_dot_product_attention(
            query[:, :, span.first_row : span.first_row + span.num_rows],
            keys[None],
            values[None],
            attn_mask=span.masks[window],
            scale=scale,
            enable_gqa=True,
        )
        results.append(result.transpose(1, 2))
    return torch.cat(results, dim=1)
