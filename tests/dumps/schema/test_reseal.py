"""Salvaged dumps, sealed again."""

from __future__ import annotations

import pytest

from dumps.errors import DumpError
from dumps.ledger import weakest
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.reseal import reseal
from dumps.schema.writer import DumpWriter
from tests.small_dump import small_sections, small_state, write_small


def test_a_whole_dump_comes_out_equal(tmp_path):
    data = write_small(tmp_path / "a.pplx")
    with open_dump(tmp_path / "a.pplx") as dump:
        reseal(dump, tmp_path / "b.pplx")
    assert (tmp_path / "b.pplx").read_bytes() == data


def test_a_torn_dump_keeps_what_it_had_and_says_what_it_lost(tmp_path):
    data = write_small(tmp_path / "a.pplx")
    (tmp_path / "torn.pplx").write_bytes(data[:-60])
    with open_dump(tmp_path / "torn.pplx", salvage=True) as torn:
        reseal(torn, tmp_path / "b.pplx")
    with open_dump(tmp_path / "b.pplx") as dump:
        dump.verify()
        entry = weakest(dump.state, "sections")
        assert entry.grade == pb.ABSENT
        assert f"of {len(data) - 60}" in entry.note
        assert dump.read_section("kv-contents") == small_sections()[0].data
        del dump.state.ledger[-1]
        whole = small_state()
        assert dump.state.manifest.id != whole.manifest.id, "the whole dump may turn up in the same folder"
        dump.state.manifest.id = whole.manifest.id
        assert dump.state == whole


def test_advice_does_not_lead_back_to_the_command_that_gave_it(tmp_path):
    (tmp_path / "torn.pplx").write_bytes(write_small(tmp_path / "a.pplx")[:100])
    with pytest.raises(DumpError) as caught:
        open_dump(tmp_path / "torn.pplx", salvage=True)
    assert "pplx-state recover" not in caught.value.remedy
    assert "--salvage" not in caught.value.remedy


def test_tensors_in_parts_keep_their_shape(tmp_path):
    with DumpWriter(tmp_path / "a.pplx", part_bytes=20) as writer:
        writer.head(small_state())
        writer.section("t", bytes(range(60)), dtype="int16", shape=(6, 5))
    with open_dump(tmp_path / "a.pplx") as dump:
        reseal(dump, tmp_path / "b.pplx")
        wanted = dump.tensor("t")
    with open_dump(tmp_path / "b.pplx") as dump:
        assert dump.tensor("t").tolist() == wanted.tolist()


def test_it_does_not_overwrite_its_source(tmp_path):
    write_small(tmp_path / "a.pplx")
    with open_dump(tmp_path / "a.pplx") as dump, pytest.raises(DumpError, match="exists already"):
        reseal(dump, tmp_path / "a.pplx")
