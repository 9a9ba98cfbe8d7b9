"""Kernels whose result for a row does not depend on the other rows of a call.

The recipe and its measurements: a linear layer is called with row counts that were proven equal (see
`replay.engine.probe`), activations use only operations whose vector body and scalar tail agree, and attention runs in
tiles of fixed size over keys padded to fixed blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from replay.engine.attention import StepContext, Window
from replay.engine.kernels.interface import attention_interface

LinearFunction = Callable[[torch.Tensor], torch.Tensor]

MOST_PADDED = 1.5
"""Rows of a padded call for each row that is wanted, at most, where there is a shorter call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearForm:
    """How a linear layer is called. ``kernel``: "packed" (oneDNN, weights reordered once) or "plain" (`F.linear`).

    A call has one of ``sizes`` rows, ascending: those that were tried and gave a row the same bits. ``limited``: others
    that were tried did not.
    """

    kernel: str
    sizes: tuple[int, ...]
    limited: bool = False

    def __str__(self) -> str:
        return f"{self.kernel}/{self.sizes[0]}-to-{self.sizes[-1]}" if self.limited else self.kernel

    def calls(self, count: int) -> list[int]:
        """The sizes of the calls in which to compute ``count`` rows; their sum is at least ``count``.

        The last is padded: a few rows too many cost less than a call more, which reads all the weights again.
        """
        result: list[int] = []
        while count > 0:
            fits = bisect_left(self.sizes, count)
            if fits == len(self.sizes) or (fits and self.sizes[fits] > MOST_PADDED * count):
                fits -= 1
            result.append(self.sizes[fits])
            count -= self.sizes[fits]
        return result


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
    """Stands in for `nn.Linear`, in calls that `form` was proven for."""

    def __init__(self, function: LinearFunction, form: LinearForm) -> None:
        super().__init__()
        self.function = function
        self.form = form

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        # In two dimensions, as it was proven: for a part of a longer call torch would take its kernel for batches.
        rows = hidden.reshape(-1, hidden.shape[-1])
        count = rows.shape[0]
        calls = self.form.calls(count)
        if missing := sum(calls) - count:
            rows = functional.pad(rows, (0, 0, 0, missing))
        if len(calls) == 1:
            result = self.function(rows)
        else:
            result = torch.cat([self.function(part) for part in rows.split(calls)])
        return result[:count].view(*hidden.shape[:-1], -1)


@attention_interface
def exact_attention(
    step: StepContext, query: torch.Tensor, *, layer: int, kv_heads: int, window: Window, scale: float
) -> torch.Tensor:
    """In the tiles of ``step``. The rows that pad it are zero."""
    heads, dim = query.shape[1], query.shape[3]
    repeat = heads // kv_heads
    result = query.new_empty((query.shape[2], heads, dim))
    result[step.num_rows :] = 0
    for group in step.groups:
        for kv, source, target in zip(group.stores, group.sources, group.targets, strict=True):
            kv.gather(layer, source, target)
        mask = group.masks[window]
        tiles, _, packed, keys = mask.shape
        tile = query[0].index_select(1, group.query_rows).view(kv_heads, repeat, tiles, group.queries, dim)
        tile = tile.permute(2, 0, 1, 3, 4).reshape(tiles, kv_heads, packed, dim)
        both = group.buffer.permute(2, 0, 3, 1, 4).expand(2, tiles, kv_heads, keys, dim)
        part = functional.scaled_dot_product_attention(tile, both[0], both[1], attn_mask=mask, scale=scale)
        part = part.view(tiles, kv_heads, repeat, group.queries, dim).permute(0, 3, 1, 2, 4)
        part = part.reshape(tiles * group.queries, heads, dim)
        result.index_copy_(0, group.rows, part.index_select(0, group.places))
    for bulk in step.bulks:
        bulk.kv.gather(layer, bulk.source, bulk.target)
        rows = query[0, :, bulk.first_row :] if bulk.query_rows is None else query[0].index_select(1, bulk.query_rows)
        rows = rows.unflatten(0, (kv_heads, repeat))
        # The heads that share a key are read with a stride of zero: the kernel takes that, and nothing is copied.
        both = bulk.buffer.permute(1, 2, 0, 3)[:, :, None].expand(2, kv_heads, repeat, -1, dim)
        own = result[bulk.first_row : bulk.first_row + bulk.num_rows].unflatten(1, (kv_heads, repeat))
        for call in bulk.calls:
            key, value = both[..., : call.keys, :]
            part = functional.scaled_dot_product_attention(
                rows[:, :, call.first : call.stop], key, value, attn_mask=call.masks[window], scale=scale
            )
            real = own[call.first : call.stop]
            real.copy_(part[:, :, : real.shape[0]].permute(2, 0, 1, 3))
    return result[None]
