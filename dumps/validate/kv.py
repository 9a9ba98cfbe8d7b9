"""Rules of the KV cache: the pool, the block tables, and the numbers derived from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dumps.schema import state_pb2 as pb
from dumps.tensors import NUMPY_DTYPES
from dumps.validate.finding import Finding, Findings, check_le32, check_range, whole_ids


def check_kv(state: pb.RuntimeState) -> Findings:
    """All rules of ``state.kv``. Nothing when the dump has none."""
    if not state.HasField("kv"):
        return
    kv = state.kv
    yield from _sizes(state, kv)
    tables = [whole_ids(table.blocks) for table in kv.tables]
    yield from _tables(state, kv, tables)
    references = Counter(block for table in tables for block in table)
    yield from _pool(kv, references)
    yield from _sharing(kv, tables)
    yield from _bytes(state, kv, references)
    yield from _contents(kv)


def _sizes(state: pb.RuntimeState, kv: pb.KvCache) -> Findings:
    for name in ("block_size", "num_blocks"):
        value = getattr(kv, name)
        if value < 1:
            yield Finding("kv.sizes", f"kv.{name}", "must be at least 1")
        if state.HasField("engine") and getattr(state.engine, name) not in (0, value):
            yield Finding("kv.sizes", f"kv.{name}", f"{value} here, {getattr(state.engine, name)} in engine.{name}")
    if state.HasField("model"):
        for name in ("num_layers", "num_kv_heads", "head_dim"):
            ours, models = getattr(kv, name), getattr(state.model, name)
            if ours and models and ours != models:
                yield Finding("kv.sizes", f"kv.{name}", f"{ours} here, {models} in model.{name}")
    if state.HasField("engine") and state.engine.kv_quant_bits != kv.quant_bits:
        yield Finding("kv.sizes", "kv.quant_bits", f"{kv.quant_bits}, {state.engine.kv_quant_bits} in engine")
    if kv.quant_bits not in (0, 8):
        yield Finding("kv.sizes", "kv.quant_bits", f"{kv.quant_bits} bits; only 8, or 0 for none, are known", "warning")
    limit = state.engine.max_model_len
    if kv.HasField("seq_len_exceeded_at") and limit and kv.seq_len_exceeded_at > limit:
        yield Finding("kv.sizes", "kv.seq_len_exceeded_at", f"{kv.seq_len_exceeded_at} tokens, the limit is {limit}")


def _tables(state: pb.RuntimeState, kv: pb.KvCache, tables: list[list[int]]) -> Findings:
    owners: Counter[int] = Counter(table.request for table in kv.tables)
    for index, (table, blocks) in enumerate(zip(kv.tables, tables, strict=True)):
        path = f"kv.tables[{index}]"
        yield from check_le32("kv.ids", f"{path}.blocks", table.blocks)
        yield from check_range("kv.ids", f"{path}.blocks", blocks, kv.num_blocks, "block")
        if len(set(blocks)) != len(blocks):
            twice = Counter(blocks).most_common(1)[0][0]
            yield Finding("kv.table-repeats", f"{path}.blocks", f"block {twice} stands twice in one table")
        room = len(blocks) * kv.block_size
        if table.num_tokens > room:
            yield Finding("kv.table-overfull", f"{path}.num_tokens", f"{table.num_tokens} tokens in room for {room}")
        if table.request >= len(state.requests):
            yield Finding("kv.request-index", f"{path}.request", f"there is no request {table.request}")
            continue
        if owners[table.request] > 1:
            yield Finding("kv.request-index", f"{path}.request", f"request {table.request} has more than one table")
        request = state.requests[table.request]
        known = request.num_prompt_tokens + request.num_output_tokens
        if table.num_tokens > known:
            message = f"{table.num_tokens} tokens written, request {table.request} has {known}"
            yield Finding("kv.table-longer", f"{path}.num_tokens", message)
        if request.status == "finished" and blocks:
            message = f"request {table.request} has finished and still holds {len(blocks)} blocks: a leak"
            yield Finding("kv.leak", f"{path}.request", message, "warning")


def _pool(kv: pb.KvCache, references: Mapping[int, int]) -> Findings:
    free = whole_ids(kv.free_blocks)
    yield from check_le32("kv.ids", "kv.free_blocks", kv.free_blocks)
    yield from check_range("kv.ids", "kv.free_blocks", free, kv.num_blocks, "block")
    for block, count in Counter(free).items():
        if count > 1:
            yield Finding("kv.free-twice", "kv.free_blocks", f"block {block} is {count} times in the free list")
        if references.get(block, 0):
            yield Finding("kv.free-and-used", "kv.free_blocks", f"block {block} is free and in a block table")
    # A dump without any of the three has no pool, only its sizes.
    if not kv.free_blocks and not kv.ref_counts and not references:
        return
    used = len(references)
    if len(free) + used != kv.num_blocks:
        message = f"{len(free)} free and {used} used blocks do not make {kv.num_blocks}"
        yield Finding("kv.pool-sum", "kv.free_blocks", message)
    if not kv.ref_counts:
        return
    counts = whole_ids(kv.ref_counts)
    yield from check_le32("kv.ref-count", "kv.ref_counts", kv.ref_counts, kv.num_blocks)
    for block, count in enumerate(counts):
        if count != references.get(block, 0):
            message = f"block {block} has reference count {count} and is in {references.get(block, 0)} tables"
            yield Finding("kv.ref-count", f"kv.ref_counts[{block}]", message)


def _sharing(kv: pb.KvCache, tables: list[list[int]]) -> Findings:
    """A block that its request may still write belongs to that request alone."""
    holders: dict[int, list[tuple[int, bool]]] = {}
    for index, blocks in enumerate(tables):
        full = kv.tables[index].num_tokens // kv.block_size if kv.block_size else 0
        for place, block in enumerate(blocks):
            holders.setdefault(block, []).append((index, place >= full))
    for block, places in holders.items():
        tables_of = {index for index, _ in places}
        if len(tables_of) > 1 and any(writable for _, writable in places):
            names = ", ".join(f"kv.tables[{index}]" for index in sorted(tables_of)[:4])
            path = f"kv.tables[{min(tables_of)}].blocks"
            yield Finding("kv.shared-writable", path, f"block {block} can still be written and is in {names}")


def _bytes(state: pb.RuntimeState, kv: pb.KvCache, references: Mapping[int, int]) -> Findings:
    if not kv.max_bytes:
        return
    if kv.used_bytes > kv.max_bytes:
        yield Finding("kv.bytes", "kv.used_bytes", f"{kv.used_bytes} bytes used of {kv.max_bytes}")
    if kv.num_blocks and kv.max_bytes % kv.num_blocks:
        yield Finding("kv.bytes", "kv.max_bytes", f"{kv.max_bytes} bytes are not {kv.num_blocks} equal blocks")
        return
    block_bytes = kv.max_bytes // kv.num_blocks if kv.num_blocks else 0
    if kv.ref_counts and kv.used_bytes != len(references) * block_bytes:
        message = f"{kv.used_bytes} bytes, but {len(references)} used blocks take {len(references) * block_bytes}"
        yield Finding("kv.bytes", "kv.used_bytes", message)
    wanted = _block_bytes(state, kv)
    if wanted and block_bytes != wanted:
        message = f"{block_bytes} bytes per block, but its keys and values take {wanted}"
        yield Finding("kv.bytes", "kv.max_bytes", message)


def _block_bytes(state: pb.RuntimeState, kv: pb.KvCache) -> int:
    """What keys and values of a block take, by the sizes that are known; 0 where they are not."""
    vectors = 2 * kv.num_layers * kv.block_size * kv.num_kv_heads
    item = NUMPY_DTYPES.get(kv.dtype)
    if not kv.quant_bits:
        return vectors * kv.head_dim * item.itemsize if item is not None else 0
    # Ours keeps a float32 scale beside each vector; where other engines keep theirs is their own matter.
    return vectors * (kv.head_dim + 4) if state.engine.engine == "pplx" and kv.head_dim else 0


def _contents(kv: pb.KvCache) -> Findings:
    blocks = whole_ids(kv.contents_blocks)
    yield from check_le32("kv.ids", "kv.contents_blocks", kv.contents_blocks)
    yield from check_range("kv.ids", "kv.contents_blocks", blocks, kv.num_blocks, "block")
    if len(set(blocks)) != len(blocks):
        yield Finding("kv.contents", "kv.contents_blocks", "a block stands twice")
    if kv.contents_selection not in ("", "none", "faulty", "live"):
        yield Finding("kv.contents", "kv.contents_selection", "not one of none, faulty, live")
    if blocks and kv.contents_selection in ("", "none"):
        yield Finding("kv.contents", "kv.contents_selection", f"says none, and {len(blocks)} blocks are listed")
