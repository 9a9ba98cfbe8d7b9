from __future__ import annotations

import contextlib
import struct
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.prefix_hash import HASH_BYTES, CachedBlock
from dumps.record import ring
from dumps.record.process import WriterProcess
from dumps.record.records import (
    ExhaustedRecord,
    KeyframeRecord,
    RunningRecord,
    StepEnd,
    StepStart,
    decode_begin,
    decode_end,
    decode_keyframe,
    encode_begin,
    encode_end,
    encode_keyframe,
)

u32 = st.integers(0, 2**32 - 1)
ids = st.lists(u32, max_size=6)
hashes = st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES).filter(any)
ended = st.lists(st.tuples(u32, st.sampled_from(["stop", "abort"]), st.just("eos")), max_size=2)


@st.composite
def begins(draw):
    rows = draw(st.lists(st.tuples(u32, u32, u32), max_size=5))
    serials, starts, counts = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    exhausted = st.builds(ExhaustedRecord, u32, u32, u32, st.just("truncate"), st.none() | u32, u32)
    return StepStart(
        index=draw(st.integers(0, 2**64 - 1)),
        start_ns=draw(st.integers(0, 2**64 - 1)),
        serials=serials,
        starts=starts,
        counts=counts,
        new_blocks=draw(st.lists(st.tuples(u32, u32), max_size=4)),
        arrived=draw(ids),
        admitted=draw(ids),
        aborted=draw(ended),
        exhausted=draw(st.lists(exhausted, max_size=2)),
        finished=draw(ended),
    )


@given(step=begins())
def test_a_beginning_comes_back(step):
    assert decode_begin(b"".join(encode_begin(step))) == step


@given(
    tokens=st.lists(st.integers(-1, 2**31 - 1), max_size=5),
    digest=st.none() | st.integers(0, 2**64 - 1),
    finished=ended,
    keep=st.booleans(),
)
def test_an_end_comes_back(tokens, digest, finished, keep):
    digests = None if digest is None else [digest] * len(tokens)
    end = decode_end(b"".join(encode_end(StepEnd(3, tokens, digests, finished), keep_tokens=keep)))
    assert end.drew == [token >= 0 for token in tokens]
    assert end.tokens == (tokens if keep else None)
    assert (end.digests, end.finished) == (digests, finished)


@given(
    free=ids,
    running=st.lists(st.tuples(u32, u32, u32, ids), max_size=4),
    waiting=ids,
    cached=st.lists(st.builds(CachedBlock, u32, hashes, hashes), max_size=3),
    outputs=st.lists(st.tuples(u32, u32), max_size=3),
    sequence=st.integers(0, 2**64 - 1),
)
def test_a_keyframe_comes_back(free, running, waiting, cached, outputs, sequence):
    keyframe = KeyframeRecord(5, free, [RunningRecord(*facts) for facts in running], waiting, cached, outputs)
    assert decode_keyframe(encode_keyframe(keyframe, sequence)) == (keyframe, sequence)


@given(outputs=st.lists(st.tuples(u32, u32), min_size=1, max_size=3), cut=st.integers(1, 7))
def test_a_keyframe_with_half_a_number_is_refused(outputs, cut):
    whole = encode_keyframe(KeyframeRecord(5, [], [], [1], [], outputs), 0)
    with pytest.raises(ValueError, match="do not add up"):
        decode_keyframe(whole[:-cut])


@pytest.mark.parametrize("decode", [decode_begin, decode_end, decode_keyframe])
@given(data=st.binary(max_size=80))
def test_decoding_noise_is_a_value_error_or_a_value(decode, data):
    with contextlib.suppress(ValueError):
        decode(data)


@given(payloads=st.lists(st.binary(max_size=40), max_size=8), offset=st.integers(0, 7))
def test_records_are_found_wherever_they_begin(payloads, offset):
    area = bytes(8 * offset) + b"".join(ring.encode_record(9, n, ring.END, p) for n, p in enumerate(payloads))
    assert [(r.sequence, r.payload) for r in ring.scan_records(area, 9)] == list(enumerate(payloads))


def test_a_record_of_another_file_is_not_one_of_ours():
    record = ring.encode_record(9, 0, ring.END, b"payload")
    assert list(ring.scan_records(record, 10)) == []


def test_a_record_inside_a_payload_is_not_found():
    """Whoever chooses the payload does not know the number that seeds the CRC, and here not even that would do."""
    inner = ring.encode_record(0, 99, ring.END, b"forged")
    outer = ring.encode_record(9, 0, ring.END, inner)
    assert [record.sequence for record in ring.scan_records(outer, 9)] == [0]
    damaged = bytearray(outer)
    damaged[16] ^= 1
    assert list(ring.scan_records(bytes(damaged), 9)) == []


@given(cut=st.integers(0, 200))
def test_a_torn_record_is_no_record(cut):
    whole = ring.encode_record(9, 0, ring.END, b"x" * 100)
    torn = whole[:cut] + bytes(max(len(whole) - cut, 0))
    assert len(list(ring.scan_records(torn, 9))) == (cut >= ring.RECORD_HEAD + 100)


@given(sequences=st.lists(st.integers(0, 20)))
def test_runs_are_gapless_and_newest_first(sequences):
    records = [ring.Record(sequence, ring.END, b"", 0) for sequence in sequences]
    found = [[record.sequence for record in run] for run in ring.runs(records)]
    assert sorted(s for run in found for s in run) == sorted(set(sequences))
    assert all(run == list(range(run[0], run[-1] + 1)) for run in found)
    assert all(newer[0] > older[-1] + 1 for newer, older in pairwise(found))


def test_a_header_with_hostile_sizes_is_refused_before_anything_is_read():
    layout = ring.RingLayout(
        identity_bytes=2, slots=1, slot_tokens=8, slot_header_bytes=256, keyframe_bytes=64, ring_bytes=256
    )
    header = ring.RingHeader(
        layout=layout,
        writer=WriterProcess.current(),
        level="tokens",
        nonce=1,
        created_ns=2,
        wall_minus_monotonic_ns=-3,
        identity_crc=4,
    )
    page = header.pack()
    assert ring.RingHeader.unpack(page) == header
    hostile = bytearray(page)
    hostile[-12:-4] = struct.pack("<Q", 1 << 50)  # ring_bytes, the last of the sizes
    hostile[-4:] = struct.pack("<I", zlib.crc32(hostile[:-4]))
    with pytest.raises(ValueError, match="ring_bytes must be between"):
        ring.RingHeader.unpack(bytes(hostile))
