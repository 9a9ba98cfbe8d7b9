"""Mixture of experts without a row's bits depending on which other rows went to the same experts.

Every expert's rows are padded to the row tile and computed with the linear form that was proven for the layer's shape.
Each token then adds up its own shares in the order of its own ranking, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from replay.engine.kernels.exact import ExactLinear


class ExactRouter(torch.nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """Softmax over the experts' logits, the top ``top_k`` of them, and their weights.

    ``normalise`` divides the weights by their sum. ``wide`` keeps them in float32; else they get the model's dtype.
    """

    def __init__(self, linear: ExactLinear, *, top_k: int, normalise: bool, wide: bool) -> None:
        super().__init__()
        self.linear = linear
        self.top_k, self.normalise, self.wide = top_k, normalise, wide

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits [rows, experts], weights [rows, top_k] and expert numbers [rows, top_k] of hidden states [rows, n]."""
        logits = self.linear(hidden.reshape(-1, hidden.shape[-1]))
        weights, chosen = torch.softmax(logits, dim=-1, dtype=torch.float32).topk(self.top_k, dim=-1)
        if self.normalise:
            weights = weights / _added_in_order(weights[..., None])
        return logits, weights if self.wide else weights.to(logits.dtype), chosen


class ExactExperts(torch.nn.Module):  # type: ignore[misc]
    """Gated feed-forward experts: ``down(activation(gate) * up)``, with gate and up in one layer, gate first."""

    def __init__(
        self,
        gate_up: Sequence[ExactLinear],
        down: Sequence[ExactLinear],
        activation: torch.nn.Module,
        *,
        tile: int,
    ) -> None:
        super().__init__()
        self.gate_up, self.down = torch.nn.ModuleList(gate_up), torch.nn.ModuleList(down)
        self.activation = activation
        self.tile = tile

    def forward(self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The weighted sum of each row's experts, [rows, n]. `chosen` and `weights` are [rows, top_k]."""
        rows, top_k = chosen.shape
        places = chosen.reshape(-1)
        order = places.argsort(stable=True)
        counts = torch.bincount(places, minlength=len(self.down)).tolist()
        shares = hidden.new_empty((rows * top_k, hidden.shape[-1]))
        start = 0
        for expert, count in enumerate(counts):
            if not count:
                continue
            members = order[start : start + count]
            start += count
            part = hidden.new_zeros((-(-count // self.tile) * self.tile, hidden.shape[-1]))
            torch.index_select(hidden, 0, members // top_k, out=part[:count])
            gate, up = self.gate_up[expert](part).chunk(2, dim=-1)
            shares[members] = self.down[expert](self.activation(gate) * up)[:count]
        weighted = shares.view(rows, top_k, -1).float() * weights.float()[..., None]
        return _added_in_order(weighted).to(hidden.dtype)


def _added_in_order(parts: torch.Tensor) -> torch.Tensor:
    """Sum over dimension 1 of [rows, parts, n], first to last: `sum` adds in an order that follows the shape."""
    total = parts[:, 0]
    for index in range(1, parts.shape[1]):
        total = total + parts[:, index]
    return total
