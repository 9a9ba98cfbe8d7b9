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

from replay.engine.destinations import Destination, destinations_of
from replay.engine.kv_store import KVStore
from replay.engine.schedule import Chunk

EXACT = "pplx_exact"
STOCK = "pplx_stock"
"""Names under which the two attention functions are registered with transformers."""

Window = int | None
"""How many positions a layer's query sees, its own included: a sliding window's size, or None for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSizes:
    """The fixed sizes on which the exact kernels' bits rest.

    ``rows``: token rows of a step are padded to a multiple of it. ``decode`` and ``prefill``: queries per attention
    tile, for chunks of at most ``decode`` tokens and for longer ones. ``alone``: each attention tile is a call of its
    own, with ``prefill`` queries whatever the chunk. With ``bulk`` longer chunks are not cut into tiles: their queries,
    padded to a multiple of 16, go to the kernel at most ``bulk`` a call.

    ``keys``: the kernel sums over keys in blocks of that many, and a request's last block is padded with zeros to one
    of ``tails`` (ascending lengths at which it sums in the order of a whole block) or to a whole block.
    """

    rows: int = 16
    decode: int = 16
    prefill: int = 16
    keys: int = 512
    alone: bool = False
    bulk: int = 0
    tails: tuple[int, ...] = ()

    def pad_rows(self, rows: int) -> int:
        return -(-rows // self.rows) * self.rows

    def pad_keys(self, keys: int) -> int:
        whole = (keys - 1) // self.keys * self.keys
        return whole + next((tail for tail in self.tails if tail >= keys - whole), self.keys)

    def pad_queries(self, queries: int) -> int:
        return -(-queries // 16) * 16

    def cut(self, start: int, count: int) -> list[tuple[int, int]]:
        """A long chunk's `count` queries from position `start` on as (first, stop) of the kernel's calls.

        A call ends where a block of keys does, so that its queries do not pay for keys that all of them ignore, and
        at a tail unless that makes it small: torch's CPU kernel is quicker from 192 queries on.
        """
        calls, first = [], 0
        while first < count:
            at = start + first
            whole = at // self.keys * self.keys
            tails = [whole + tail - start for tail in self.tails if whole + tail >= at + 192]
            stop = min([first + self.bulk, whole + self.keys - start, count, *tails])
            calls.append((first, stop))
            first = stop
        return calls


@dataclass(frozen=True, slots=True)
class Placed:
    """A chunk and the cache that its blocks belong to. Chunks of one step may have caches of their own."""

    chunk: Chunk
    kv: KVStore


@dataclass(slots=True, kw_only=True)
class TileGroup:
    """Attention tiles that go through one call.

    ``query_rows`` [tiles * queries] names the step's row behind each query (row 0 where a tile has none left), and
    ``rows`` the rows that are there, whose results are at ``places`` among the call's. ``masks`` has one per window
    that the model's layers have, each [tiles, 1, heads per kv head * queries, keys] of 0 and -inf; a window that hides
    nothing shares the full one's. ``buffer`` [requests, keys, 2, kv_heads, head_dim] receives each layer's keys and
    values: ``targets[i]``, a view of its start, those of request i from the slots ``sources[i]`` of ``stores[i]``; the
    rest stays zero. One request's keys serve all tiles; of several requests each has one tile.
    """

    queries: int
    query_rows: torch.Tensor
    rows: torch.Tensor
    places: torch.Tensor
    masks: dict[Window, torch.Tensor]
    buffer: torch.Tensor
    stores: list[KVStore]
    sources: list[torch.Tensor]
    targets: list[torch.Tensor]


@dataclass(slots=True, kw_only=True)
class BulkCall:
    """One call for the queries ``first .. stop - 1`` of a long chunk over its first ``keys`` keys.

    ``masks`` has one [1, 1, queries, keys] per window.
    """

    first: int
    stop: int
    keys: int
    masks: dict[Window, torch.Tensor]


@dataclass(slots=True, kw_only=True)
class Bulk:
    """A long chunk that is not cut into tiles. Its queries are the step's ``num_rows`` rows from ``first_row`` on.

    ``query_rows`` names the row behind each query where the chunk had to be padded, and is None where it had not.
    ``buffer`` [keys, 2, kv_heads, head_dim] receives a layer's keys and values: ``target``, a view of its start, those
    of the slots ``source``; the rest stays zero.
    """

    first_row: int
    num_rows: int
    query_rows: torch.Tensor | None
    kv: KVStore
    source: torch.Tensor
    buffer: torch.Tensor
    target: torch.Tensor
    calls: list[BulkCall]


@dataclass(slots=True, kw_only=True)
class StockSpan:
    """One chunk for the stock kernels: its rows, its slots from position 0, and by window a mask where needed."""

    first_row: int
    num_rows: int
    kv: KVStore
    slots: torch.Tensor
    masks: dict[Window, torch.Tensor | None]


@dataclass(slots=True, kw_only=True)
class StepContext:
    """What a step's attention needs besides queries, keys and values.

    ``destinations`` say where the first ``num_rows`` rows' keys and values go; rows beyond them are padding. The exact
    kernels go by ``groups`` and ``bulks``, the stock ones by ``spans``.
    """

    num_rows: int
    destinations: list[Destination]
    groups: list[TileGroup] = field(default_factory=list)
    bulks: list[Bulk] = field(default_factory=list)
    spans: list[StockSpan] = field(default_factory=list)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store a layer's new keys and values, each [1, kv_heads, padded rows, head_dim]."""
        new = key.new_empty((self.num_rows, 2, key.shape[1], key.shape[3]))
        for which, part in enumerate((key, value)):
            new[:, which] = part[0, :, : self.num_rows].transpose(0, 1)
        for to in self.destinations:
            mine = new[to.first_row : to.first_row + to.num_rows]
            to.kv.write(layer, to.slots, mine if to.rows is None else mine.index_select(0, to.rows))


def exact_context(
    placed: Sequence[Placed], *, num_heads: int, sizes: TileSizes, windows: Sequence[Window] = (None,)
) -> StepContext:
    """The step's tiles for the exact kernels. `num_heads` counts query heads. All caches have the same shape a slot.

    ``windows`` are those that the model's layers have.
    """
    short: list[tuple[int, Placed]] = []
    singles: list[tuple[int, Placed]] = []
    bulks: list[Bulk] = []
    row = 0
    for one in placed:
        chunk = one.chunk
        if sizes.alone:
            parts = range(0, chunk.num_tokens, sizes.prefill)
            singles += [(row + first, _part(one, first, sizes.prefill)) for first in parts]
        elif chunk.num_tokens <= sizes.decode:
            short.append((row, one))
        elif sizes.bulk:
            bulks.append(_bulk(row, one, sizes=sizes, windows=windows))
        else:
            singles.append((row, one))
        row += chunk.num_tokens
    plan = [(members, sizes.decode) for members in _batches(short, sizes)]
    plan += [([one], sizes.prefill) for one in singles]
    return StepContext(
        num_rows=row,
        destinations=destinations_of(placed),
        groups=[
            _tile(members, queries=queries, sizes=sizes, num_heads=num_heads, windows=windows)
            for members, queries in plan
        ],
        bulks=bulks,
    )


def _batches(short: list[tuple[int, Placed]], sizes: TileSizes) -> list[list[tuple[int, Placed]]]:
    """Short chunks that share a call and its number of keys: up to a quarter block of zeros is cheaper than a call."""
    found: list[list[tuple[int, Placed]]] = []
    most = 0
    padded = [(sizes.pad_keys(one.chunk.start + one.chunk.num_tokens), row, one) for row, one in short]
    for keys, row, one in sorted(padded, key=lambda entry: -entry[0]):
        if not found or most - keys > sizes.keys // 4:
            found.append([])
            most = keys
        found[-1].append((row, one))
    return found


def _part(one: Placed, first: int, most: int) -> Placed:
    """At most `most` tokens of a chunk, from its own token number `first` on."""
    chunk = one.chunk
    return Placed(Chunk(chunk.request, chunk.start + first, min(most, chunk.num_tokens - first)), one.kv)


def stock_context(placed: Sequence[Placed], *, windows: Sequence[Window] = (None,)) -> StepContext:
    """The step as spans over each request's true length, for kernels whose bits may depend on it."""
    spans, row = [], 0
    for one in placed:
        chunk, kv, device = one.chunk, one.kv, one.kv.data.device
        stop = chunk.start + chunk.num_tokens
        positions = torch.arange(chunk.start, stop, device=device)
        masks: dict[Window, torch.Tensor | None] = {}
        for window in windows:
            hides = chunk.num_tokens > 1 or (window is not None and window < stop)
            masks[window] = ~hidden_keys(positions, stop, window) if hides else None
        slots = torch.from_numpy(kv.slots_of(chunk.request.blocks, 0, stop)).to(device)
        spans.append(StockSpan(first_row=row, num_rows=chunk.num_tokens, kv=kv, slots=slots, masks=masks))
        row += chunk.num_tokens
    return StepContext(num_rows=row, destinations=destinations_of(placed), spans=spans)


def hidden_keys(positions: torch.Tensor, keys: int, window: Window) -> torch.Tensor:
    """Which of `keys` positions the queries at `positions` do not see, [queries, keys]: later and too old ones."""
    key = torch.arange(keys, device=positions.device)[None, :]
    hidden = key > positions[:, None]
    return hidden if window is None else hidden | (key <= positions[:, None] - window)


def _tile(
    members: list[tuple[int, Placed]], *, queries: int, sizes: TileSizes, num_heads: int, windows: Sequence[Window]
) -> TileGroup:
    """A group for (first row, chunk) members: several chunks of at most `queries` tokens, or one of any length."""
    like = members[0][1].kv
    device, repeat = like.data.device, num_heads // like.num_kv_heads
    tiles = [-(-one.chunk.num_tokens // queries) for _, one in members]
    keys = sizes.pad_keys(max(one.chunk.start + one.chunk.num_tokens for _, one in members))
    # Position 0 in a query that stands for nothing: it sees one key, so its result is finite and nobody reads it.
    query_rows = np.zeros(sum(tiles) * queries, dtype=np.int64)
    positions = np.zeros_like(query_rows)
    places, offset = [], 0
    shape = (len(members), keys, 2, like.num_kv_heads, like.head_dim)
    buffer = torch.zeros(shape, dtype=like.compute_dtype, device=device)
    stores, sources, targets = [], [], []
    for index, (row, one) in enumerate(members):
        chunk, kv = one.chunk, one.kv
        stop = chunk.start + chunk.num_tokens
        query_rows[offset : offset + chunk.num_tokens] = np.arange(row, row + chunk.num_tokens)
        positions[offset : offset + chunk.num_tokens] = np.arange(chunk.start, stop)
        places.append(np.arange(offset, offset + chunk.num_tokens))
        offset += tiles[index] * queries
        stores.append(kv)
        sources.append(torch.from_numpy(kv.slots_of(chunk.request.blocks, 0, stop)).to(device))
        targets.append(buffer[index, :stop])
    at = np.concatenate(places)
    return TileGroup(
        queries=queries,
        query_rows=torch.from_numpy(query_rows).to(device),
        rows=torch.from_numpy(query_rows[at]).to(device),
        places=torch.from_numpy(at).to(device),
        masks=_masks(positions, keys, windows, like=like, tiles=sum(tiles), repeat=repeat),
        buffer=buffer,
        stores=stores,
        sources=sources,
        targets=targets,
    )


def _bulk(row: int, one: Placed, *, sizes: TileSizes, windows: Sequence[Window]) -> Bulk:
    """A chunk of any length whose first row in the step is `row`."""
    chunk, kv = one.chunk, one.kv
    count, device = chunk.num_tokens, kv.data.device
    stop = chunk.start + count
    # A call of an odd length is filled up, with the next one's first queries where there is a next one.
    ends = [(first, first + sizes.pad_queries(end - first), end) for first, end in sizes.cut(chunk.start, count)]
    padded = max(filled for _, filled, _ in ends)
    # As in `_tile`, a query that stands for nothing is at position 0.
    query_rows, positions = np.zeros((2, padded), dtype=np.int64)
    query_rows[:count] = np.arange(row, row + count)
    positions[:count] = np.arange(chunk.start, stop)
    calls = []
    for first, filled, end in ends:
        keys = sizes.pad_keys(chunk.start + end)
        masks = _masks(positions[first:filled], keys, windows, like=kv)
        calls.append(BulkCall(first=first, stop=filled, keys=keys, masks=masks))
    shape = (sizes.pad_keys(stop), 2, kv.num_kv_heads, kv.head_dim)
    buffer = torch.zeros(shape, dtype=kv.compute_dtype, device=device)
    return Bulk(
        first_row=row,
        num_rows=count,
        query_rows=torch.from_numpy(query_rows).to(device) if padded > count else None,
        kv=kv,
        source=torch.from_numpy(kv.slots_of(chunk.request.blocks, 0, stop)).to(device),
        buffer=buffer,
        target=buffer[:stop],
        calls=calls,
    )


def _masks(
    positions: NDArray[np.int64],
    keys: int,
    windows: Sequence[Window],
    *,
    like: KVStore,
    tiles: int = 1,
    repeat: int = 1,
) -> dict[Window, torch.Tensor]:
    """By window the mask [tiles, 1, repeat * queries, keys] of queries at `positions` [tiles * queries]."""
    masks: dict[Window, torch.Tensor] = {}
    device, last = like.data.device, int(positions.max())
    at = torch.from_numpy(positions).to(device)
    for window in windows:
        sees = window if window is not None and window <= last else None
        if sees not in masks:
            hidden = hidden_keys(at, keys, sees)
            mask = torch.zeros(hidden.shape, dtype=like.compute_dtype, device=device)
            mask = mask.masked_fill_(hidden, float("-inf")).view(tiles, 1, -1, keys)
            masks[sees] = mask.repeat(1, 1, repeat, 1) if repeat > 1 else mask
        masks[window] = masks[sees]
    return masks
