"""transformers' attention interface, as its model code calls a registered function, in front of our kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from replay.engine.attention import StepContext, Window
from replay.errors import UnsupportedModel

HARMLESS = frozenset(
    {"dropout", "position_ids", "use_cache", "output_attentions", "output_hidden_states", "return_dict"}
)
"""What transformers' model code passes to an attention function beside our own arguments, and changes nothing here."""


class Kernel(Protocol):
    """Attention of one layer over keys and values that lie in the cache already.

    ``query`` is [1, heads, rows, head_dim]. Returns [1, rows, heads, head_dim].
    """

    def __call__(
        self, step: StepContext, query: torch.Tensor, *, layer: int, kv_heads: int, window: Window, scale: float
    ) -> torch.Tensor: ...


def attention_interface(kernel: Kernel) -> Callable[..., tuple[torch.Tensor, None]]:
    """``kernel`` as transformers calls it. The layer's new keys and values are written to the cache first.

    What it returns raises `UnsupportedModel` for an argument that is set and that our kernels do not compute, such as
    soft-capped scores (``softcap``) or attention sinks (``s_aux``).
    """

    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float,
        *,
        pplx_step: StepContext,
        sliding_window: Window = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        for name, setting in others.items():
            if setting is not None and name not in HARMLESS:
                raise UnsupportedModel(
                    f"the model's attention uses {name}, which our kernels do not compute",
                    remedy="Replay the schedule without the model: --target schedule.",
                )
        layer = module.layer_idx
        pplx_step.write(layer, key, value)
        kv_heads = key.shape[1]
        return kernel(pplx_step, query, layer=layer, kv_heads=kv_heads, window=sliding_window, scale=scaling), None

    return attention
