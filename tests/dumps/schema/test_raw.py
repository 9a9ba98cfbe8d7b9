"""The blob's structure, with offsets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dumps.errors import BadMagic, CorruptDump, TornDump
from dumps.limits import Limits
from dumps.schema import state_pb2 as pb
from dumps.schema.layout import PREFIX
from dumps.schema.raw import RawNode, check_seals, raw_structure
from tests.small_dump import write_small


def collect(source: Iterator[RawNode], into: list[RawNode]) -> None:
    """What came before an error, too."""
    for node in source:
        into.append(node)


@pytest.fixture
def small(tmp_path):
    return memoryview(write_small(tmp_path / "a.pplx"))


def test_from_the_magic_down_to_active_model(small):
    nodes = {node.name: node for node in raw_structure(small) if node.depth == 0}
    assert (nodes["magic"].offset, nodes["magic"].length, nodes["magic"].value) == (0, 4, "PPLX (50 50 4c 58)")
    assert (nodes["version"].offset, nodes["version"].length, nodes["version"].value) == (4, 2, "0x0009 (v0.9.3)")
    assert (nodes["manifest"].offset, nodes["manifest"].number) == (6, 1)
    model = nodes["active_model"]
    assert (model.wire, model.value) == ("length-delimited", '"smollm2-135m"')
    assert bytes(small[model.offset + 2 : model.offset + model.length]) == b"smollm2-135m"
    assert nodes["trailer"].offset + nodes["trailer"].length == len(small)


def test_top_level_nodes_cover_the_file(small):
    at = 0
    for node in raw_structure(small, most_alike=None):
        if node.depth == 0:
            assert node.offset == at
            at += node.length
    assert at == len(small)


def test_children_lie_inside_their_parent(small):
    parents: list[RawNode] = []
    for node in raw_structure(small, most_alike=None):
        del parents[node.depth :]
        if parents:
            assert parents[-1].offset < node.offset
            assert node.offset + node.length <= parents[-1].offset + parents[-1].length
        parents.append(node)


def test_values_of_every_kind(small):
    values = {node.name: node.value for node in raw_structure(small, most_alike=None)}
    assert values["seed"] == "7"
    assert values["top_p"] == "1.0"
    assert values["completed"] == "true"
    assert values["grade"] == "4 (ABSENT)"
    assert values["blocks"] == "2 int32: [0, 1]"
    assert values["output_digests"] == "1 digests"
    assert values["arrived"].endswith("packed: [0, 1]")
    assert values["padding"].endswith(" zeros")
    assert "payload" in values["data"]


def test_long_lists_are_summed_up():
    state = pb.RuntimeState(requests=[pb.Request(id=str(n)) for n in range(9)])
    nodes = list(raw_structure(memoryview(PREFIX + state.SerializeToString()), most_alike=2))
    rest = [node for node in nodes if node.skipped]
    assert [(node.name, node.value, node.skipped) for node in rest] == [("requests", "7 more", 7)]
    assert rest[0].offset + rest[0].length == len(PREFIX + state.SerializeToString())


def test_a_damaged_file_is_shown_up_to_the_damage(small):
    nodes: list[RawNode] = []
    with pytest.raises(TornDump):
        collect(raw_structure(small[:-3], most_alike=None), nodes)
    assert nodes == list(raw_structure(small, most_alike=None))[:-1]


def test_damage_inside_a_message_does_not_hide_what_follows():
    data = PREFIX + b"\x0a\x02\x0f\x0f" + pb.RuntimeState(active_model="m").SerializeToString()
    nodes = list(raw_structure(memoryview(data)))
    assert [node.name for node in nodes] == ["magic", "version", "manifest", "malformed", "active_model"]


def test_unknown_fields_are_shown_as_bytes():
    nodes = list(raw_structure(memoryview(PREFIX + b"\xa2\x1f\x03abc\xa8\x1f\x07\xa9\x1f12345678")))
    assert [(node.name, node.number, node.value) for node in nodes[2:]] == [
        ("unknown", 500, "3 bytes: 61 62 63"),
        ("unknown", 501, "7"),
        ("unknown", 501, "0x3837363534333231"),
    ]


def test_what_is_not_a_dump_shows_its_first_bytes():
    nodes: list[RawNode] = []
    with pytest.raises(BadMagic):
        collect(raw_structure(memoryview(b"\x1b[2Jhello")), nodes)
    assert nodes[0].value == "\\x1b[2J (1b 5b 32 4a)"


def test_seals_are_counted(small):
    assert check_seals(small, Limits()) == (5, 5, None)
    changed = bytearray(small)
    changed[10] ^= 1
    good, total, problem = check_seals(memoryview(changed), Limits())
    assert (good, total) == (4, 5)
    assert isinstance(problem, CorruptDump)
