"""Neighbours of recorded programs: tools that answer otherwise, and answers in other pieces."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import Phase, assume, find, given, settings
from hypothesis import strategies as st

from dumps.ledger import weakest
from dumps.schema import state_pb2 as pb
from dumps.strategies.near import near
from dumps.strategies.near_program import changes_of
from dumps.strategies.programs import programs
from dumps.validate import validate
from tests.fixture_folders import names
from tests.incidents import incident, of_engines

PROGRAMS = sorted(set(names()) - set(of_engines()))
UNSHRUNK = settings(max_examples=2000, phases=[Phase.generate], database=None)


@given(st.data())
def test_neighbours_of_any_program_are_valid(data):
    state = data.draw(programs().filter(changes_of))
    changed = data.draw(near(state))
    assert validate(changed) == []
    for name in ("syscalls", "program", "context_stack", "failures"):
        assert getattr(changed, name) == getattr(state, name)


@given(st.data())
def test_what_is_changed_is_said_and_no_more_is(data):
    state = data.draw(programs().filter(changes_of))
    changed = data.draw(near(state))
    assume(changed.ledger)
    for name in ("tool_calls", "exchanges"):
        for index, (was, now) in enumerate(zip(getattr(state, name), getattr(changed, name), strict=True)):
            told = weakest(changed, f"{name}[{index}]")
            assert (told.grade == pb.SYNTHESISED) >= (was != now)


@pytest.mark.parametrize("name", PROGRAMS)
def test_neighbours_of_real_programs_are_valid(name):
    state, _ = incident(name)
    before = b"".join(chunk.data for chunk in state.exchanges[0].chunks)

    @settings(max_examples=25)
    @given(near(state))
    def check(changed):
        assert validate(changed) == []
        assert b"".join(chunk.data for chunk in changed.exchanges[0].chunks) in (before, *cuts)

    cuts = [before[:stop] for stop in range(len(before))]
    check()


def test_tool_results_are_those_beside_the_recorded_one():
    state = pb.RuntimeState()
    state.manifest.record_level = "full"
    state.program.kind = "block"
    state.tool_calls.add(
        id="t", status="finished", started_ns=5, finished_ns=6, result_json=json.dumps({"a": 1, "b": 2})
    )
    seen: Counter[str] = Counter()

    @settings(max_examples=200, database=None)
    @given(near(state))
    def collect(changed):
        [call] = changed.tool_calls
        seen[call.result_json or call.status] += 1

    collect()
    assert {"failed", "pending", '{"a": 1}', '{"b": 2}', "null"} <= set(seen)


def answered(*pieces: bytes) -> pb.RuntimeState:
    state = pb.RuntimeState()
    state.manifest.record_level = "full"
    state.program.kind = "block"
    exchange = state.exchanges.add(id="x", direction="out", framing="wire", method="GET", status=200)
    exchange.started_ns, exchange.sent_ns = 10, 20
    for piece in pieces:
        exchange.chunks.add(data=piece, size=len(piece), delay_ns=5)
    return state


def pieces(state: pb.RuntimeState) -> list[bytes]:
    return [chunk.data for chunk in state.exchanges[0].chunks]


@pytest.mark.parametrize(
    "wanted", [[b"abcd", b"ef"], [b"ab", b"cdef"], [b"ab", b"c", b"d", b"ef"], [b"ab"], [b"abcdef"]]
)
def test_an_answer_arrives_in_other_pieces(wanted):
    """Raises `NoSuchExample` otherwise."""
    state = answered(b"ab", b"cd", b"ef")
    changed = find(near(state), lambda changed: pieces(changed) == wanted, settings=UNSHRUNK)
    assert [chunk.size for chunk in changed.exchanges[0].chunks] == [len(piece) for piece in wanted]
    short = len(b"".join(wanted)) < 6
    assert (changed.exchanges[0].error == "reset") == short
    assert sum(chunk.delay_ns for chunk in changed.exchanges[0].chunks) == (5 if short else 15)
    assert "the answer to x" in weakest(changed, "exchanges[0]").note


def test_they_shrink_to_no_change_and_to_one_change():
    state = answered(b"ab", b"cd", b"ef")
    assert find(near(state), lambda changed: True, settings=settings(database=None)) == state
    less = find(near(state), lambda changed: len(pieces(changed)) < 3, settings=settings(database=None))
    assert weakest(less, "exchanges[0]").note.count(";") == 0


def test_bytes_that_are_not_on_record_are_not_moved():
    state = answered(b"ab", b"cd")
    for chunk in state.exchanges[0].chunks:
        chunk.data = b""
    assert changes_of(state) == []


def test_what_was_asked_of_the_program_is_not_an_answer_to_it():
    state = answered(b"ab", b"cd")
    state.exchanges[0].direction = "in"
    assert changes_of(state) == []
