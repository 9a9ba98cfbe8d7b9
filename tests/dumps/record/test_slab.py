from __future__ import annotations

import pytest

from dumps.record.image import read_ring
from dumps.record.slab import GROUP_TOKENS, read_slot
from tests.flight import make_config, make_recorder


@pytest.fixture
def slab(tmp_path):
    """A recorder's slab, and a way to read it."""
    recorder = make_recorder(tmp_path / "a.ring", make_config(), slots=3, slot_tokens=100)

    def slots():
        return read_ring(tmp_path / "a.ring").slots

    return recorder._slab, slots


def tokens(slot) -> dict[int, int]:
    return {at + place: token for at, ids in slot.pieces for place, token in enumerate(ids)}


def test_tokens_by_position(slab):
    writer, slots = slab
    writer.add(1, b"{}", [7, 8, 9], cut=False)
    writer.draw([1], [20])
    writer.draw([1], [-1])
    writer.draw([1], [21])
    writer.flush()
    writer.draw([1], [22])
    writer.flush()
    assert tokens(slots()[1]) == {0: 7, 1: 8, 2: 9, 3: 20, 4: 21, 5: 22}
    assert slots()[1].length == 6


def test_a_group_waits_until_it_is_worth_writing(slab):
    writer, slots = slab
    writer.add(1, b"{}", [7], cut=False)
    for step in range(3 * GROUP_TOKENS - 1):
        writer.draw([1], [step])
        writer.flush_turn(step)
    assert slots()[1].length > GROUP_TOKENS
    assert len(writer.pending[1]) < GROUP_TOKENS


def test_the_slot_that_was_finished_first_is_taken_first(slab):
    writer, slots = slab
    for serial in (1, 2, 3):
        writer.add(serial, b"{}", [serial], cut=False)
    writer.finish(2, 10, "stop", "eos")
    writer.finish(1, 11, "length", "max-tokens")
    writer.add(4, b"{}", [4], cut=False)
    assert sorted(slots()) == [1, 3, 4]
    assert slots()[1].ended == (11, "length", "max-tokens")
    assert slots()[3].ended is None
    writer.add(5, b"{}", [5], cut=False)
    writer.add(6, b"{}", [6], cut=False)
    assert sorted(slots()) == [3, 4, 5]


def test_no_damaged_byte_changes_a_token(tmp_path):
    recorder = make_recorder(tmp_path / "a.ring", make_config(), slots=1, slot_tokens=24)
    writer = recorder._slab
    writer.add(1, b'{"id":"r"}', [300, 400, 500], cut=False)
    for token in (600, 700, 800):
        writer.draw([1], [token])
        writer.flush()
    writer.finish(1, 3, "stop", "eos")
    image = read_ring(tmp_path / "a.ring")
    layout, nonce = image.header.layout, image.header.nonce
    data = (tmp_path / "a.ring").read_bytes()[layout.slab_at : layout.slab_at + layout.slot_bytes]
    whole = read_slot(data, layout, nonce)
    assert whole is not None
    truth = tokens(whole)
    for at in [*range(200), *range(layout.slot_header_bytes, layout.slot_bytes)]:
        slot = read_slot(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :], layout, nonce)
        if slot is not None:
            assert tokens(slot).items() <= truth.items()
            assert (slot.serial, slot.num_prompt, slot.header) == (1, 3, {"id": "r"})
            assert slot.ended in (None, (3, "stop", "eos"))
            assert slot.length in (None, 6)
