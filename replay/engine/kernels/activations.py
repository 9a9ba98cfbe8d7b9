"""Activation functions from operations whose vector body and scalar tail agree: exp, tanh, mul, add, div.

torch's own silu, sigmoid and tanh-approximated gelu differ between the two, so an element's bits would depend on where
it stands in the tensor. All are computed in float32 and rounded once.
"""

from __future__ import annotations

import math

import torch

_SCALE = math.sqrt(2.0 / math.pi)


class ExactSiLU(torch.nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """``x * sigmoid(x)`` written as ``x / (1 + exp(-x))``."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = hidden.float()
        result = wide.neg().exp_().add_(1.0)
        return torch.div(wide, result, out=result).to(hidden.dtype)


class ExactGeluTanh(torch.nn.Module):  # type: ignore[misc]
    """``0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``, of Hendrycks and Gimpel, arXiv 1606.08415."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = hidden.float()
        result = (wide * wide).mul_(wide).mul_(0.044715).add_(wide).mul_(_SCALE).tanh_().add_(1.0)
        return result.mul_(wide).mul_(0.5).to(hidden.dtype)


EXACT_ACTIVATIONS: dict[str, type[torch.nn.Module]] = {
    "silu": ExactSiLU,
    "swish": ExactSiLU,
    "gelu_new": ExactGeluTanh,
    "gelu_pytorch_tanh": ExactGeluTanh,
}
"""What replaces an activation, by its name in config.json."""
