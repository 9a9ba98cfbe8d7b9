"""Paged attention for one step: which rows query which slots, prepared once and used by every layer.

transformers' model code calls a registered attention function with this layer's queries, keys and values. Everything
ragged or paged travels beside it as the keyword argument ``pplx_step``, a `StepContext`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from replay.engine.kv_store import KVStore
from replay.engine.schedule import Chunk

EXACT = "pplx_exact"
STOCK = "pplx_stock"
"""Names under which the two attention functions are registered with transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSizes:
    """The fixed sizes on which the exact kernels' bits rest.

    ``rows``: token rows of a step are padded to a multiple of it. ``decode`` and ``prefill``: queries per attention
    tile, for chunks of at most ``decode`` tokens and for longer ones. ``keys``: a request's keys are padded to a
    multiple of it.
    """

    rows: int = 16
    decode: int = 16
    prefill: int = 16
    keys: int = 512

    def pad_rows(self, rows: int) -> int:
        return -(-rows // self.rows) * self.rows

    def pad_keys(self, keys: int) -> int:
        return -(-keys // self.keys) * self.keys


@dataclass(slots=True, kw_only=True)
class TileGroup:
    """Attention tiles that go through one call.

    ``query_rows`` [tiles * queries] names the step's row behind each query (row 0 where a tile has none left). ``mask``
    is [tiles, 1, heads per kv head * queries, keys], 0 or -inf. ``buffer`` [requests, keys, 2, kv_heads, head_dim]
    receives each layer's keys and values: ``targets[i]``, a view of its start, those of request i from the slots
    ``sources[i]``; the rest stays zero. One request's keys serve all tiles; of several requests each has one tile.
    """

    queries: int
    query_rows: torch.Tensor
    mask: torch.Tensor
    buffer: torch.Tensor
    sources: list[torch.Tensor]
    targets: list[torch.Tensor]


@dataclass(slots=True, kw_only=True)
class StockSpan:
    """One chunk for the stock kernels: its rows, its slots from position 0, and a mask where causality needs one."""

    first_row: int
    num_rows: int
    slots: torch.Tensor
    mask: torch.Tensor | None


@dataclass(slots=True, kw_only=True)
class StepContext:
    """What a step's attention needs besides queries, keys and values.

    ``slots`` [num_rows] is where the step's keys and values go; rows beyond them are padding and write nowhere.
    ``output_rows`` [padded rows] picks each row's result from the concatenated tiles.
    """

    kv: KVStore
    num_rows: int
    slots: torch.Tensor
    groups: list[TileGroup] = field(default_factory=list)
    output_rows: torch.Tensor | None = None
    spans: list[StockSpan] = field(default_factory=list)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Store a layer's new keys and values, each [1, kv_heads, padded rows, head_dim]; returns the layer's cache."""
        cache: torch.Tensor = self.kv.data[layer]
        new = torch.stack((key[0, :, : self.num_rows], value[0, :, : self.num_rows])).permute(2, 0, 1, 3)
        cache.index_copy_(0, self.slots, new)
        return cache


def exact_context(chunks: Sequence[Chunk], kv: KVStore, *, num_heads: int, sizes: TileSizes) -> StepContext:
    """The step's tiles for the exact kernels. `num_heads` counts query heads."""
    batches: dict[int, list[tuple[int, Chunk]]] = {}
    singles: list[tuple[int, Chunk]] = []
    row = 0
    for chunk in chunks:
        if chunk.num_tokens <= sizes.decode:
            keys = sizes.pad_keys(chunk.start + chunk.num_tokens)
            batches.setdefault(keys, []).append((row, chunk))
        else:
            singles.append((row, chunk))
        row += chunk.num_tokens
    plan = [(members, sizes.decode) for members in batches.values()] + [([one], sizes.prefill) for one in singles]
    groups, output_rows, offset = [], np.zeros(sizes.pad_rows(row), dtype=np.int64), 0
    for members, queries in plan:
        group, rows, places = _tile(members, kv, queries=queries, sizes=sizes, repeat=num_heads // kv.num_kv_heads)
        groups.append(group)
        output_rows[rows] = places + offset
        offset += group.query_rows.numel()
    device = kv.data.device
    return StepContext(
        kv=kv,
        num_rows=row,
        slots=torch.from_numpy(_new_slots(chunks, kv)).to(device),
        groups=groups,
        output_rows=torch.from_numpy(output_rows).to(device),
    )


def stock_context(chunks: Sequence[Chunk], kv: KVStore) -> StepContext:
    """The step as spans over each request's true length, for kernels whose bits may depend on it."""
    spans, row, device = [], 0, kv.data.device
    for chunk in chunks:
        stop = chunk.start + chunk.num_tokens
        mask = None
        if chunk.num_tokens > 1:
            positions = torch.arange(chunk.start, stop, device=device)
            mask = torch.arange(stop, device=device)[None, :] <= positions[:, None]
        slots = torch.from_numpy(kv.slots_of(chunk.request.blocks, 0, stop)).to(device)
        spans.append(StockSpan(first_row=row, num_rows=chunk.num_tokens, slots=slots, mask=mask))
        row += chunk.num_tokens
    return StepContext(kv=kv, num_rows=row, slots=torch.from_numpy(_new_slots(chunks, kv)).to(device), spans=spans)


def _new_slots(chunks: Sequence[Chunk], kv: KVStore) -> NDArray[np.int64]:
    return np.concatenate([kv.slots_of(c.request.blocks, c.start, c.start + c.num_tokens) for c in chunks])


def _tile(
    members: list[tuple[int, Chunk]], kv: KVStore, *, queries: int, sizes: TileSizes, repeat: int
) -> tuple[TileGroup, NDArray[np.int64], NDArray[np.int64]]:
    """A group for (first row, chunk) members: several chunks of at most `queries` tokens, or one of any length.

    Also returns the real rows, and for each its place among the group's [tiles * queries] results.
    """
    device = kv.data.device
    tiles = [-(-chunk.num_tokens // queries) for _, chunk in members]
    keys = sizes.pad_keys(max(chunk.start + chunk.num_tokens for _, chunk in members))
    # Position 0 in a query that stands for nothing: it sees one key, so its result is finite and nobody reads it.
    query_rows = np.zeros(sum(tiles) * queries, dtype=np.int64)
    positions = np.zeros_like(query_rows)
    rows, places, offset = [], [], 0
    buffer = torch.zeros((len(members), keys, 2, kv.num_kv_heads, kv.head_dim), dtype=kv.data.dtype, device=device)
    sources, targets = [], []
    for index, (row, chunk) in enumerate(members):
        stop = chunk.start + chunk.num_tokens
        query_rows[offset : offset + chunk.num_tokens] = np.arange(row, row + chunk.num_tokens)
        positions[offset : offset + chunk.num_tokens] = np.arange(chunk.start, stop)
        rows.append(np.arange(row, row + chunk.num_tokens))
        places.append(np.arange(offset, offset + chunk.num_tokens))
        offset += tiles[index] * queries
        sources.append(torch.from_numpy(kv.slots_of(chunk.request.blocks, 0, stop)).to(device))
        targets.append(buffer[index, :stop])
    hidden = torch.arange(keys, device=device)[None, :] > torch.from_numpy(positions).to(device)[:, None]
    mask = torch.zeros(hidden.shape, dtype=kv.data.dtype, device=device).masked_fill_(hidden, float("-inf"))
    group = TileGroup(
        queries=queries,
        query_rows=torch.from_numpy(query_rows).to(device),
        mask=mask.view(sum(tiles), 1, queries, keys).repeat(1, 1, repeat, 1),
        buffer=buffer,
        sources=sources,
        targets=targets,
    )
    return group, np.concatenate(rows), np.concatenate(places)
