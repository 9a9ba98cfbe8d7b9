"""Defects of the prefix cache: what it knows and what it gives out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from dumps.prefix_hash import HASH_BYTES, chain_of
from dumps.schema import state_pb2 as pb
from dumps.strategies.defect import Change, Defect, Places, both, put
from dumps.tensors import from_le32, le32

_OTHER = b"\xa5" * HASH_BYTES  # of no tokens


def _unwritten(state: pb.RuntimeState) -> Iterator[Change]:
    """Hashes of blocks that are not full."""
    if not _follows(state):
        return
    size, registered = state.kv.block_size, _registered(state)
    for table in state.kv.tables:
        for block in from_le32(table.blocks)[table.num_tokens // size :]:
            if block not in registered:
                yield partial(_know, state, block, _OTHER)


def _foreign(state: pb.RuntimeState) -> Iterator[Change]:
    """A request that was given blocks has other tokens than those in them.

    Only one whose other blocks nobody knows: their hashes would be wrong, too.
    """
    size, vocab = state.engine.block_size, state.model.vocab_size
    if not _follows(state) or state.manifest.record_level == "shape" or vocab < 2:
        return
    begun = {one.request for one in state.scheduler.start.running}
    hits = [hit for step in state.steps for hit in step.prefix_hits]
    for hit in hits:
        request = state.requests[hit.request]
        prompt = from_le32(request.prompt_token_ids)
        chain = chain_of([*prompt, *from_le32(request.output_token_ids)], size)
        whole, rest = divmod(hit.num_tokens, size)
        admissions = sum(hit.request in step.admitted for step in state.steps)
        blocks = from_le32(hit.blocks)
        given = {*blocks[:whole], *([hit.copied_from] if rest else [])}.difference(blocks[whole:])
        entries = (*state.kv.prefix_hashes, *state.scheduler.start.prefix_hashes)
        known = {entry.hash for entry in entries if entry.block not in given}
        if hit.request in begun or admissions > 1 or known.intersection(chain[whole:]):
            continue
        yield put(request, prompt_token_ids=le32([(prompt[0] + 1) % vocab, *prompt[1:]]))


def _unexplained(state: pb.RuntimeState) -> Iterator[Change]:
    """Hashes of blocks that nobody has held while the record lasts."""
    if _follows(state):
        for block in set(range(state.kv.num_blocks)) - _touched(state) - _registered(state) - _known_at_start(state):
            yield partial(_know, state, block, _OTHER)


def _lost(state: pb.RuntimeState) -> Iterator[Change]:
    if not _follows(state):
        return
    for entry in state.kv.prefix_hashes:
        if entry.block in _known_at_start(state) - _handed_out(state):
            yield partial(state.kv.prefix_hashes.remove, entry)


def _broken_chain(state: pb.RuntimeState) -> Iterator[Change]:
    for entries in (state.kv.prefix_hashes, state.scheduler.start.prefix_hashes):
        for entry in entries:
            yield put(entry, parent=entry.hash)
    if _follows(state) and state.manifest.record_level != "shape":
        for entry in state.kv.prefix_hashes:
            if entry.block in _handed_out(state):
                yield put(entry, parent=_OTHER)


def _twice(state: pb.RuntimeState) -> Iterator[Change]:
    for entries in (state.kv.prefix_hashes, state.scheduler.start.prefix_hashes):
        for entry in entries:
            yield partial(entries.append, entry)


def _hit(state: pb.RuntimeState) -> Iterator[Change]:
    for step in state.steps:
        for hit in step.prefix_hits:
            yield partial(step.admitted.remove, hit.request)
            yield partial(step.prefix_hits.append, hit)


def _off(state: pb.RuntimeState) -> Iterator[Change]:
    if any(step.prefix_hits for step in state.steps):
        yield put(state.engine, prefix_cache=False)


def _early(state: pb.RuntimeState) -> Iterator[Change]:
    """What the cache knew when the record began, of a block that was not full then."""
    start, size = state.scheduler.start, state.engine.block_size
    if not _follows(state):
        return
    at_end = [(from_le32(table.blocks), table.num_tokens // size) for table in state.kv.tables]
    never_full = {block for blocks, full in at_end for block in blocks[full:]}
    for one in start.running:
        for block in from_le32(one.block_table)[one.num_computed_tokens // size :]:
            known = partial(start.prefix_hashes.append, pb.PrefixHash(block=block, hash=_OTHER))
            if block in _known_at_start(state):
                continue
            if block in _registered(state):
                yield known
            elif block in never_full:  # it is still known at the end, or it would be lost as well
                yield both(known, partial(_know, state, block, _OTHER))


def _know(state: pb.RuntimeState, block: int, value: bytes) -> None:
    state.kv.prefix_hashes.add(block=block, hash=value)


def _follows(state: pb.RuntimeState) -> bool:
    """Whether the record tells what lies in each block."""
    return state.engine.prefix_cache and bool(state.steps)


def _registered(state: pb.RuntimeState) -> set[int]:
    return {entry.block for entry in state.kv.prefix_hashes}


def _known_at_start(state: pb.RuntimeState) -> set[int]:
    return {entry.block for entry in state.scheduler.start.prefix_hashes}


def _handed_out(state: pb.RuntimeState) -> set[int]:
    """Blocks that were given to somebody as new ones, or as copies."""
    found = {block for step in state.steps for chunk in step.scheduled for block in from_le32(chunk.new_blocks)}
    for hit in (hit for step in state.steps for hit in step.prefix_hits if hit.HasField("copied_from")):
        found.add(from_le32(hit.blocks)[-1])
    return found


def _touched(state: pb.RuntimeState) -> set[int]:
    held = {block for one in state.scheduler.start.running for block in from_le32(one.block_table)}
    return held | _handed_out(state)


def _of_cache(name: str, rule: str, places: Places) -> Defect:
    return Defect(name=name, rule=rule, places=places, of="cache")


DEFECTS = (
    _of_cache("hash registered before its block was written", "prefix.unwritten", _unwritten),
    _of_cache("hash known before its block was written", "prefix.unwritten", _early),
    _of_cache("blocks with the tokens of another request", "prefix.foreign", _foreign),
    _of_cache("hash of a block that nobody wrote", "prefix.unexplained", _unexplained),
    _of_cache("hash that was forgotten for no reason", "prefix.lost", _lost),
    _of_cache("broken hash chain", "prefix.hash", _broken_chain),
    _of_cache("block or hash registered twice", "prefix.twice", _twice),
    _of_cache("prefix given to one that was not admitted", "prefix.hit", _hit),
    _of_cache("prefix given without a cache", "prefix.off", _off),
)
