"""A damaged file gives a `DumpError` or what was written, and nothing else."""

from __future__ import annotations

import contextlib
import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dumps.errors import BadMagic, CorruptDump, DumpError, TornDump
from dumps.limits import Limits
from dumps.schema import state_pb2 as pb
from dumps.schema.container import read_container
from dumps.schema.raw import raw_structure
from dumps.schema.reader import open_dump
from dumps.schema.writer import SectionData, write_dump
from dumps.strategies.damage import EDITS, damaged
from dumps.strategies.valid import dumps
from tests.small_dump import small_sections, small_state, write_small


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> bytes:
    return write_small(tmp_path_factory.mktemp("small") / "small.pplx")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("damage") / "damaged.pplx"


def read_all(path):
    """Everything a reader can be asked for: state and sections, all verified."""
    with open_dump(path) as dump:
        dump.verify()
        return dump.state, [dump.read_section(kind) for kind in dict.fromkeys(i.kind for i in dump.sections)]


def whole():
    return small_state(), [bytes(section.data) for section in small_sections()]


def test_undamaged(small, place):
    place.write_bytes(small)
    assert read_all(place) == whole()


def test_every_flipped_bit_is_found(place):
    """Every bit of a file that has everything a file can have: content, padding, both encodings, seals, trailer."""
    place.unlink(missing_ok=True)
    state = pb.RuntimeState(manifest=pb.Manifest(id="1"), active_model="m", requests=[pb.Request(id="a")])
    write_dump(
        place,
        state,
        [
            SectionData(kind="t", data=b"abcd", dtype="int16", shape=(2,)),
            SectionData(kind="z", data=b"z" * 99),
        ],
    )
    silent = []
    with open(place, "r+b", buffering=0) as file:
        data = file.read()
        for bit in range(8 * len(data)):
            os.pwrite(file.fileno(), bytes([data[bit // 8] ^ 1 << bit % 8]), bit // 8)
            try:
                read_all(place)
                silent.append(bit)
            except DumpError:
                pass
            os.pwrite(file.fileno(), data[bit // 8 : bit // 8 + 1], bit // 8)
    assert not silent
    assert read_all(place)[0] == state


def test_every_cut_is_torn(small, place):
    for length in range(len(small)):
        place.write_bytes(small[:length])
        with pytest.raises(TornDump):
            read_all(place)


def test_every_cut_yields_its_last_good_seal(small, place):
    place.write_bytes(small)
    with open_dump(place) as dump:
        head_end = dump.seals[0].end
        sections = [(seal.end, info.kind) for seal, info in zip(dump.seals[1:], dump.sections, strict=False)]
    for length in range(len(small)):
        place.write_bytes(small[:length])
        if length < head_end:
            with pytest.raises(TornDump):
                open_dump(place, salvage=True)
            continue
        with open_dump(place, salvage=True) as dump:
            assert dump.state == small_state()
            assert [info.kind for info in dump.sections] == [kind for end, kind in sections if end <= length]
            assert dump.torn is not None
            assert dump.torn.offset <= length


@given(st.binary(min_size=1, max_size=40))
def test_bytes_after_the_end(small, place, extra):
    place.write_bytes(small + extra)
    with pytest.raises(DumpError):
        read_all(place)


def test_200_random_places(small, place):
    dice = random.Random(20261130)
    problems: list[DumpError] = []
    for _ in range(200):
        changed = bytearray(small)
        for _ in range(dice.randint(1, 4)):
            changed[dice.randrange(len(changed))] = dice.randrange(256)
        place.write_bytes(changed)
        try:
            assert read_all(place) == whole()
        except DumpError as error:
            problems.append(error)
    assert len(problems) > 150
    assert all(error.message and error.remedy for error in problems)


@given(st.data())
def test_any_damage_gives_an_error_or_what_was_written(small, place, data):
    changed = data.draw(damaged(small))
    place.write_bytes(changed)
    with contextlib.suppress(DumpError):
        assert read_all(place) == whole()
    wanted = {section.kind: section.data for section in small_sections()}
    with contextlib.suppress(DumpError), open_dump(place, salvage=True) as dump:
        assert dump.state == small_state()
        for info in dump.sections:
            assert dump.read_section(info.kind) == wanted[info.kind]


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(made=dumps(), data=st.data())
def test_any_damage_to_any_dump(tmp_path_factory, made, data):
    state, sections = made
    path = tmp_path_factory.mktemp("any") / "a.pplx"
    write_dump(path, state, sections)
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    with contextlib.suppress(DumpError):
        assert read_all(path) == (state, [bytes(section.data) for section in sections])


@given(st.binary(max_size=300), st.booleans())
def test_arbitrary_bytes(place, data, with_prefix):
    place.write_bytes((b"PPLX\x00\x09" if with_prefix else b"") + data)
    for salvage in (False, True):
        with pytest.raises(DumpError):
            open_dump(place, salvage=salvage)


def test_byte_by_byte(small):
    """Growing prefixes: the scan never fails otherwise than by being cut, and finds ever more."""
    seals = sections = 0
    for length in range(len(small) + 1):
        found = read_container(memoryview(small[:length]), Limits())
        assert found.problem is None if length == len(small) else isinstance(found.problem, TornDump)
        assert len(found.seals) >= seals
        assert len(found.sections) >= sections
        seals, sections = len(found.seals), len(found.sections)
    assert (seals, sections) == (5, 3)


@given(st.data())
def test_the_raw_view_reads_as_far_as_it_can(small, data):
    changed = data.draw(damaged(small))
    nodes, end = [], 0
    with contextlib.suppress(DumpError):
        for node in raw_structure(memoryview(changed), most_alike=None):
            nodes.append(node)
            end = max(end, node.offset + node.length)
    assert end <= len(changed)
    assert all(node.value.isprintable() for node in nodes)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_each_kind_of_damage_does_something(edit):
    found = set()

    @settings(max_examples=20, database=None)
    @given(st.data())
    def collect(data):
        found.add(edit(b"some bytes here", lambda low, high: data.draw(st.integers(low, high))))

    collect()
    assert found - {b"some bytes here"}


def test_swapped_halves_are_not_magic(place, small):
    place.write_bytes(small[100:] + small[:100])
    with pytest.raises((BadMagic, CorruptDump)):
        open_dump(place)
