"""Reading back what was written, and everything that can be wrong with a file."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dumps.errors import BadMagic, CorruptDump, DumpError, InvalidState, LimitExceeded, TornDump, UnsupportedVersion
from dumps.limits import Limits
from dumps.schema import state_pb2 as pb
from dumps.schema.layout import PREFIX
from dumps.schema.reader import open_dump
from dumps.schema.seals import encode_trailer
from dumps.schema.wire import encode_tag
from dumps.schema.writer import DumpWriter, write_dump
from dumps.strategies.valid import dumps
from tests.handmade import field, manifest_field, open_bytes, seal_up
from tests.small_dump import small_sections, small_state, write_small

ROUND_TRIP = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@ROUND_TRIP
@given(made=dumps())
def test_what_is_written_comes_back(tmp_path_factory, made):
    state, sections = made
    path = tmp_path_factory.mktemp("dump") / "a.pplx"
    write_dump(path, state, sections)
    with open_dump(path) as dump:
        assert dump.state == state
        assert dump.torn is None
        for section in sections:
            assert dump.read_section(section.kind) == bytes(section.data)
            if section.dtype:
                tensor = dump.tensor(section.kind)
                assert tensor.shape == section.shape
                assert tensor.tobytes() == bytes(section.data)
        dump.verify()
    assert stock_content(path.read_bytes()) == state


def stock_content(data: bytes) -> pb.RuntimeState:
    """A file as the stock decoder reads it, without the container's fields."""
    read = pb.RuntimeState.FromString(data[6:])
    for name in ("sections", "seals", "padding", "trailer"):
        read.ClearField(name)
    return read


def test_the_stock_decoder_sees_sections_and_active_model(tmp_path):
    read = pb.RuntimeState.FromString(write_small(tmp_path / "a.pplx")[6:])
    assert read.active_model == "smollm2-135m"
    assert [section.kind for section in read.sections] == ["kv-contents", "log", "empty"]
    assert read.sections[0].data == small_sections()[0].data


def test_sections_and_their_tensors(tmp_path):
    write_small(tmp_path / "a.pplx")
    with open_dump(tmp_path / "a.pplx") as dump:
        assert [info.kind for info in dump.sections] == ["kv-contents", "log", "empty"]
        assert [info.encoding for info in dump.sections] == ["raw", "zstd", "raw"]
        assert all(info.aligned for info in dump.sections if info.data_size)
        assert dump.read_section("empty") == b""
        np.testing.assert_array_equal(dump.tensor("kv-contents").ravel(), np.arange(8, dtype=np.float32))
        with pytest.raises(DumpError, match="no section 'nothing'; sections here: kv-contents, log, empty"):
            dump.read_section("nothing")
        with pytest.raises(DumpError, match="not a tensor"):
            dump.tensor("log")


def test_what_was_read_outlives_the_dump(tmp_path):
    write_small(tmp_path / "a.pplx")
    with open_dump(tmp_path / "a.pplx") as dump:
        tensor, text, state = dump.tensor("kv-contents"), dump.read_section("log"), dump.state
    assert tensor.sum() == 28
    assert text.startswith(b"token")
    assert state == small_state()


def test_unknown_fields_are_kept(tmp_path):
    unknown = field(500, b"from a newer release") + encode_tag(501, 0) + b"\x07"
    with open_bytes(tmp_path, seal_up(manifest_field() + unknown)) as dump:
        assert dump.state.SerializeToString().endswith(unknown)
        write_dump(tmp_path / "again.pplx", dump.state)
    with open_dump(tmp_path / "again.pplx") as again:
        assert again.state.SerializeToString().endswith(unknown)


def test_a_head_may_be_sealed_in_pieces(tmp_path):
    rest = pb.RuntimeState(active_model="m").SerializeToString()
    with open_bytes(tmp_path, seal_up(manifest_field(), rest)) as dump:
        assert dump.state.active_model == "m"
        assert dump.state.manifest.id == "1"


class TestNotADump:
    @pytest.mark.parametrize(
        ("data", "says"),
        [
            (pickle.dumps({"a": 1}), "pickle"),
            (gzip.compress(b"PPLX", mtime=0), "gzip"),
            (b"PK\x03\x04....", "zip archive"),
            (b'{"manifest": {}}', "JSON"),
            (b"hello world", "68 65 6c 6c instead of 50 50 4c 58"),
            (b"XLPP\x00\x09", "instead of"),
        ],
    )
    def test_bad_magic_says_what_it_looks_like(self, tmp_path, data, says):
        with pytest.raises(BadMagic, match=says) as caught:
            open_bytes(tmp_path, data)
        assert caught.value.offset == 0
        assert caught.value.remedy

    def test_a_torch_checkpoint_is_never_loaded(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "some.pt", "w") as archive:
            archive.writestr("data.pkl", b"cos\nsystem\n(S'true'\ntR.")
        with pytest.raises(BadMagic, match="torch checkpoint") as caught:
            open_dump(tmp_path / "some.pt")
        assert "Never torch.load it" in caught.value.remedy

    def test_version(self, tmp_path):
        with pytest.raises(UnsupportedVersion, match="0x000a; this release reads 0x0009") as caught:
            open_bytes(tmp_path, b"PPLX\x00\x0a....")
        assert caught.value.offset == 4

    @pytest.mark.parametrize("data", [b"", b"P", b"PPL", b"PPLX", b"PPLX\x00", PREFIX])
    def test_too_short(self, tmp_path, data):
        with pytest.raises(TornDump):
            open_bytes(tmp_path, data)

    def test_no_file(self, tmp_path):
        with pytest.raises(DumpError, match="No such file"):
            open_dump(tmp_path / "nothing.pplx")

    def test_a_name_that_no_file_can_have(self, tmp_path):
        with pytest.raises(DumpError, match="cannot open"):
            open_dump(tmp_path / "a\0b.pplx")

    def test_a_directory(self, tmp_path):
        with pytest.raises(DumpError, match="is a directory"):
            open_dump(tmp_path)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
    def test_a_pipe_does_not_hang(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(DumpError, match="not a regular file"):
            open_dump(tmp_path / "pipe")


class TestCorrupt:
    def test_a_singular_field_stands_once(self, tmp_path):
        with pytest.raises(CorruptDump, match="manifest stands twice"):
            open_bytes(tmp_path, seal_up(manifest_field() + manifest_field()))

    def test_a_singular_field_stands_once_across_seals(self, tmp_path):
        with pytest.raises(CorruptDump, match="manifest stands twice"):
            open_bytes(tmp_path, seal_up(manifest_field(), manifest_field()))

    def test_no_manifest(self, tmp_path):
        with pytest.raises(InvalidState, match="no manifest"):
            open_bytes(tmp_path, seal_up(pb.RuntimeState(active_model="m").SerializeToString()))

    def test_bytes_that_are_not_protobuf(self, tmp_path):
        with pytest.raises(CorruptDump, match="not a RuntimeState"):
            open_bytes(tmp_path, seal_up(field(1, b"\xff\xff\xff")))

    def test_text_that_is_not_utf8(self, tmp_path):
        with pytest.raises(CorruptDump, match="not a RuntimeState"):
            open_bytes(tmp_path, seal_up(manifest_field() + field(2, b"\xff\xfe")))

    def test_groups_nested_beyond_the_depth_limit(self, tmp_path):
        deep = field(1, b"\x0b" * 200 + b"\x0c" * 200)
        with pytest.raises(CorruptDump, match="not a RuntimeState"):
            open_bytes(tmp_path, seal_up(deep))

    def test_content_after_a_section(self, tmp_path):
        section = field(16, pb.Section(kind="x", encoding="raw").SerializeToString())
        data = seal_up(manifest_field(), section + pb.RuntimeState(active_model="m").SerializeToString())
        with pytest.raises(CorruptDump, match="content field 2 after the first section"):
            open_bytes(tmp_path, data)

    def test_content_is_sealed_before_sections(self, tmp_path):
        section = field(16, pb.Section(kind="x", encoding="raw").SerializeToString())
        with pytest.raises(CorruptDump, match="not sealed before the first section"):
            open_bytes(tmp_path, seal_up(manifest_field() + section))

    @pytest.mark.parametrize("payload", [b"\0\0\x01", bytes(128)])
    def test_padding_hides_nothing(self, tmp_path, payload):
        with pytest.raises(CorruptDump, match="padding must be"):
            open_bytes(tmp_path, seal_up(manifest_field(), field(15, payload)))

    def test_the_directory_lists_what_is_there(self, tmp_path):
        section = field(16, pb.Section(kind="x", encoding="raw").SerializeToString())
        with pytest.raises(CorruptDump, match="directory"):
            open_bytes(tmp_path, seal_up(manifest_field(), section))

    def test_a_container_field_of_another_wire_type(self, tmp_path):
        with pytest.raises(CorruptDump, match="wire type"):
            open_bytes(tmp_path, seal_up(manifest_field(), encode_tag(15, 0) + b"\x01"))

    def test_a_second_trailer(self, tmp_path):
        data = seal_up(manifest_field())
        with pytest.raises(CorruptDump, match="after the trailer"):
            open_bytes(tmp_path, data + data[-9:])


class TestLastSeal:
    """No hash covers the bytes of the last seal and of the trailer, so each has one encoding only."""

    HEAD = PREFIX + manifest_field()

    def file(self, *, start=0, spoil=lambda body: body, between=b"") -> bytes:
        digest = hashlib.sha256(self.HEAD[start:]).digest()
        seal = field(14, spoil(pb.Seal(start=start, sha256=digest).SerializeToString()))
        made: bytes = self.HEAD + seal + between + encode_trailer(len(self.HEAD))
        return made

    def test_the_helper_makes_good_ones(self, tmp_path):
        with open_bytes(tmp_path, self.file()) as dump:
            assert dump.state.manifest.id == "1"

    def test_it_covers_from_the_seal_before_it(self, tmp_path):
        with pytest.raises(CorruptDump, match="starts at 7 instead of 0"):
            open_bytes(tmp_path, self.file(start=7))

    def test_it_holds_nothing_but_its_fields(self, tmp_path):
        with pytest.raises(CorruptDump, match="canonical"):
            open_bytes(tmp_path, self.file(spoil=lambda body: body + field(99, b"hidden")))

    def test_its_fields_are_in_order(self, tmp_path):
        with pytest.raises(CorruptDump, match="canonical"):
            open_bytes(tmp_path, self.file(spoil=lambda body: body + body))

    def test_nothing_stands_between_it_and_the_trailer(self, tmp_path):
        with pytest.raises(CorruptDump, match="does not follow a seal"):
            open_bytes(tmp_path, self.file(between=field(15, bytes(2))))

    def test_it_is_checked_on_opening(self, tmp_path):
        data = bytearray(write_small(tmp_path / "a.pplx"))
        data[-12] ^= 1  # in the hash of the last seal
        with pytest.raises(CorruptDump, match="not what was sealed"):
            open_bytes(tmp_path, data)


class TestReadsOnlyWhatIsAsked:
    def test_a_damaged_section_does_not_hide_the_rest(self, tmp_path):
        data = bytearray(write_small(tmp_path / "a.pplx"))
        with open_dump(tmp_path / "a.pplx") as dump:
            log = next(info for info in dump.sections if info.kind == "log")
        data[log.data_offset + 3] ^= 1
        with open_bytes(tmp_path, data) as dump:
            assert dump.state == small_state()
            assert dump.tensor("kv-contents").size == 8
            with pytest.raises(CorruptDump, match="not what was sealed"):
                dump.read_section("log")
            with pytest.raises(CorruptDump, match="not what was sealed"):
                dump.verify()


class TestSalvage:
    def test_a_whole_file_is_not_torn(self, tmp_path):
        write_small(tmp_path / "a.pplx")
        with open_dump(tmp_path / "a.pplx", salvage=True) as dump:
            assert dump.torn is None
            assert len(dump.sections) == 3

    def test_a_writer_that_died_leaves_what_it_sealed(self, tmp_path):
        path = tmp_path / "a.pplx"
        writer = DumpWriter(path)
        writer.head(small_state())
        writer.section("log", b"first")
        writer.abandon()
        with pytest.raises(TornDump, match="no final seal") as caught:
            open_dump(path)
        assert f"recover {path} -o" in caught.value.remedy
        with open_dump(path, salvage=True) as dump:
            assert dump.state == small_state()
            assert dump.read_section("log") == b"first"
            assert dump.torn is not None
            assert dump.torn.offset == path.stat().st_size

    def test_a_bad_section_is_left_out_and_later_ones_stay(self, tmp_path):
        data = bytearray(write_small(tmp_path / "a.pplx"))
        with open_dump(tmp_path / "a.pplx") as dump:
            first = dump.sections[0]
        data[first.data_offset] ^= 1
        with open_bytes(tmp_path, data, salvage=True) as dump:
            assert [info.kind for info in dump.sections] == ["log", "empty"]
            assert dump.torn is not None
            assert dump.torn.offset < first.offset
            assert "not what was sealed" in dump.torn.reason

    def test_parts_after_a_gap_are_left_out(self, tmp_path):
        path = tmp_path / "a.pplx"
        with DumpWriter(path, part_bytes=10) as writer:
            writer.head(small_state())
            writer.section("log", b"0123456789" * 3, compress=False)
        with open_dump(path) as dump:
            middle = dump.parts("log")[1]
        data = bytearray(path.read_bytes())
        data[middle.data_offset] ^= 1
        with open_bytes(tmp_path, data, salvage=True) as dump:
            assert dump.read_section("log") == b"0123456789"

    def test_a_bad_head_yields_nothing(self, tmp_path):
        data = bytearray(write_small(tmp_path / "a.pplx"))
        data[20] ^= 1
        with pytest.raises(CorruptDump):
            open_bytes(tmp_path, data, salvage=True)


def test_a_file_that_is_cut_while_open(tmp_path):
    path = tmp_path / "a.pplx"
    write_small(path)
    with open_dump(path) as dump:
        os.truncate(path, 300)
        with pytest.raises(TornDump, match="while it was open"):
            dump.read_section("log")


@given(st.integers(0, 3))
def test_limits_are_named_in_their_errors(tmp_path_factory, which):
    path = tmp_path_factory.mktemp("limits") / "a.pplx"
    write_small(path)
    name, value = [("file_bytes", 100), ("head_bytes", 100), ("sections", 1), ("total_raw_bytes", 100)][which]
    with pytest.raises(LimitExceeded, match=name):
        open_dump(path, limits=Limits(**{name: value}))
