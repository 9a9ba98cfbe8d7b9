"""KV contents of a dump: its tensors in parts, each checked when it is read, none that contradicts the rest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.errors import CorruptDump, InvalidState
from dumps.kv_contents import CONTENTS, SCALES, RecordedContents, has_contents
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import SectionData, write_dump
from dumps.strategies.valid import dumps
from dumps.tensors import le32

BLOCKS = [5, 0, 3]
SHAPE = (len(BLOCKS), 2, 2, 4, 1, 8)
ROW = 2 * 2 * 4 * 8


def make_state(**kv: Any) -> pb.RuntimeState:
    state = pb.RuntimeState()
    state.manifest.id = "0" * 16
    facts = {"num_layers": 2, "block_size": 4, "num_kv_heads": 1, "head_dim": 8, "num_blocks": 6, "quant_bits": 8}
    state.kv.MergeFrom(pb.KvCache(**facts | {"dtype": "float32", "contents_blocks": le32(BLOCKS)} | kv))
    return state


def tensors() -> tuple[np.ndarray, np.ndarray]:
    values = np.arange(np.prod(SHAPE)).reshape(SHAPE).astype(np.int8)
    return values, np.arange(values.size // 8, dtype=np.float32).reshape(SHAPE[:-1])


def write(path: Path, state: pb.RuntimeState, *, compress: bool = False, part_bytes: int = ROW, **changed: Any) -> Path:
    values, scales = tensors()
    found = {CONTENTS: (values, "int8"), SCALES: (scales, "float32")}
    found |= {f"kv-{name}": change for name, change in changed.items()}
    sections = [
        SectionData(
            kind=kind, data=tensor.data, dtype=dtype, shape=tensor.shape, compress=compress, part_bytes=part_bytes
        )
        for kind, (tensor, dtype) in found.items()
        if tensor is not None
    ]
    write_dump(path, state, sections)
    return path


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(("part_bytes", "parts"), [(ROW, 3), (2 * ROW + 1, 2), (100 * ROW, 1)])
def test_parts_hold_their_blocks_and_can_be_read_side_by_side(tmp_path, compress, part_bytes, parts):
    values, scales = tensors()
    with open_dump(write(tmp_path / "d.pplx", make_state(), compress=compress, part_bytes=part_bytes)) as dump:
        contents = RecordedContents(dump)
        contents.read_scales()
        assert (contents.num_parts, contents.num_bytes) == (parts, values.nbytes + scales.nbytes)
        with ThreadPoolExecutor(2) as pool:
            read = list(pool.map(contents.part, range(parts)))
        assert [block for part in read for block in part.blocks] == BLOCKS
        assert np.array_equal(np.concatenate([part.values for part in read]), values)
        assert np.array_equal(np.concatenate([part.scales for part in read]), scales)
        assert not any(part.values.flags.writeable for part in read)
        del read


def test_a_part_is_verified_when_it_is_read(tmp_path):
    path = write(tmp_path / "d.pplx", make_state())
    with open_dump(path) as dump:
        at = dump.parts(CONTENTS)[1].data_offset
    data = bytearray(path.read_bytes())
    data[at + 3] ^= 1
    path.write_bytes(data)
    with open_dump(path) as dump:
        contents = RecordedContents(dump)
        contents.part(0)
        with pytest.raises(CorruptDump):
            contents.part(1)


VALUES, FACTORS = tensors()


@pytest.mark.parametrize(
    ("kv", "changed", "words"),
    [
        ({"contents_blocks": le32([5, 0])}, {}, "kv-contents has shape"),
        ({"contents_blocks": b""}, {}, "kv-contents has shape"),
        ({"contents_blocks": le32([5, 0, 5])}, {}, "kv-contents names a block twice"),
        ({"contents_blocks": le32([5, 0, 6])}, {}, "kv-contents names a block twice, or one outside 0 to 5"),
        ({"head_dim": 4}, {}, "kv-contents has shape"),
        ({"quant_bits": 0}, {}, "kv-contents is int8, the cache is float32"),
        ({}, {"contents": (VALUES.astype(np.uint8), "uint8")}, "kv-contents is uint8, the cache is int8"),
        ({}, {"scales": (None, "")}, "kv-scales is missing"),
        ({}, {"scales": (FACTORS[:2], "float32")}, "kv-scales has shape"),
        ({}, {"scales": (FACTORS[..., None], "float32")}, "kv-scales has shape"),
        ({}, {"scales": (FACTORS.astype(np.float64), "float64")}, "kv-scales is float64"),
    ],
)
def test_tensors_that_contradict_the_dump_are_refused(tmp_path, kv, changed, words):
    with open_dump(write(tmp_path / "d.pplx", make_state(**kv), **changed)) as dump:
        assert has_contents(dump)
        with pytest.raises(InvalidState, match=words):
            RecordedContents(dump)


def test_a_dump_without_contents_has_none(tmp_path):
    write_dump(tmp_path / "d.pplx", make_state())
    with open_dump(tmp_path / "d.pplx") as dump:
        assert not has_contents(dump)
        with pytest.raises(InvalidState, match="missing"):
            RecordedContents(dump)


@given(made=dumps(), part_bytes=st.sampled_from([1, 10_000]))
def test_whatever_contents_a_valid_dump_has_can_be_read(tmp_path_factory, made, part_bytes):
    state, sections = made
    if not state.kv.contents_blocks:
        return
    path = tmp_path_factory.mktemp("made") / "d.pplx"
    rows = len(state.kv.contents_blocks) // 4
    least = {section.kind: max(part_bytes, len(section.data) // rows) for section in sections if section.shape}
    write_dump(
        path,
        state,
        [
            SectionData(kind=s.kind, data=s.data, dtype=s.dtype, shape=s.shape, part_bytes=least.get(s.kind, 1000))
            for s in sections
        ],
    )
    with open_dump(path) as dump:
        contents = RecordedContents(dump)
        contents.read_scales()
        parts = [contents.part(index) for index in range(contents.num_parts)]
        assert [block for part in parts for block in part.blocks] == contents.blocks
        assert b"".join(part.values.tobytes() for part in parts) == dump.read_section(CONTENTS)
        assert all((part.scales is None) == (state.kv.quant_bits == 0) for part in parts)
        del parts
