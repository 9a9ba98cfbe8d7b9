"""What the writer promises beyond being read back."""

from __future__ import annotations

import stat

import numpy as np
import pytest

from dumps.errors import DumpError, InvalidState, TornDump
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import DumpWriter, write_dump
from tests.small_dump import small_sections, small_state, write_small


def test_only_the_owner_can_read_it(tmp_path):
    write_small(tmp_path / "a.pplx")
    assert stat.S_IMODE((tmp_path / "a.pplx").stat().st_mode) == 0o600


def test_it_never_replaces_a_file(tmp_path):
    (tmp_path / "a.pplx").write_text("precious")
    with pytest.raises(DumpError, match="exists already"):
        DumpWriter(tmp_path / "a.pplx")
    assert (tmp_path / "a.pplx").read_text() == "precious"


def test_it_does_not_follow_a_link(tmp_path):
    (tmp_path / "a.pplx").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DumpError):
        DumpWriter(tmp_path / "a.pplx")
    assert not (tmp_path / "elsewhere").exists()


def test_no_folder(tmp_path):
    with pytest.raises(DumpError, match="cannot create"):
        DumpWriter(tmp_path / "missing" / "a.pplx")


def test_the_same_state_gives_the_same_bytes(tmp_path):
    assert write_small(tmp_path / "a.pplx") == write_small(tmp_path / "b.pplx")


def test_payloads_are_aligned_whatever_stands_before_them(tmp_path):
    for length in range(70):
        state = small_state()
        state.active_model = "m" * length
        path = tmp_path / f"{length}.pplx"
        write_dump(path, state, small_sections())
        with open_dump(path) as dump:
            assert all(info.aligned for info in dump.sections if info.data_size)
            dump.verify()


def test_every_step_of_writing_leaves_a_readable_file(tmp_path):
    """Each seal has reached the file before the next call, as a dying writer needs."""
    path = tmp_path / "a.pplx"
    writer = DumpWriter(path)
    with pytest.raises(TornDump):
        open_dump(path, salvage=True)
    writer.head(small_state())
    kinds: list[str] = []
    for section in small_sections():
        with open_dump(path, salvage=True) as dump:
            assert dump.state == small_state()
            assert [info.kind for info in dump.sections] == kinds
        writer.section(section.kind, section.data, dtype=section.dtype, shape=section.shape)
        kinds.append(section.kind)
    writer.close()
    writer.close()
    with open_dump(path) as dump:
        assert [info.kind for info in dump.sections] == kinds


def test_an_exception_leaves_a_torn_file(tmp_path):
    def fail() -> None:
        with DumpWriter(tmp_path / "a.pplx") as writer:
            writer.head(small_state())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with pytest.raises(TornDump):
        open_dump(tmp_path / "a.pplx")


def test_data_that_compresses_too_well_is_stored_raw(tmp_path):
    """Its ratio would pass for a decompression bomb."""
    with DumpWriter(tmp_path / "a.pplx") as writer:
        writer.head(small_state())
        writer.section("zeros", bytes(8 * 1024 * 1024))
    with open_dump(tmp_path / "a.pplx") as dump:
        assert dump.sections[0].encoding == "raw"
        assert dump.read_section("zeros") == bytes(8 * 1024 * 1024)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (pb.RuntimeState(active_model="m"), "without a manifest"),
        (pb.RuntimeState(manifest=pb.Manifest(), trailer=1), "trailer"),
        (pb.RuntimeState(manifest=pb.Manifest(), sections=[pb.Section()]), "sections"),
        (pb.RuntimeState(manifest=pb.Manifest(), padding=b"x"), "padding"),
    ],
)
def test_states_that_no_reader_would_take(tmp_path, state, says):
    with DumpWriter(tmp_path / "a.pplx") as writer:
        with pytest.raises(InvalidState, match=says):
            writer.head(state)
        writer.head(small_state())


class TestMisuse:
    @pytest.fixture
    def writer(self, tmp_path):
        with DumpWriter(tmp_path / "a.pplx", part_bytes=16) as writer:
            writer.head(small_state())
            writer.section("first", b"")
            yield writer
        with open_dump(tmp_path / "a.pplx") as dump:
            assert [info.kind for info in dump.sections] == ["first"]

    def test_two_heads(self, writer):
        with pytest.raises(InvalidState, match="one head"):
            writer.head(small_state())

    def test_one_kind_twice(self, writer):
        with pytest.raises(InvalidState, match="written once"):
            writer.section("first", b"")

    def test_no_kind(self, writer):
        with pytest.raises(InvalidState, match="has a name"):
            writer.section("", b"")

    def test_a_shape_that_does_not_fit(self, writer):
        with pytest.raises(InvalidState, match="does not take"):
            writer.section("t", b"abcd", dtype="float32", shape=(2,))

    def test_a_row_larger_than_a_part(self, writer):
        data = np.zeros((2, 5), np.float32)
        with pytest.raises(InvalidState, match="larger than a part"):
            writer.section("t", data.tobytes(), dtype="float32", shape=data.shape)


def test_sections_need_a_head(tmp_path):
    writer = DumpWriter(tmp_path / "a.pplx")
    with pytest.raises(InvalidState, match="head comes before"):
        writer.section("log", b"")
    with pytest.raises(InvalidState, match="without a head"):
        writer.close()
