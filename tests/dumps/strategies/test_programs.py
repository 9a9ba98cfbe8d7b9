"""Valid programs are valid, survive a file, and are varied enough to be worth something."""

from __future__ import annotations

import pytest
from hypothesis import Phase, find, given, settings

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from dumps.schema.writer import write_dump
from dumps.strategies.programs import programs
from dumps.validate import validate


@settings(max_examples=150)
@given(programs())
def test_no_rule_is_broken(state):
    assert validate(state) == []


@given(programs())
def test_what_is_written_is_read(tmp_path_factory, state):
    path = tmp_path_factory.mktemp("program") / "one.pplx"
    write_dump(path, state)
    with open_dump(path) as dump:
        got = pb.RuntimeState()
        got.CopyFrom(dump.state)
    for field in ("seals", "trailer"):
        got.ClearField(field)
    assert got == state


FEATURES = (
    *("not connected", "in flight", "ended early", "asked twice", "inbound", "answered within"),
    *("pending", "partial", "finished", "failed", "clock set twice", "deep", "failed in a request", "timeout"),
)


@pytest.mark.parametrize("feature", FEATURES)
def test_they_cover_what_happens_to_programs(feature):
    """Raises `NoSuchExample` otherwise. Not shrunk: that it exists is enough."""
    only_look = settings(max_examples=5000, phases=[Phase.generate], database=None)
    assert feature in features(find(programs(), lambda state: feature in features(state), settings=only_look))


def features(state: pb.RuntimeState) -> set[str]:
    found = {call.status for call in state.tool_calls} | {failure.kind for failure in state.failures}
    for exchange in state.exchanges:
        if exchange.direction == "in":
            found.add("inbound")
        elif not exchange.method and exchange.error:
            found.add("not connected")
        elif not exchange.HasField("ended_ns"):
            found.add("in flight")
        if exchange.status and exchange.error:
            found.add("ended early")
        if exchange.occurrence:
            found.add("asked twice")
        if exchange.within:
            found.add("answered within")
    if len(state.clock_changes) > 1:
        found.add("clock set twice")
    if len(state.context_stack) > 1:
        found.add("deep")
    if any(failure.exchange for failure in state.failures):
        found.add("failed in a request")
    return found
