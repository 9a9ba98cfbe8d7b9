"""The recorded batch on torch's own kernels, unpadded: for crashes that depend on the shapes a batch had."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from replay.engine.attention import StepContext


def stock_attention(
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
    """transformers' attention interface, one call per request over its true length. Returns [1, rows, heads, dim]."""
    cache = pplx_step.write(module.layer_idx, key, value)
    results = []
    for span in pplx_step.spans:
        keys, values = cache.index_select(0, span.slots).permute(1, 2, 0, 3)
        result = functional.scaled_dot_product_attention(
            query[:, :, span.first_row : span.first_row + span.num_rows],
            keys[None],
            values[None],
            attn_mask=span.mask,
            scale=scaling,
            enable_gqa=True,
        )
        results.append(result.transpose(1, 2))
    return torch.cat(results, dim=1), None
