"""Paged attention for one step: which rows query which slots, prepared once and used by every layer.

transformers' model code calls a registered attention function with this layer's queries, keys and values. Everything
ragged or paged travels beside it as the keyword argument ``pplx_step``, a `StepContext`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

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


@dataclass(frozen=True, slots=True)
class Placed:
    """A chunk and the cache that its blocks belong to. Chunks of one step may have caches of their own."""

    chunk: Chunk
    kv: KVStore


@dataclass(slots=True, kw_only=True)
class TileGroup:
    """Attention tiles that go through one call.

    ``query_rows`` [tiles * queries] names the step's row behind each query (row 0 where a tile has none left). ``mask``
    is [tiles, 1, heads per kv head * queries, keys], 0 or -inf. ``buffer`` [requests, keys, 2, kv_heads, head_dim]
    receives each layer's keys and values: ``targets[i]``, a view of its start, those of request i from the slots
    ``sources[i]`` of ``stores[i]``; the rest stays zero. One request's keys serve all tiles; of several requests each
    has one tile.
    """

    queries: int
    query_rows: torch.Tensor
    mask: torch.Tensor
    buffer: torch.Tensor
    stores: list[KVStore]
    sources: list[torch.Tensor]
    targets: list[torch.Tensor]


@dataclass(slots=True, kw_only=True)
class StockSpan:
    """One chunk for the stock kernels: its rows, its slots from position 0, and a mask where causality needs one."""

    first_row: int
    num_rows: int
    kv: KVStore
    slots: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where consecutive rows of a step put their keys and values: flat slots of one cache."""

    kv: KVStore
    first_row: int
    num_rows: int
    slots: torch.Tensor


@dataclass(slots=True, kw_only=True)
class StepContext:
    """What a step's attention needs besides queries, keys and values.

    ``destinations`` say where the first ``num_rows`` rows' keys and values go; rows beyond them are padding.
    ``output_rows`` [padded rows] picks each row's result from the concatenated tiles.
    """

    num_rows: int
    destinations: list[Destination]
    groups: list[TileGroup] = field(default_factory=list)
    output_rows: torch.Tensor | None = None
    spans: list[StockSpan] = field(default_factory=list)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store a layer's new keys and values, each [1, kv_heads, padded rows, head_dim]."""
        new = torch.stack((key[0, :, : self.num_rows], value[0, :, : self.num_rows])).permute(2, 0, 1, 3)
        for to in self.destinations:
            to.kv.write(layer, to.slots, new[to.first_row : to.first_row + to.num_rows])


def exact_context(placed: Sequence[Placed], *, num_heads: int, sizes: TileSizes) -> StepContext:
    """The step's tiles for the exact kernels. `num_heads` counts query heads. All caches have the same shape a slot."""
    batches: dict[int, list[tuple[int, Placed]]] = {}
    singles: list[tuple[int, Placed]] = []
    row = 0
    for one in placed:
        chunk = one.chunk
        if chunk.num_tokens <= sizes.decode:
            keys = sizes.pad_keys(chunk.start + chunk.num_tokens)
            batches.setdefault(keys, []).append((row, one))
        else:
            singles.append((row, one))
        row += chunk.num_tokens
    plan = [(members, sizes.decode) for members in batches.values()] + [([one], sizes.prefill) for one in singles]
    groups, output_rows, offset = [], np.zeros(sizes.pad_rows(row), dtype=np.int64), 0
    for members, queries in plan:
        group, rows, places = _tile(members, queries=queries, sizes=sizes, num_heads=num_heads)
        groups.append(group)
        output_rows[rows] = places + offset
        offset += group.query_rows.numel()
    device = placed[0].kv.data.device
    return StepContext(
        num_rows=row,
        destinations=_destinations(placed),
        groups=groups,
        output_rows=torch.from_numpy(output_rows).to(device),
    )


def stock_context(placed: Sequence[Placed]) -> StepContext:
    """The step as spans over each request's true length, for kernels whose bits may depend on it."""
    spans, row = [], 0
    for one in placed:
        chunk, kv, device = one.chunk, one.kv, one.kv.data.device
        stop = chunk.start + chunk.num_tokens
        mask = None
        if chunk.num_tokens > 1:
            positions = torch.arange(chunk.start, stop, device=device)
            mask = torch.arange(stop, device=device)[None, :] <= positions[:, None]
        slots = torch.from_numpy(kv.slots_of(chunk.request.blocks, 0, stop)).to(device)
        spans.append(StockSpan(first_row=row, num_rows=chunk.num_tokens, kv=kv, slots=slots, mask=mask))
        row += chunk.num_tokens
    return StepContext(num_rows=row, destinations=_destinations(placed), spans=spans)


def _destinations(placed: Sequence[Placed]) -> list[Destination]:
    """One for each run of neighbours that share a cache."""
    found, row = [], 0
    for kv, run in groupby(placed, key=lambda one: one.kv):
        chunks = [one.chunk for one in run]
        slots = np.concatenate([kv.slots_of(c.request.blocks, c.start, c.start + c.num_tokens) for c in chunks])
        to = torch.from_numpy(slots).to(kv.data.device)
        found.append(Destination(kv=kv, first_row=row, num_rows=slots.size, slots=to))
        row += slots.size
    return found


def _tile(
    members: list[tuple[int, Placed]], *, queries: int, sizes: TileSizes, num_heads: int
) -> tuple[TileGroup, NDArray[np.int64], NDArray[np.int64]]:
    """A group for (first row, chunk) members: several chunks of at most `queries` tokens, or one of any length.

    Also returns the real rows, and for each its place among the group's [tiles * queries] results.
    """
    like = members[0][1].kv
    device, dtype, repeat = like.data.device, like.data.dtype, num_heads // like.num_kv_heads
    tiles = [-(-one.chunk.num_tokens // queries) for _, one in members]
    keys = sizes.pad_keys(max(one.chunk.start + one.chunk.num_tokens for _, one in members))
    # Position 0 in a query that stands for nothing: it sees one key, so its result is finite and nobody reads it.
    query_rows = np.zeros(sum(tiles) * queries, dtype=np.int64)
    positions = np.zeros_like(query_rows)
    rows, places, offset = [], [], 0
    buffer = torch.zeros((len(members), keys, 2, like.num_kv_heads, like.head_dim), dtype=dtype, device=device)
    stores, sources, targets = [], [], []
    for index, (row, one) in enumerate(members):
        chunk, kv = one.chunk, one.kv
        stop = chunk.start + chunk.num_tokens
        query_rows[offset : offset + chunk.num_tokens] = np.arange(row, row + chunk.num_tokens)
        positions[offset : offset + chunk.num_tokens] = np.arange(chunk.start, stop)
        rows.append(np.arange(row, row + chunk.num_tokens))
        places.append(np.arange(offset, offset + chunk.num_tokens))
        offset += tiles[index] * queries
        stores.append(kv)
        sources.append(torch.from_numpy(kv.slots_of(chunk.request.blocks, 0, stop)).to(device))
        targets.append(buffer[index, :stop])
    hidden = torch.arange(keys, device=device)[None, :] > torch.from_numpy(positions).to(device)[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
    group = TileGroup(
        queries=queries,
        query_rows=torch.from_numpy(query_rows).to(device),
        mask=mask.view(sum(tiles), 1, queries, keys).repeat(1, 1, repeat, 1),
        buffer=buffer,
        stores=stores,
        sources=sources,
        targets=targets,
    )
    return group, np.concatenate(rows), np.concatenate(places)
