"""Defects of the pool of KV blocks, its tables and its numbers.

Where steps would tell the same story as the pool, they go first: what is left is the pool's own contradiction.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from dumps.schema import state_pb2 as pb
from dumps.strategies.defect import Change, Defect, both, forget_steps, put, settle
from dumps.tensors import from_le32, le32


def _sizes(state: pb.RuntimeState) -> Iterator[Change]:
    kv = state.kv
    for name in ("num_layers", "num_kv_heads", "head_dim"):
        if getattr(kv, name) and getattr(state.model, name):
            yield put(state.model, **{name: getattr(kv, name) + 1})
    if state.engine.max_model_len:
        yield put(kv, seq_len_exceeded_at=state.engine.max_model_len + 1)


def _ids(state: pb.RuntimeState) -> Iterator[Change]:
    kv = state.kv
    if not state.HasField("kv"):
        return
    free = from_le32(kv.free_blocks)
    for place in range(len(free)):
        for wrong in (kv.num_blocks, -1):
            yield put(kv, free_blocks=le32([*free[:place], wrong, *free[place + 1 :]]))
    yield put(kv, free_blocks=kv.free_blocks + b"\0")
    for table in kv.tables:
        yield put(table, blocks=table.blocks + b"\0")


def _table_repeats(state: pb.RuntimeState) -> Iterator[Change]:
    for table in state.kv.tables:
        blocks = from_le32(table.blocks)
        if len(blocks) > 1 and _held_once(state, blocks[0]):
            yield _tables_alone(state, put(table, blocks=le32([*blocks[:-1], blocks[0]])))


def _overfull(state: pb.RuntimeState) -> Iterator[Change]:
    for table in state.kv.tables:
        if _room(state, table) < _known(state, table):
            yield put(table, num_tokens=_room(state, table) + 1)


def _longer(state: pb.RuntimeState) -> Iterator[Change]:
    for table in state.kv.tables:
        if _known(state, table) < _room(state, table):
            yield put(table, num_tokens=_known(state, table) + 1)


def _request_index(state: pb.RuntimeState) -> Iterator[Change]:
    for table in state.kv.tables:
        yield put(table, request=len(state.requests))
    if len(state.kv.tables) > 1:
        first, second = state.kv.tables[:2]
        if all(_held_once(state, block) for block in from_le32(second.blocks)):
            yield both(partial(forget_steps, state), put(second, request=first.request, num_tokens=0))


def _leak(state: pb.RuntimeState) -> Iterator[Change]:
    free = from_le32(state.kv.free_blocks)
    for index, request in enumerate(state.requests):
        if request.status == "finished" and free:
            leaked = pb.BlockTable(request=index, blocks=le32(free[:1]))
            yield _tables_alone(state, partial(state.kv.tables.append, leaked))


def _free_twice(state: pb.RuntimeState) -> Iterator[Change]:
    free = from_le32(state.kv.free_blocks)
    if len(free) > 1:
        yield put(state.kv, free_blocks=le32([*free[:-1], free[0]]))


def _free_and_used(state: pb.RuntimeState) -> Iterator[Change]:
    free = from_le32(state.kv.free_blocks)
    for table in state.kv.tables if free else ():
        for block in from_le32(table.blocks):
            yield put(state.kv, free_blocks=le32([*free[:-1], block]))


def _pool_sum(state: pb.RuntimeState) -> Iterator[Change]:
    free = from_le32(state.kv.free_blocks)
    if free and state.kv.ref_counts:
        yield put(state.kv, free_blocks=le32(free[:-1]))


def _ref_count(state: pb.RuntimeState) -> Iterator[Change]:
    counts = from_le32(state.kv.ref_counts)
    for block, count in enumerate(counts):
        for wrong in (count + 1, count - 1):
            yield put(state.kv, ref_counts=le32([*counts[:block], wrong, *counts[block + 1 :]]))
    if counts:
        yield put(state.kv, ref_counts=le32(counts[:-1]) + b"\0")


def _shared_writable(state: pb.RuntimeState) -> Iterator[Change]:
    """The last block of one table, which can still be written, is that of another one, too."""
    size = state.kv.block_size
    for one in state.kv.tables:
        blocks = from_le32(one.blocks)
        if not blocks or one.num_tokens >= len(blocks) * size:
            continue
        for other in state.kv.tables:
            others = from_le32(other.blocks)
            if other.request != one.request and others and blocks[-1] not in others:
                yield _tables_alone(state, put(other, blocks=le32([*others[:-1], blocks[-1]])))


def _bytes(state: pb.RuntimeState) -> Iterator[Change]:
    kv = state.kv
    if kv.max_bytes and kv.ref_counts:
        yield put(kv, used_bytes=kv.used_bytes + 1)
        yield put(kv, used_bytes=kv.max_bytes + 1)
        if kv.num_blocks > 1:
            yield put(kv, max_bytes=kv.max_bytes + 1)


def _contents(state: pb.RuntimeState) -> Iterator[Change]:
    kv = state.kv
    if state.HasField("kv"):
        yield put(kv, contents_selection="some")
    if kv.contents_blocks:
        yield put(kv, contents_blocks=kv.contents_blocks + kv.contents_blocks[:4])
        yield put(kv, contents_selection="none")


def _history(state: pb.RuntimeState) -> Iterator[Change]:
    if not state.HasField("kv"):
        return
    history, kv = state.kv.block_history, state.kv
    yield lambda: history.add(event="lost")
    yield lambda: history.add(event="free", block=kv.num_blocks)
    yield lambda: history.add(event="free", request=len(state.requests))
    yield lambda: history.extend([pb.BlockEvent(event="allocate", step=1), pb.BlockEvent(event="free")])


def _tables_alone(state: pb.RuntimeState, change: Change) -> Change:
    """The change, with no steps that tell of other tables, and a pool that fits what comes out."""
    return both(partial(forget_steps, state), change, partial(settle, state))


def _held_once(state: pb.RuntimeState, block: int) -> bool:
    return sum(block in from_le32(table.blocks) for table in state.kv.tables) == 1


def _room(state: pb.RuntimeState, table: pb.BlockTable) -> int:
    return len(table.blocks) // 4 * state.kv.block_size


def _known(state: pb.RuntimeState, table: pb.BlockTable) -> int:
    request = state.requests[table.request]
    return request.num_prompt_tokens + request.num_output_tokens


DEFECTS = (
    Defect(name="pool for another model", rule="kv.sizes", places=_sizes),
    Defect(name="block outside of the pool", rule="kv.ids", places=_ids),
    Defect(name="block twice in a table", rule="kv.table-repeats", places=_table_repeats),
    Defect(name="more tokens than the table has room for", rule="kv.table-overfull", places=_overfull),
    Defect(name="more tokens written than there are", rule="kv.table-longer", places=_longer),
    Defect(name="table of nobody", rule="kv.request-index", places=_request_index),
    Defect(name="blocks of a finished request", rule="kv.leak", places=_leak),
    Defect(name="block twice in the free list", rule="kv.free-twice", places=_free_twice),
    Defect(name="block free and used", rule="kv.free-and-used", places=_free_and_used),
    Defect(name="block neither free nor used", rule="kv.pool-sum", places=_pool_sum),
    Defect(name="wrong reference count", rule="kv.ref-count", places=_ref_count),
    Defect(name="writable block in two tables", rule="kv.shared-writable", places=_shared_writable),
    Defect(name="other bytes than blocks", rule="kv.bytes", places=_bytes),
    Defect(name="contents that are not those it names", rule="kv.contents", places=_contents),
    Defect(name="event of no block", rule="kv.history", places=_history),
)
