"""A ring that is damaged, cut, or being written still gives the truth or an error, never anything else."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dumps.errors import BadMagic, CorruptDump, DumpError, UnsupportedVersion
from dumps.record.recover import read_ring, state_from_ring
from tests.flight import Flight, make_config, make_recorder


@pytest.fixture(scope="module")
def flown(tmp_path_factory):
    """A flight whose ring has wrapped, with a failure in it, and the ring's bytes."""
    path = tmp_path_factory.mktemp("ring") / "a.ring"
    config = make_config()
    flight = Flight(make_recorder(path, config, ring_bytes=8192, slots=12, slot_tokens=48), config, seed=5)
    flight.fly(60)
    flight.recorder.failure({"kind": "timeout", "step": flight.begins[-1].index})
    flight.fly(20)
    return flight, path.read_bytes(), path.parent


def regions(data: bytes, folder: Path) -> list[tuple[int, int]]:
    path = folder / "regions.ring"
    path.write_bytes(data)
    layout = read_ring(path).header.layout
    return [
        (0, 4096),
        (layout.identity_at, layout.identity_bytes),
        (layout.failures_at, 200),
        (layout.keyframes_at, 2 * layout.keyframe_bytes),
        (layout.slab_at, layout.slots * layout.slot_bytes),
        (layout.ring_at, layout.ring_bytes),
    ]


def check_damaged(flown, data: bytes) -> bool:
    """Whether it could be read; then what was read is true."""
    flight, _, folder = flown
    path = folder / "damaged.ring"
    path.write_bytes(data)
    try:
        state = state_from_ring(read_ring(path))
    except DumpError:
        return False
    flight.check(state)
    return True


@settings(max_examples=150)
@given(data=st.data())
def test_any_byte_damaged(flown, data):
    whole = flown[1]
    begin, size = data.draw(st.sampled_from(regions(whole, flown[2])))
    at = begin + data.draw(st.integers(0, size - 1))
    damaged = bytearray(whole)
    damaged[at] ^= data.draw(st.integers(1, 255))
    check_damaged(flown, bytes(damaged))


@given(data=st.data())
def test_a_stretch_of_zeros_or_noise(flown, data):
    whole = flown[1]
    begin, size = data.draw(st.sampled_from(regions(whole, flown[2])[3:]))
    at = begin + data.draw(st.integers(0, size - 1))
    noise = data.draw(st.one_of(st.binary(min_size=1, max_size=64), st.just(bytes(512))))
    noise = noise[: begin + size - at]
    check_damaged(flown, whole[:at] + noise + whole[at + len(noise) :])


def test_damage_in_the_newest_record_costs_the_newest_step_only(flown):
    flight, whole, folder = flown
    path = folder / "newest.ring"
    path.write_bytes(whole)
    image = read_ring(path)
    layout = image.header.layout
    record = image.runs[0][-1]
    at = layout.ring_at + record.offset + 30
    assert check_damaged(flown, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    state = state_from_ring(read_ring(path))
    assert state.steps[-1].index == flight.begins[-1].index
    assert not state.steps[-1].completed


@pytest.mark.parametrize(
    ("edit", "error", "says"),
    [
        (lambda data: b"XXXX" + data[4:], BadMagic, "not a flight recorder"),
        (lambda data: data[:8] + b"\x09" + data[9:], UnsupportedVersion, "version 9"),
        (lambda data: data[:40] + b"\xff" + data[41:], CorruptDump, "CRC"),
        (lambda data: data[:4100] + b"\xff" + data[4101:], CorruptDump, "which model"),
        (lambda data: data[:-1], CorruptDump, "bytes, its header says"),
        (lambda data: data + b"\0", CorruptDump, "bytes, its header says"),
        (lambda data: data[:100], CorruptDump, "first page"),
        (lambda data: b"", BadMagic, "not a flight recorder"),
    ],
)
def test_each_kind_of_damage_has_its_error(flown, edit, error, says):
    path = flown[2] / "edited.ring"
    path.write_bytes(edit(flown[1]))
    with pytest.raises(error, match=says) as caught:
        read_ring(path)
    assert caught.value.remedy


def test_a_path_that_is_no_file(tmp_path):
    with pytest.raises(DumpError, match="No such file"):
        read_ring(tmp_path / "none")
    with pytest.raises(DumpError):
        read_ring(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DumpError, match="not a regular file"):
        read_ring(tmp_path / "pipe")


def test_a_ring_read_while_it_is_written_is_a_true_moment(tmp_path):
    path = tmp_path / "a.ring"
    config = make_config()
    flight = Flight(make_recorder(path, config, ring_bytes=8192), config, seed=3)
    flight.fly(30)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            flight.fly(1)

    writer = threading.Thread(target=write)
    writer.start()
    states = [state_from_ring(read_ring(path)) for _ in range(25)]
    stop.set()
    writer.join()
    assert sum(bool(state.steps) for state in states) > 12
    for state in states:
        flight.check(state)
