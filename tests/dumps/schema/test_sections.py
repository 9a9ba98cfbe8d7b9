"""Sections: what their headers may claim, and how their payloads are decoded."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard

from dumps.errors import CorruptDump, LimitExceeded
from dumps.schema import state_pb2 as pb
from dumps.schema.layout import PREFIX
from dumps.schema.reader import open_dump
from dumps.schema.seals import RunningSeal
from dumps.schema.writer import DumpWriter
from tests.handmade import field, manifest_field, open_bytes, seal_up
from tests.small_dump import small_state


def section_bytes(payload: bytes, **header) -> bytes:
    """A sealed file with one section, whatever it claims."""
    section = field(16, pb.Section(**{"kind": "x", "encoding": "raw"} | header, data=payload).SerializeToString())
    offset = len(seal_up_front())
    kind = header.get("kind", "x")
    return seal_up(manifest_field(), section, entries=[(kind, header.get("part", 0), offset, len(section))])


def seal_up_front() -> bytes:
    seal = RunningSeal()
    seal.update(PREFIX + manifest_field())
    return PREFIX + manifest_field() + seal.seal(len(PREFIX + manifest_field()))


def test_the_helper_makes_good_ones(tmp_path):
    with open_bytes(tmp_path, section_bytes(b"abcd", raw_size=4)) as dump:
        assert dump.read_section("x") == b"abcd"


@pytest.mark.parametrize(
    ("payload", "header", "error"),
    [
        (b"abcd", {"raw_size": 5}, CorruptDump),
        (b"abcd", {"raw_size": 4, "encoding": "gzip"}, CorruptDump),
        (b"abcd", {"raw_size": 4, "encoding": ""}, CorruptDump),
        (b"abcd", {"raw_size": 4, "kind": ""}, CorruptDump),
        (b"abcd", {"raw_size": 4, "part": 1}, CorruptDump),
        (b"abcd", {"raw_size": 4, "shape": [4]}, CorruptDump),
        (b"abcd", {"raw_size": 4, "dtype": "float32", "shape": [2]}, CorruptDump),
        (b"abcd", {"raw_size": 4, "dtype": "object", "shape": [1]}, CorruptDump),
        (b"", {"dtype": "float32", "shape": [2**62, 4]}, CorruptDump),
        (b"abcd", {"raw_size": 4, "kind": "x" * 65}, LimitExceeded),
        (b"abcd", {"raw_size": 4, "dtype": "int8", "shape": [1] * 17 + [4]}, LimitExceeded),
        (b"abcd", {"raw_size": 2**29 + 1}, LimitExceeded),
        (b"\x28\xb5\x2f\xfd", {"raw_size": 2**29, "encoding": "zstd"}, LimitExceeded),
        (b"", {"shape": [1] * 5000}, LimitExceeded),
    ],
)
def test_claims_are_checked_on_opening(tmp_path, payload, header, error):
    with pytest.raises(error):
        open_bytes(tmp_path, section_bytes(payload, **header))


@pytest.mark.parametrize(
    ("spoil", "raw_size"),
    [
        (lambda good: good, 999),
        (lambda good: good, 1001),
        (lambda good: good[:-3], 1000),
        (lambda good: b"no zstd" + good, 1000),
        (lambda good: good + b"more", 1000),
        (lambda good: good + good, 1000),
        (lambda good: b"", 1000),
    ],
)
def test_a_payload_that_is_not_one_frame_of_that_size(tmp_path, spoil, raw_size):
    payload = spoil(zstandard.ZstdCompressor().compress(b"a" * 1000))
    data = section_bytes(payload, raw_size=raw_size, encoding="zstd")
    with open_bytes(tmp_path, data) as dump, pytest.raises(CorruptDump):
        dump.read_section("x")


def test_parts_are_joined(tmp_path):
    array = np.arange(30, dtype=np.int32).reshape(5, 3, 2)
    with DumpWriter(tmp_path / "a.pplx", part_bytes=50) as writer:
        writer.head(small_state())
        writer.section("t", array.tobytes(), dtype="int32", shape=array.shape)
        writer.section("log", b"x" * 120, compress=False)
    with open_dump(tmp_path / "a.pplx") as dump:
        assert [info.shape for info in dump.parts("t")] == [(2, 3, 2), (2, 3, 2), (1, 3, 2)]
        np.testing.assert_array_equal(dump.tensor("t"), array)
        assert [info.raw_size for info in dump.parts("log")] == [50, 50, 20]
        assert dump.read_section("log") == b"x" * 120


def test_parts_that_do_not_fit_together(tmp_path):
    first = field(
        16,
        pb.Section(kind="x", encoding="raw", dtype="int8", shape=[1, 2], raw_size=2, data=b"ab").SerializeToString(),
    )
    second = field(
        16,
        pb.Section(
            kind="x", encoding="raw", dtype="int8", shape=[1, 3], raw_size=3, part=1, data=b"abc"
        ).SerializeToString(),
    )
    with pytest.raises(CorruptDump, match="does not fit its first part"):
        open_bytes(tmp_path, seal_up(manifest_field(), first, second))


def test_four_thousand_small_bombs_are_one_bomb(tmp_path):
    """Each part is small enough to compress as it likes; together they would take 4 GiB from half a megabyte."""
    small = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 20))
    sections, entries, at = [], [], len(seal_up_front())
    for part in range(200):
        header = pb.Section(kind="x", part=part, encoding="zstd", raw_size=1 << 20, data=small)
        sections.append(field(16, header.SerializeToString()))
        entries.append(("x", part, at, len(sections[-1])))
        at += len(sections[-1])
    data = seal_up(manifest_field(), b"".join(sections), entries=entries)
    with pytest.raises(LimitExceeded, match="compression_ratio"):
        open_bytes(tmp_path, data)


@pytest.mark.parametrize("shape", [(0, 2**63), (2**40, 2**40, 0), (2**64 - 1, 0)])
def test_a_shape_no_array_can_have_is_corrupt(tmp_path, shape):
    with open_bytes(tmp_path, section_bytes(b"", dtype="float32", shape=shape)) as dump, pytest.raises(CorruptDump):
        dump.tensor("x")
