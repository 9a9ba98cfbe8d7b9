"""The prefix cache in a ring: what a dump made of it says the cache knew is what the cache knew."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.prefix_hash import CachedBlock
from dumps.record.history import HistoryStep, RequestState, SchedulerState
from dumps.record.image import read_ring
from dumps.record.prefixes import HitRecord, decode_cached, disguised, encode_cached
from dumps.record.recorder import FlightRecorder, RecordLevel
from dumps.record.records import (
    KeyframeRecord,
    StepEnd,
    StepStart,
    decode_begin,
    decode_end,
    decode_keyframe,
    encode_begin,
    encode_end,
    encode_keyframe,
)
from dumps.record.state import state_from_ring
from dumps.schema import state_pb2 as pb
from dumps.tensors import from_le32
from dumps.validate import validate
from replay.engine.engine import Engine
from replay.engine.live import LiveScheduler
from replay.engine.request import FinishCause, Request, SamplingParams
from replay.engine.schedule import EngineConfig
from replay.serving.hooks import RecorderHook
from replay.serving.jobs import Job
from tests.flight import identity
from tests.sharing import Guest, Memory, loads

hashes = st.binary(min_size=16, max_size=16).filter(any)
cached = st.lists(
    st.builds(CachedBlock, st.integers(0, 2**32 - 1), hashes, st.one_of(st.just(b""), hashes)), max_size=5
)


@given(cached, st.lists(st.integers(-1, 9), max_size=3), st.booleans())
def test_registered_blocks_come_back(entries, tokens, keep_tokens):
    end = StepEnd(index=3, tokens=tokens, digests=[7] * len(tokens), finished=[(1, "stop", "eos")], cached=entries)
    decoded = decode_end(b"".join(encode_end(end, keep_tokens=keep_tokens)))
    assert (decoded.cached, decoded.finished) == (entries, end.finished)
    keyframe = KeyframeRecord(4, [1, 2], [(1, 2, 0, [3])], [5], entries)
    assert decode_keyframe(encode_keyframe(keyframe, 9))[0].cached == entries


def test_hits_come_back():
    hits = [HitRecord(1, 16, [3, 4]), HitRecord(2, 15, [3, 9], 4)]
    assert decode_begin(b"".join(encode_begin(StepStart(index=1, start_ns=2, hits=hits)))).hits == hits


def test_records_of_a_ring_older_than_the_cache_are_read():
    """The bytes that a recorder without a prefix cache wrote, and still writes."""
    begin = bytes.fromhex("01000000000000000200000000000000010000000000000000000000050000000000000001000000")
    assert decode_begin(begin).hits == []
    assert b"".join(encode_begin(StepStart(index=1, start_ns=2, serials=[5], starts=[0], counts=[1]))) == begin
    end = bytes.fromhex("010000000000000001000000010000000000000008000000")
    assert decode_end(end).cached == []
    assert b"".join(encode_end(StepEnd(index=1, tokens=[8]), keep_tokens=True)) == end
    keyframe = bytes.fromhex("04000000000000000900000000000000010000000000000000000000010000000300000007000000")
    assert decode_keyframe(keyframe) == (KeyframeRecord(4, [3], [], [7], [], []), 9)
    assert encode_keyframe(KeyframeRecord(4, [3], [], [7]), 9) == keyframe


@pytest.mark.parametrize("size", [1, 3, 4, 39, 41])
def test_a_cut_list_is_refused(size):
    data = encode_cached([CachedBlock(1, b"x" * 16, b"")])
    with pytest.raises(ValueError, match="do not add up"):
        decode_cached((data + b"more")[:size])


def test_disguised_hashes_are_others_and_chains_stay_chains():
    chain = [CachedBlock(1, b"a" * 16, b""), CachedBlock(2, b"b" * 16, b"a" * 16)]
    first, second = disguised(chain, b"secret"), disguised(chain, b"another")
    assert first[0].parent == b""
    assert first[1].parent == first[0].hash
    assert len({entry.hash for entry in chain + first + second}) == 6


def fly(config: EngineConfig, guests: list[Guest], folder: Path, *, level: RecordLevel, ring: int) -> Flown:
    facts = identity(config)
    facts["engine"]["prefix_cache"] = config.prefix_cache
    scheduler = LiveScheduler(config)
    recorder = FlightRecorder(
        folder / "flight.ring", facts, level=level, slots=16, slot_tokens=24, ring_bytes=ring, slot_blocks=24
    )
    hook = RecorderHook(recorder, scheduler, keep_text=False)
    engine = Engine(scheduler=scheduler, executor=Memory(config), hooks=[hook])
    requests = []
    for number, guest in enumerate(guests):
        sampling = SamplingParams(max_tokens=guest.max_tokens, top_p=1.0)
        requests.append(
            Request(id=f"r{number}", tokens=list(guest.prompt), num_prompt=len(guest.prompt), sampling=sampling)
        )
    for step in range(40):
        for request, guest in zip(requests, guests, strict=True):
            if guest.arrives == step:
                sink: asyncio.Queue[Any] = asyncio.Queue()
                hook.arrived(Job(request=request, choice=0, sink=sink, endpoint="", stream=False, arrival_ns=0))
                engine.add(request)
            if guest.arrives + guest.stays + 1 == step:
                engine.abort(request, FinishCause.CLIENT_GONE)
        engine.step()
    assert not hook.broken
    state = state_from_ring(read_ring(recorder.path), reason="demand")
    recorder.close(clean=True)
    return state, scheduler


Flown = tuple[pb.RuntimeState, LiveScheduler]
WRAPPED: list[bool] = []


@given(loads(), st.sampled_from([4096, 2**18]))
def test_a_dump_knows_what_the_cache_knew(load, ring):
    config, guests = load
    with tempfile.TemporaryDirectory() as folder:
        state, scheduler = fly(config, guests, Path(folder), level=RecordLevel.TOKENS, ring=ring)
    assert scheduler.cache is not None
    known = {(entry.block, entry.hash, entry.parent) for entry in scheduler.cache.entries}
    assert {(entry.block, entry.hash, entry.parent) for entry in state.kv.prefix_hashes} == known
    assert from_le32(state.kv.free_blocks) == list(scheduler.pool.free)
    assert from_le32(state.kv.ref_counts) == scheduler.pool.ref_counts
    assert [(f.rule, f.path, f.message) for f in validate(state)] == []
    WRAPPED.append(bool(state.scheduler.start.prefix_hashes))


def test_some_rings_of_the_test_before_had_wrapped():
    assert any(WRAPPED)


@given(loads())
def test_at_level_shape_no_hash_tells_of_the_text(load):
    config, guests = load
    with tempfile.TemporaryDirectory() as folder:
        state, scheduler = fly(config, guests, Path(folder), level=RecordLevel.SHAPE, ring=4096)
    assert scheduler.cache is not None
    known = {entry.hash for entry in scheduler.cache.entries}
    told = {entry.hash for entry in (*state.kv.prefix_hashes, *state.scheduler.start.prefix_hashes)}
    assert {entry.block for entry in state.kv.prefix_hashes} == {entry.block for entry in scheduler.cache.entries}
    assert not known & told
    assert [(f.rule, f.path, f.message) for f in validate(state)] == []


def test_a_step_that_never_ended_leaves_its_hit_as_what_is_computed():
    start = KeyframeRecord(4, [2, 3, 4], [(1, 4, 1, [0, 1])], [2], [CachedBlock(0, b"h" * 16, b"")])
    state = SchedulerState(start, 5)
    begin = StepStart(index=4, start_ns=1, serials=[2], starts=[4], counts=[1], new_blocks=[(0, 2)], admitted=[2])
    begin.hits.append(HitRecord(2, 4, [0]))
    state.apply(HistoryStep(begin, None))
    assert state.running[2] == RequestState(4, [0, 2])
    assert list(state.free) == [3, 4]
    assert list(state.cached) == [0]
    assert state.consistent
