from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dumps.errors import CorruptDump, InvalidState
from dumps.kv_contents import CONTENTS, SCALES
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import SectionData, write_dump
from dumps.tensors import le32
from replay.runtime.kv import KvView, NoSuchBlock, Owner
from tests.small_dump import small_state, write_small


def test_tables_and_owners():
    kv = KvView(small_state())
    assert dict(kv)["req-a"].tolist() == [0, 1]
    assert (list(kv), len(kv), kv.num_tokens("req-a"), kv.block_size) == (["req-a"], 1, 4, 2)
    assert kv.owners(1) == [Owner("req-a", 2, 4)]
    assert (kv.owners(2), kv.is_free(2), kv.is_free(1)) == ([], True, False)
    assert kv.ref_counts.tolist() == [1, 1, 0]
    with pytest.raises(NoSuchBlock, match="3"):
        kv.owners(3)
    with pytest.raises(ValueError, match="read-only"):
        kv["req-a"][0] = 9
    with pytest.raises(KeyError):
        kv["req-b"]


def test_a_shared_block_has_several_owners():
    state = small_state()
    state.kv.tables.add(request=1, blocks=le32([1]), num_tokens=1)
    assert KvView(state).owners(1) == [Owner("req-a", 2, 4), Owner("req-b", 0, 1)]


def test_contents(tmp_path: Path):
    write_small(tmp_path / "d.pplx")
    with open_dump(tmp_path / "d.pplx") as dump:
        kv = KvView(dump.state, dump)
        assert kv.recorded_blocks == (1,)
        assert kv.contents(1).tolist() == np.arange(8, dtype=np.float32).reshape(1, 2, 2, 1, 2).tolist()
        assert kv.scales(1) is None
        with pytest.raises(NoSuchBlock, match="block 0"):
            kv.contents(0)
    assert KvView(small_state()).recorded_blocks == ()
    with pytest.raises(NoSuchBlock, match="no dump is open"):
        KvView(small_state()).contents(1)


def test_an_int8_cache_in_several_parts(tmp_path: Path):
    state = pb.RuntimeState(kv=pb.KvCache(num_layers=1, block_size=2, num_kv_heads=1, head_dim=4, num_blocks=6))
    state.manifest.id = "0" * 16
    state.kv.quant_bits, state.kv.dtype, state.kv.contents_blocks = 8, "float32", le32([5, 0, 3])
    values = np.arange(48, dtype=np.int8).reshape(3, 1, 2, 2, 1, 4)
    scales = np.arange(12, dtype=np.float32).reshape(3, 1, 2, 2, 1)
    sections = [
        SectionData(kind=CONTENTS, data=values.data, dtype="int8", shape=values.shape, part_bytes=16),
        SectionData(kind=SCALES, data=scales.data, dtype="float32", shape=scales.shape),
    ]
    write_dump(tmp_path / "d.pplx", state, sections)
    with open_dump(tmp_path / "d.pplx") as dump:
        kv = KvView(dump.state, dump)
        for row, block in enumerate(kv.recorded_blocks):
            assert kv.contents(block).tolist() == values[row].tolist()
            found = kv.scales(block)
            assert found is not None
            assert found.tolist() == scales[row].tolist()


def test_a_dump_without_an_engine_has_an_empty_cache():
    kv = KvView(pb.RuntimeState())
    assert (len(kv), kv.num_blocks, kv.free_blocks.tolist()) == (0, 0, [])


def test_damaged_tables():
    state = small_state()
    state.kv.tables[0].blocks = b"\1\2\3"
    with pytest.raises(CorruptDump):
        KvView(state)
    state = small_state()
    state.kv.tables[0].request = 7
    with pytest.raises(InvalidState, match="request 7 of 2"):
        KvView(state)
