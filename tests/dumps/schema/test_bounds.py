"""Limits are checked before memory is spent."""

from __future__ import annotations

import resource
import subprocess
import sys
import tracemalloc

import pytest
import zstandard

from dumps.errors import CorruptDump, LimitExceeded
from dumps.limits import MIB, Limits
from dumps.schema import state_pb2 as pb
from dumps.schema.bounds import check_bounds
from dumps.schema.layout import PREFIX
from dumps.schema.reader import open_dump
from dumps.schema.seals import RunningSeal, encode_trailer
from dumps.schema.wire import scan
from dumps.schema.writer import write_dump
from tests.small_dump import small_state

GROWTH = 300
"""Bytes that a two-byte message may take when parsed; `dumps.schema.bounds` reckons with 288."""


def bounds(data: bytes, **limits: int) -> None:
    view = memoryview(data)
    check_bounds(view, scan(view), Limits(**limits))


@pytest.mark.parametrize("encoding", ["raw", "zstd"])
def test_a_tiny_file_that_claims_much_allocates_nothing(tmp_path, encoding):
    path = tmp_path / "a.pplx"
    section = pb.Section(kind="x", encoding=encoding, raw_size=512 * MIB, data=b"ab")
    path.write_bytes(sealed(pb.RuntimeState(manifest=pb.Manifest(id="1")), pb.RuntimeState(sections=[section])))
    tracemalloc.start()
    try:
        with pytest.raises((LimitExceeded, CorruptDump)):
            open_dump(path)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_a_payload_that_unpacks_to_more_than_it_says_is_stopped(tmp_path):
    """A few KiB that would become 256 MiB, in a section that claims 2 MiB."""
    path = tmp_path / "a.pplx"
    bomb = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    payload = b"".join(bomb.compress(bytes(MIB)) for _ in range(256)) + bomb.flush() + bytes(3000)
    data = pb.RuntimeState(sections=[pb.Section(kind="x", encoding="zstd", raw_size=2 * MIB, data=payload)])
    head = sealed(pb.RuntimeState(manifest=pb.Manifest(id="1")), data)
    path.write_bytes(head)
    tracemalloc.start()
    try:
        with open_dump(path, salvage=True) as dump, pytest.raises(CorruptDump, match="longer than"):
            dump.read_section("x")
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


def test_a_length_beyond_the_file_allocates_nothing(tmp_path):
    path = tmp_path / "a.pplx"
    path.write_bytes(PREFIX + b"\x0a\xff\xff\xff\xff\x07" + bytes(50))
    tracemalloc.start()
    try:
        with pytest.raises(Exception, match="needs 2147483647 bytes"):
            open_dump(path)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def sealed(*pieces: pb.RuntimeState) -> bytes:
    seal, out = RunningSeal(), b""
    for number, piece in enumerate(pieces):
        data = (b"" if number else PREFIX) + piece.SerializeToString()
        seal.update(data)
        out += data
        made = seal.seal(len(out))
        seal.update(made)
        out += made
    return out + seal.seal(len(out)) + encode_trailer(len(out))


@pytest.mark.parametrize(
    "state",
    [
        pb.RuntimeState(requests=[pb.Request()] * 4000),
        pb.RuntimeState(steps=[pb.Step(scheduled=[pb.Scheduled()] * 4000)]),
        pb.RuntimeState(scheduler=pb.Scheduler(start=pb.Keyframe(running=[pb.RunningRequest()] * 4000))),
    ],
)
def test_many_small_messages(state):
    data = state.SerializeToString()
    bounds(data, head_memory=4 * MIB)
    with pytest.raises(LimitExceeded, match="head_memory"):
        bounds(data, head_memory=MIB)


def test_a_long_packed_list():
    data = pb.RuntimeState(scheduler=pb.Scheduler(waiting=[1] * 100_000)).SerializeToString()
    bounds(data, head_memory=2 * MIB)
    with pytest.raises(LimitExceeded, match="head_memory"):
        bounds(data, head_memory=MIB)


def test_the_rough_bound_is_not_fooled_by_long_tags():
    """A tag that takes more bytes than it needs must not hide a message from the count."""
    data = b"\xb2\x80\x00\x00" * 4000
    assert len(pb.RuntimeState.FromString(data).requests) == 4000
    bounds(data, head_memory=4 * MIB)
    with pytest.raises(LimitExceeded, match="head_memory"):
        bounds(data, head_memory=MIB)


def test_token_lists_are_cheap():
    """Bytes are counted once: a head with long prompts is not taken for a bomb."""
    bounds(
        pb.RuntimeState(requests=[pb.Request(prompt_token_ids=bytes(4 * MIB))]).SerializeToString(), head_memory=5 * MIB
    )


def test_a_long_string_below_the_top_level():
    state = pb.RuntimeState(failures=[pb.Failure(message="x" * 5000)])
    bounds(state.SerializeToString(), string_bytes=5000)
    with pytest.raises(LimitExceeded, match="string_bytes"):
        bounds(state.SerializeToString(), string_bytes=4999)


def test_a_long_string_at_the_top_level():
    with pytest.raises(LimitExceeded, match="string_bytes"):
        bounds(pb.RuntimeState(active_model="x" * 5000).SerializeToString(), string_bytes=4999)


def test_a_malformed_field_below_the_top_level():
    with pytest.raises(CorruptDump):
        bounds(b"\x32\x03\x0a\x09\x0e", head_memory=360)
    with pytest.raises(CorruptDump):
        bounds(b"\x32\x03\x0e\x0e\x0e", head_memory=360)


def test_limits_hold_on_opening(tmp_path):
    state = small_state()
    state.failures[0].message = "x" * 1000
    write_dump(tmp_path / "a.pplx", state)
    with pytest.raises(LimitExceeded, match="string_bytes"):
        open_dump(tmp_path / "a.pplx", limits=Limits(string_bytes=999))
    with pytest.raises(LimitExceeded, match="head_memory"):
        open_dump(tmp_path / "a.pplx", limits=Limits(head_memory=1000))


def test_empty_messages_take_no_more_than_is_reckoned():
    """The constant of `bounds` holds for the protobuf that is installed."""
    script = (
        "import resource; from dumps.schema import state_pb2 as pb; data = b'\\x32\\x00' * 200000\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "state = pb.RuntimeState.FromString(data)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0
    assert int(run.stdout) < GROWTH * 200_000
