"""Owners of KV blocks over time in a dump."""

from __future__ import annotations

import pytest

from dumps.validate import validate
from tests.small_dump import small_state


def with_events():
    state = small_state()
    state.kv.block_history.add(step=1, block=0, event="allocate", request=0)
    state.kv.block_history.add(step=2, block=1, event="evict")
    return state


def test_events_of_the_pool_are_right():
    assert [finding for finding in validate(with_events()) if finding.rule == "kv.history"] == []


@pytest.mark.parametrize(("field", "value"), [("event", "lost"), ("block", 99), ("request", 99), ("step", 0)])
def test_an_event_that_cannot_be_is_named(field, value):
    state = with_events()
    setattr(state.kv.block_history[1], field, value)
    [finding] = [finding for finding in validate(state) if finding.rule == "kv.history"]
    assert finding.path == f"kv.block_history[1].{field}"


@pytest.mark.parametrize(("field", "value"), [("block", 99), ("slot", 99)])
def test_a_failures_slot_lies_in_the_pool(field, value):
    state = small_state()
    state.failures[0].read.block = 1
    assert not [finding for finding in validate(state) if finding.rule == "failures.read"]
    setattr(state.failures[0].read, field, value)
    [finding] = [finding for finding in validate(state) if finding.rule == "failures.read"]
    assert finding.path == f"failures[0].read.{field}"
