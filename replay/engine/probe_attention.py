"""Finds quicker forms of attention for the CPU, whose bits are those of the forms that `replay.engine.probe` found.

The kernel itself runs as a step would run it. A sum in another order mostly shows in the last bit of a float32, which
rounding to bfloat16 hides from all but a few rows in a thousand. So the data are made to show it: large terms that
cancel, scattered over the sum, and small ones that remain.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import torch

from replay.engine.attention import Placed, TileSizes, Window, exact_context
from replay.engine.kernels.exact import exact_attention
from replay.engine.kv_store import DTYPES, KVStore
from replay.engine.probe import AttentionShape
from replay.engine.probe_rows import random_rows
from replay.engine.request import Request, SamplingParams
from replay.engine.schedule import Chunk

KEYS = 512
"""Keys that torch's CPU kernel takes at a time. It sums over each such block in an order of its own."""

BULKS = (256, 128)
"""Most queries of a call, quickest first. From 192 on torch's CPU kernel takes larger blocks and may pack its keys."""

COUNTS = (16, 32, 48, 128, 192, 208, 240, 256)
"""Queries of a call that are tried: whole and part blocks of 32 and of 64."""

TAILS = (64, 128, 192, 256, 320, 384, 448)
"""Lengths of the last block of keys that are tried."""

FIRSTS = (200, 600)
"""Positions from which queries are tried: in the first block of keys, and behind it."""

LARGE = 2.0**18
"""Size of the values that cancel. Beside their sum so far a small value loses its last bits, other ones in each order,
and what remains differs by about 1 in 10."""


def quicker_attention(shape: AttentionShape, known: TileSizes) -> TileSizes:
    """`known` with the quickest of the tried ``bulk`` and ``tails`` whose results have its bits.

    Each is taken only if it passes. ``decode`` stays if its tiles pass with these data too, and grows if not.
    """
    plain = [_Problem(shape, first=first, count=max(COUNTS)).expect(known) for first in FIRSTS]
    windowed = [
        _Problem(shape, first=first, count=64, window=window).expect(known)
        for window in shape.windows
        if window is not None
        for first in FIRSTS
    ]

    def whole(bulk: int) -> bool:
        sizes = replace(known, bulk=bulk, decode=0)
        counts = [count for count in COUNTS if count <= bulk]
        return (
            all(plain[0].agrees(sizes, count, count) for count in counts)
            and all(plain[1].agrees(sizes, count, count) for count in counts[1::3])
            and all(one.agrees(sizes, 64) for one in windowed)
        )

    sizes = replace(known, bulk=next((bulk for bulk in BULKS if whole(bulk)), 0))
    at_tails: list[_Problem] = []
    if sizes.keys == KEYS:
        for tail in TAILS:
            shorter = replace(sizes, tails=(*sizes.tails, tail), decode=0)
            ends = [_Problem(shape, first=first + tail - 32, count=32).expect(known) for first in (0, KEYS)]
            if all(one.agrees(shorter, size) for one in ends for size in (32, 16)):
                sizes = replace(sizes, tails=shorter.tails)
                at_tails += ends
    problems = (*plain, *windowed, *at_tails)
    for decode in sorted({known.decode, 2, 4, 8}):
        tiled = replace(sizes, decode=decode)
        if known.decode <= decode < known.prefill and all(
            one.agrees(tiled, decode, 32, together=True) and one.agrees(tiled, decode, 2 * decode) for one in problems
        ):
            return tiled
    return replace(sizes, decode=known.prefill)


def holds(shape: AttentionShape, known: TileSizes, device: torch.device | str) -> bool:
    """Whether tiles of `known` have the same bits for these data: one a call or many, with keys padded to one block or
    to two, of both sizes. For a device on which no quicker form is tried."""
    # From 480 on a long chunk pads its first queries' keys further than they are padded by themselves.
    problems = [
        _Problem(shape, first=first, count=64, window=window, device=device).expect(known)
        for window in dict.fromkeys((None, *shape.windows))
        for first in (*FIRSTS, 480)
    ]
    whole = replace(known, decode=0)
    return all(
        one.agrees(whole, 64) and one.agrees(whole, 40) and one.agrees(known, known.decode, 32, together=True)
        for one in problems
    )


class _Problem:
    """Queries of one sequence at positions ``first .. first + count - 1``, and their expected results."""

    def __init__(
        self,
        shape: AttentionShape,
        *,
        first: int,
        count: int,
        window: Window = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.first, self.count, self.window = first, count, window
        self.num_heads, self.scale = shape.num_heads, shape.head_dim**-0.5
        length, half, block_size = first + count, shape.head_dim // 2, 16
        blocks = -(-length // block_size)
        self.request = Request(
            id="probe", tokens=[0] * length, num_prompt=length, sampling=SamplingParams(), blocks=list(range(blocks))
        )
        # Half of a score's terms cancel the others but for what the keys' last bits leave.
        query = random_rows(count, shape.num_heads * shape.head_dim, shape.dtype, device) * 128
        query = query.view(count, shape.num_heads, shape.head_dim)
        query[..., half : 2 * half] = -query[..., :half]
        # Scores of zero give all keys the same weight, and then the values cancel.
        query[::2] = 0
        rows = random_rows(length, 2 * shape.num_kv_heads * shape.head_dim, shape.dtype, device)
        key, value = rows.view(length, 2, shape.num_kv_heads, shape.head_dim).unbind(1)
        key = key * 8
        key[..., half : 2 * half] = key[..., :half] * (1 + 2**-7)
        order = torch.randperm(first, generator=torch.Generator().manual_seed(first))
        some, others = order[: first // 3], order[first // 3 : first // 3 * 2]  # and a third stays small
        value = value.clone()
        value[some] *= LARGE
        value[others] = -value[some]
        self.query, self.key, self.value = query, key, value
        self.kv = KVStore(
            num_blocks=blocks,
            block_size=block_size,
            num_layers=1,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            dtype=next(name for name, dtype in DTYPES.items() if dtype == shape.dtype),
            device=str(device),
        )
        self.kv.data[0, :length] = torch.stack((key, value), dim=1)
        self.expected = query

    def expect(self, sizes: TileSizes) -> _Problem:
        """Take the results of these sizes, in chunks of one prefill tile, for the right ones."""
        self.expected = self.run(replace(sizes, decode=0), sizes.prefill, self.count, together=False)
        return self

    def agrees(self, sizes: TileSizes, size: int, count: int = 64, *, together: bool = False) -> bool:
        """Whether the first `count` queries, in chunks of `size`, have the expected bits."""
        count = min(count, self.count)
        result = self.run(sizes, size, count, together=together)
        # Signed zeros count as equal: no sum or product that follows tells them apart. NaN equals nothing.
        return bool(torch.equal(result, self.expected[:count]))

    def run(self, sizes: TileSizes, size: int, count: int, *, together: bool) -> torch.Tensor:
        """Results [count, heads, head_dim] of chunks of `size` queries, in a step of their own each or in one."""
        chunks = [Chunk(self.request, self.first + at, min(size, count - at)) for at in range(0, count, size)]
        steps = [chunks] if together else [[chunk] for chunk in chunks]
        return torch.cat([self._step(sizes, step) for step in steps])

    def _step(self, sizes: TileSizes, chunks: list[Chunk]) -> torch.Tensor:
        placed = [Placed(chunk, self.kv) for chunk in chunks]
        context = exact_context(placed, num_heads=self.num_heads, sizes=sizes, windows=(self.window,))
        start, rows = chunks[0].start, context.num_rows
        query, key, value = (
            part[:rows].transpose(0, 1)[None]
            for part in (self.query[start - self.first :], self.key[start:], self.value[start:])
        )
        layer = SimpleNamespace(layer_idx=0)
        result, _ = exact_attention(
            layer, query, key, value, None, self.scale, pplx_step=context, sliding_window=self.window
        )
        return result[0]
