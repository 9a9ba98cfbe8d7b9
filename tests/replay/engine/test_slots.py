"""The ledger of slots, and the digests by which it knows them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.engine import slots as slots_module
from replay.engine.request import Request
from replay.engine.slots import EMPTY, UNKNOWN, Expected, SlotLedger, prefix_digests

tokens = st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 3), min_size=1, max_size=40)


def request(ids, name="r") -> Request:
    return Request(id=name, tokens=list(ids), num_prompt=len(ids))


@given(tokens, st.data())
def test_a_digest_grows_with_its_request_and_is_that_of_the_whole(ids, data):
    expected = Expected(request(ids))
    for stop in sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5))):
        grown = expected.upto(stop)
        assert grown.tolist() == Expected(request(ids)).upto(stop).tolist()
        assert not np.isin(grown, (EMPTY, UNKNOWN)).any()


@given(tokens, tokens)
def test_two_requests_have_equal_digests_exactly_as_far_as_their_tokens_are_equal(one, other):
    common = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    stop = min(len(one), len(other))
    equal = Expected(request(one)).upto(stop) == Expected(request(other)).upto(stop)
    assert equal.tolist() == [place < common for place in range(stop)]


def test_the_order_of_tokens_counts():
    assert prefix_digests([5, 6, 7])[2] != prefix_digests([6, 5, 7])[2]
    assert prefix_digests([5, 5])[1] != prefix_digests([5, 5, 5])[2]


def test_without_token_ids_a_request_is_like_no_other():
    blind = Expected(request([-1, -1, -1], "a"))
    assert not blind.known
    assert not (blind.upto(3) == Expected(request([-1, -1, -1], "b")).upto(3)).any()
    assert (blind.upto(3) == Expected(request([-1, -1, -1], "a")).upto(3)).all()


def test_slots_follow_the_table():
    ledger = SlotLedger(6, 4)
    assert ledger.slots([3, 0, 5], 9).tolist() == [12, 13, 14, 15, 0, 1, 2, 3, 20]
    assert ledger.slots([3, 0, 5], 0).tolist() == []


def test_what_is_copied_is_what_stood_there_before_it_was_cleared():
    ledger = SlotLedger(4, 2)
    ledger.write(np.array([2, 3]), np.array([7, 8], dtype=np.uint64), writer="a", start=4, steps=np.array([8, 9]))
    copies = ledger.copied([(1, 3)])
    ledger.clear([1])
    ledger.paste(copies)
    assert ledger.digest.tolist() == [0, 0, 0, 0, 0, 0, 7, 8]
    assert [ledger.writer(slot) for slot in range(8)] == [None, None, "a", "a", None, None, "a", "a"]
    assert ledger.position[6:].tolist() == [4, 5]
    assert ledger.written_step.tolist() == [-1, -1, 8, 9, -1, -1, 8, 9]


@pytest.mark.parametrize("most", [0, 3])
def test_names_that_no_slot_has_are_dropped(monkeypatch, most):
    monkeypatch.setattr(slots_module, "MOST_NAMES", most)
    ledger = SlotLedger(1, 3)
    for turn in range(50):
        slot = turn % 3
        ledger.write(
            np.array([slot]), np.array([9], dtype=np.uint64), writer=f"w{turn}", start=0, steps=np.array([turn])
        )
        assert ledger.writer(slot) == f"w{turn}"
        assert len(ledger._names) <= most + 3 + 2
    assert [ledger.writer(slot) for slot in range(3)] == ["w48", "w49", "w47"]
