"""Fallback decisions in a ring: kept, hidden where the level keeps no tokens, and cut before they cost the step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dumps.errors import CorruptDump
from dumps.record.fallbacks import FallbackRecord
from dumps.record.recorder import RecordLevel, StepEnd, StepStart
from dumps.record.records import decode_end, encode_end
from dumps.record.recover import read_ring, state_from_ring
from dumps.schema import state_pb2 as pb
from dumps.trace import read_fallback
from dumps.validate import validate
from tests.flight import make_config, make_recorder

DRAWN, OTHER = 45678, 45679
HEADER = {
    "id": "a",
    "flags": {"early_exit": 0.8, "fallback_trace": True},
    "sampling": {"top_p": 1.0, "repetition_penalty": 1.0},
}
DECISION = FallbackRecord(1, 3, "below-threshold", 0.1 + 0.2, DRAWN, [(DRAWN, 0.1 + 0.2), (OTHER, 1e-17)])


def fly(path, *, level=RecordLevel.TOKENS, decisions=(DECISION,), rows: int = 1):
    recorder = make_recorder(path, make_config(num_blocks=64, max_num_seqs=64), level=level, slots=64)
    serials = [recorder.add_request(HEADER | {"id": f"r{number}"}, [1, 2, 3]) for number in range(rows)]
    ones = [1] * rows
    blocks = [(row, row) for row in range(rows)]
    start = StepStart(0, 5, serials, [0] * rows, [3] * rows, blocks, arrived=serials, admitted=serials)
    recorder.begin_step(start)
    recorder.end_step(StepEnd(0, [DRAWN * one for one in ones], fallbacks=list(decisions)))
    recorder.flush()
    return state_from_ring(read_ring(path), reason="demand")


def test_flags_and_decisions_come_back(tmp_path):
    state = fly(tmp_path / "a.ring")
    assert state.requests[0].flags == pb.InternalFlags(early_exit=0.8, fallback_trace=True)
    event = state.trace_events[0]
    assert (event.name, event.phase, event.step, event.request, event.correlation_id) == ("fallback", "i", 0, 0, 1)
    read = read_fallback(event)
    assert (read.position, read.reason, read.confidence, read.token) == (3, "below-threshold", 0.1 + 0.2, DRAWN)
    assert read.candidates == ((DRAWN, 0.1 + 0.2), (OTHER, 1e-17))
    assert validate(state) == []


def test_level_shape_keeps_the_numbers_and_no_token(tmp_path):
    state = fly(tmp_path / "a.ring", level=RecordLevel.SHAPE)
    data = (tmp_path / "a.ring").read_bytes()
    assert b"0.30000000000000004" in data
    assert str(DRAWN).encode() not in data
    assert str(OTHER).encode() not in data
    read = read_fallback(state.trace_events[0])
    assert (read.position, read.confidence, read.token, read.candidates) == (3, 0.1 + 0.2, None, ())
    assert state.requests[0].flags.early_exit == 0.8
    assert validate(state) == []


def test_a_step_keeps_its_tokens_when_its_decisions_do_not_fit(tmp_path):
    """The ring of 16 KB drops a record of 4 KB; sixty decisions of 130 bytes would make one."""
    decisions = [DECISION._replace(serial=serial) for serial in range(1, 61)]
    state = fly(tmp_path / "a.ring", decisions=decisions, rows=60)
    assert [chunk.sampled for chunk in state.steps[0].scheduled] == [True] * 60
    assert 0 < len(state.trace_events) < 60
    missing = 60 - len(state.trace_events)
    assert [(e.grade, e.note) for e in state.ledger if e.path == "trace_events"] == [
        (pb.ABSENT, f"{missing} fallback decisions had no room; a larger --ring-size keeps them")
    ]


def test_the_newest_decisions_are_kept_of_more_than_a_dump_may_hold(tmp_path, monkeypatch):
    monkeypatch.setattr("dumps.record.events.MOST_EVENTS", 2)
    decisions = [DECISION._replace(serial=serial, confidence=serial / 8) for serial in (1, 2, 3)]
    state = fly(tmp_path / "a.ring", decisions=decisions, rows=3)
    assert [read_fallback(event).confidence for event in state.trace_events] == [2 / 8, 3 / 8]
    note = "1 older fallback decisions would make the dump too large"
    assert [(e.grade, e.note) for e in state.ledger if e.path == "trace_events"] == [(pb.ABSENT, note)]


def test_a_record_without_decisions_is_as_it_was_before_there_were_any():
    step = StepEnd(3, [5, -1], finished=[(1, "stop", "eos")])
    payload = b"".join(encode_end(step, keep_tokens=True))
    assert b"fallback" not in payload
    assert payload.endswith(b'{"finished":[[1,"stop","eos"]]}')
    decoded = decode_end(payload)
    assert (decoded.fallbacks, decoded.fallbacks_cut) == ([], 0)


@pytest.mark.parametrize(
    "entry",
    [
        [1, 3, "x", 0.5, 7],
        [1, 3, "x", 0.5, 7, [[7]]],
        [1, 3, "x", "high", 7, []],
        [1, None, "x", 0.5, 7, []],
        [9, 3, "x", 0.5, 7, []],
        [1, 3, "x" * 65, 0.5, 7, []],
        [1, 3, "x", 0.5, 7, [[7, 0.1]] * 65],
        5,
    ],
)
def test_decisions_that_no_recorder_writes_are_corrupt(tmp_path, entry):
    """The checksum holds, so whoever wrote them meant them."""
    with pytest.raises(CorruptDump, match="contradict each other"):
        fly(tmp_path / "a.ring", decisions=[entry])


def test_decisions_of_a_step_that_ended_survive_the_next_ones_death(tmp_path):
    path = tmp_path / "a.ring"
    recorder = make_recorder(path, make_config())
    serial = recorder.add_request(HEADER, [1, 2, 3])
    start = StepStart(0, 5, [serial], [0], [3], [(0, 0)], arrived=[serial], admitted=[serial])
    recorder.begin_step(start)
    recorder.end_step(StepEnd(0, [DRAWN], fallbacks=[DECISION]))
    recorder.begin_step(replace(start, index=1, starts=[3], counts=[1], new_blocks=[], arrived=[], admitted=[]))
    state = state_from_ring(read_ring(path), reason="demand")
    assert [step.completed for step in state.steps] == [True, False]
    assert [read_fallback(event).position for event in state.trace_events] == [3]
