"""Finds out, on this machine and these library versions, which kernel calls give a row the same bits in every batch.

Nothing here is assumed from a table: each candidate is run on hundreds of rows in calls of many sizes and positions,
and the cheapest that never differs is taken. A difference at one size may show in 1 of 64 rows, hence the hundreds, and
in bfloat16 only where products cancel, hence `telling_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from replay.engine.attention import TileSizes, Window, hidden_keys
from replay.engine.kernels.exact import KERNELS, LinearForm, LinearFunction, packing_available
from replay.engine.probe_rows import random_rows, telling_rows
from replay.errors import UnsupportedModel

ROWS = 512
"""Rows per probe of a layer."""

HEAD_ROWS = 64
"""Rows per probe of a layer as wide as a vocabulary, where 512 would take seconds; also its largest call."""

WIDE = 16384
"""Output features from which a layer counts as that wide."""

MULTIPLES = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Sizes of calls that are compared with calls of one tile, in tiles. No others are made: with AMX a layer was seen
whose rows differ in calls of 33 to 48 rows, and in no shorter and no longer ones."""

TILES = {"cpu": (4, 16), "cuda": (64, 128)}
"""Row tiles that are tried on each kind of device, cheapest first. On a CPU one row is never invariant, two not with
MKL. A GPU waits for weights with so few rows, and its sums over a row are cut by the number of rows below 16."""

OWN_TILE = 64
"""Rows to which a layer pads its own input where no tile allows long calls. With AMX, in bfloat16, calls of up to 32
rows sum in one order and longer ones mostly in another: there 64 rows cost half as much again as 16, and 512 a half to
a third of what they cost in calls of 16."""

LONG = 128
"""Rows of a call with which a kernel is near its full rate."""

CUDA_TILES = 8
"""Tiles of a call, at most, on CUDA. Fewer than on a CPU, so that every size of call is probed: there a kernel is
chosen by the exact size."""


class NoExactKernel(UnsupportedModel):
    """No form of a kernel gave the same bits twice. Usually a new machine or library version."""

    remedy = "Run with --kernels stock, and report the machine and library versions."


def agreeing_sizes(function: LinearFunction, rows: torch.Tensor, *, tile: int) -> tuple[int, ...]:
    """The sizes of calls that give each row the bits of calls of `tile` rows: `tile` itself, and those of `MULTIPLES`
    that do, up to the number of rows.

    The last call of each size ends at the last row, so positions vary as well.
    """
    count = rows.shape[0]
    expected = torch.cat([function(part) for part in rows.split(tile)])

    def agrees(size: int) -> bool:
        starts = [*range(0, count - size, size), count - size]
        return all(_same(function(rows[s : s + size]), expected[s : s + size]) for s in starts)

    return (tile, *(size for size in tried_sizes(count, tile)[1:] if agrees(size)))


def tried_sizes(count: int, tile: int) -> tuple[int, ...]:
    """The sizes of calls that `agreeing_sizes` makes with ``count`` rows."""
    return (tile, *(tile * multiple for multiple in MULTIPLES if tile * multiple <= count))


def require_rows_agree(what: str, function: LinearFunction, rows: torch.Tensor, *, tile: int) -> None:
    """Raise `NoExactKernel` unless a row has the same bits in calls of any size. ``what`` names the function."""
    if agreeing_sizes(function, rows, tile=tile) != tried_sizes(rows.shape[0], tile):
        raise NoExactKernel(f"{what} gives a row other bits in calls of other sizes")


def choose_tile(layers: Sequence[tuple[torch.Tensor, torch.Tensor | None]]) -> tuple[int, list[LinearForm]]:
    """The row tile for a model, and a form for each of its distinct layers, given as (weight, bias).

    Takes the smallest tile for which every layer passes in long calls; else the largest, where the layers that fail get
    short calls, or a larger tile of their own.
    """
    tiles = TILES[layers[0][0].device.type]
    forms: list[LinearForm] = []
    for tile in tiles:
        forms = []
        for weight, bias in layers:
            forms.append(choose_form(weight, bias, tile=tile))
            if _is_short(forms[-1]) and tile != tiles[-1]:
                break
        else:
            break
    for index, (weight, bias) in enumerate(layers):
        if _is_short(forms[index]):
            own = replace(choose_form(weight, bias, tile=OWN_TILE), limited=True)
            forms[index] = max(forms[index], own, key=_reach)
    return tile, forms


def _is_short(form: LinearForm) -> bool:
    return form.limited and _reach(form) < LONG


def _reach(form: LinearForm) -> int:
    """How long calls may be, up to `LONG`, before the next size is more than twice that: it would be used by few."""
    reach = form.sizes[0]
    for size in form.sizes[1:]:
        if size > 2 * reach:
            break
        reach = size
    return min(reach, LONG)


def choose_form(weight: torch.Tensor, bias: torch.Tensor | None, *, tile: int) -> LinearForm:
    """The cheapest form of a linear layer whose rows agree for multiples of `tile`."""
    kernels = ["packed", "plain"] if weight.device.type == "cpu" and packing_available() else ["plain"]
    return choose([(kernel, KERNELS[kernel](weight, bias)) for kernel in kernels], weight, bias, tile=tile)


def choose(
    candidates: Sequence[tuple[str, LinearFunction]],
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    tile: int,
) -> LinearForm:
    """As `choose_form`, from given functions by name, cheapest first. One that computes something else is left out.

    Raises `NoExactKernel` when none computes the layer.
    """
    count = HEAD_ROWS if weight.shape[0] >= WIDE else ROWS
    if weight.device.type == "cuda":
        count = CUDA_TILES * tile
    rows = telling_rows(count, weight)
    few = rows[:tile]
    expected = functional.linear(few.float(), weight.float(), None if bias is None else bias.float())
    tolerance = 1e-4 if weight.dtype == torch.float32 else 2e-2
    right = []
    for name, function in candidates:
        error = (function(few).float() - expected).abs().max()
        if error <= tolerance * expected.abs().max().clamp(min=1e-6):
            right.append((name, function))
    if not right:
        raise NoExactKernel(f"no linear kernel computes a layer of shape {tuple(weight.shape)} and {weight.dtype}")
    limited: list[LinearForm] = []
    for name, function in right:
        sizes = agreeing_sizes(function, rows, tile=tile)
        if sizes == tried_sizes(count, tile):
            return LinearForm(kernel=name, sizes=sizes)
        limited.append(LinearForm(kernel=name, sizes=sizes, limited=True))
    return max(limited, key=_reach)  # of equals the cheaper one


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the attention of a model looks like. ``windows`` are those of its layers."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    windows: tuple[Window, ...] = (None,)

    @property
    def repeat(self) -> int:
        """Query heads for each head of keys and values."""
        return self.num_heads // self.num_kv_heads

    @property
    def prefill(self) -> int:
        """Queries of a large tile."""
        # From 192 query rows on, torch's CPU kernel blocks differently and packs, depending on the batch.
        return next(size for size in (16, 8, 4, 2) if size * self.repeat < 192 or size == 2)


def choose_attention(shape: AttentionShape, *, rows: int, max_keys: int) -> TileSizes:
    """Tile sizes for attention on the CPU, from `fitting_attention`.

    Where padding changes bits, keys are padded to `max_keys` always, the one length that cannot vary.
    """
    return fitting_attention(shape, rows=rows) or fixed_attention(shape, rows=rows, max_keys=max_keys)


def fixed_attention(shape: AttentionShape, *, rows: int, max_keys: int, alone: bool = False) -> TileSizes:
    """Tile sizes that leave nothing to vary but the number of tiles in a call; ``alone`` fixes that too."""
    longest = -(-max_keys // 512) * 512
    return TileSizes(rows=rows, decode=shape.prefill, prefill=shape.prefill, keys=longest, alone=alone)


def fitting_attention(shape: AttentionShape, *, rows: int, device: torch.device | str = "cpu") -> TileSizes | None:
    """Tile sizes with keys padded to 512 and a small tile for decode if its bits equal the large one's.

    None where padding, or the number of tiles in a call, changes bits. With a short window, whole blocks of keys are
    hidden from all queries of a tile; that is tried as well.
    """
    prefill = shape.prefill
    problems = [_AttentionProblem(shape, device, window=window) for window in shape.windows]
    # Behind a first block of 512 keys that no query of a short window sees.
    problems += [
        _AttentionProblem(shape, device, window=window, first=600) for window in shape.windows if window is not None
    ]
    expected = [problem.run(queries=prefill, keys=problem.least) for problem in problems]

    def agrees(queries: int) -> bool:
        return all(
            _same(problem.run(queries=queries, keys=problem.least + more), result)
            for problem, result in zip(problems, expected, strict=True)
            for more in (0, 512)
        )

    if not agrees(prefill):
        return None
    decode = next((size for size in (2, 4, 8) if size < prefill and agrees(size)), prefill)
    return TileSizes(rows=rows, decode=decode, prefill=prefill, keys=512)


class _AttentionProblem:
    """64 queries of one sequence from position `first` on, tiled in any way. ``least`` keys hold them."""

    count = 64

    def __init__(
        self, shape: AttentionShape, device: torch.device | str, *, window: Window = None, first: int = 200
    ) -> None:
        self.kv_heads, self.repeat, self.dim = kv_heads, repeat, dim = shape.num_kv_heads, shape.repeat, shape.head_dim
        self.window, self.first = window, first
        self.least = -(-(first + self.count) // 512) * 512
        query = random_rows(self.count, kv_heads * repeat * dim, shape.dtype, device)
        self.query = query.view(self.count, kv_heads, repeat, dim)
        self.key, self.value = (
            random_rows(first + self.count + extra, kv_heads * dim, shape.dtype, device)[extra:].view(-1, kv_heads, dim)
            for extra in (0, 1)
        )

    def run(self, *, queries: int, keys: int) -> torch.Tensor:
        """Results [count, kv_heads, repeat, dim], or NaN when a tile differs in a call of its own."""
        tiles = self.count // queries
        tile = self.query.view(tiles, queries, self.kv_heads, self.repeat, self.dim).permute(0, 2, 3, 1, 4)
        tile = tile.reshape(tiles, self.kv_heads, self.repeat * queries, self.dim)
        both = []
        for part in (self.key, self.value):
            padded = part.new_zeros((keys, self.kv_heads, self.dim))
            padded[: part.shape[0]] = part
            both.append(padded.transpose(0, 1)[None].expand(tiles, -1, -1, -1))
        positions = torch.arange(self.first, self.first + self.count, device=self.query.device)
        hidden = hidden_keys(positions, keys, self.window).view(tiles, 1, queries, keys)
        mask = self.query.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf")).repeat(1, 1, self.repeat, 1)
        scale = self.dim**-0.5

        def attend(which: slice) -> torch.Tensor:
            return functional.scaled_dot_product_attention(
                tile[which], both[0][which], both[1][which], attn_mask=mask[which], scale=scale
            )

        result = attend(slice(None))
        alone = attend(slice(tiles - 1, tiles))
        if not _same(alone, result[-1:]):
            return torch.full_like(self.query, float("nan"))
        result = result.view(tiles, self.kv_heads, self.repeat, queries, self.dim).permute(0, 3, 1, 2, 4)
        return result.reshape(self.query.shape)


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal values with no NaN. Signed zeros count as equal: no sum or product that follows tells them apart."""
    return bool(torch.equal(first, second))
