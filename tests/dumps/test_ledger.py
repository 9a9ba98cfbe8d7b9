"""Which entry speaks for which field."""

from __future__ import annotations

import pytest

from dumps import ledger
from dumps.errors import UnknownPath
from dumps.schema import state_pb2 as pb


@pytest.fixture
def state():
    state = pb.RuntimeState()
    ledger.record(state, "requests[].prompt_token_ids", pb.SYNTHESISED, "lengths only")
    ledger.record(state, "requests[3].output_token_ids", pb.ABSENT, "record level shape")
    ledger.record(state, "kv.tables", pb.INFERRED, "from the steps")
    ledger.record(state, "model", pb.OBSERVED)
    return state


@pytest.mark.parametrize(
    ("path", "grade"),
    [
        ("requests[0].prompt_token_ids", pb.SYNTHESISED),
        ("requests[].prompt_token_ids", pb.SYNTHESISED),
        ("requests[3].output_token_ids", pb.ABSENT),
        ("requests[].output_token_ids", pb.ABSENT),
        ("requests[2].output_token_ids", pb.OBSERVED),
        ("requests[2]", pb.SYNTHESISED),
        ("requests[3]", pb.ABSENT),
        ("requests", pb.ABSENT),
        ("requests[0].id", pb.OBSERVED),
        ("kv", pb.INFERRED),
        ("kv.tables[0].blocks", pb.INFERRED),
        ("kv.free_blocks", pb.OBSERVED),
        ("kv.tables_of_law", pb.OBSERVED),
        ("model.dtype", pb.OBSERVED),
        ("steps", pb.OBSERVED),
    ],
)
def test_the_weakest_grade(state, path, grade):
    assert ledger.weakest(state, path).grade == grade


def test_an_entry_replaces_an_earlier_one(state):
    ledger.record(state, "kv.tables", pb.ABSENT, "lost")
    assert ledger.weakest(state, "kv.tables").note == "lost"
    assert len(state.ledger) == 4


def test_weak_entries_come_weakest_first(state):
    assert [entry.grade for entry in ledger.weak_entries(state)] == [pb.ABSENT, pb.SYNTHESISED, pb.INFERRED]


def test_names():
    assert ledger.grade_name(pb.SYNTHESISED) == "synthesised"
    assert ledger.grade_name(pb.LedgerEntry(grade=9).grade) == "grade 9"  # type: ignore[arg-type]


def test_entries_that_say_nothing(state):
    with pytest.raises(UnknownPath):
        ledger.record(state, "not a path", pb.ABSENT)
    with pytest.raises(ValueError, match="grade"):
        ledger.record(state, "kv", pb.GRADE_UNSPECIFIED)
