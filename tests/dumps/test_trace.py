"""Fallback decisions as trace events: what is written reads back, and nothing else does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.schema import state_pb2 as pb
from dumps.trace import FALLBACK, MOST_CANDIDATES, FallbackEvent, add_fallback, read_fallback

probabilities = st.floats(0.0, 1.0)
tokens = st.integers(0, 2**31 - 1)
events = st.builds(
    FallbackEvent,
    request=st.integers(0, 2**32 - 1),
    step=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**32 - 1),
    reason=st.text(max_size=20),
    confidence=probabilities,
    token=st.none() | tokens,
    candidates=st.lists(st.tuples(tokens, probabilities), max_size=MOST_CANDIDATES).map(tuple),
)


def written(**changes: str | None) -> pb.TraceEvent:
    """A good event with some arguments changed, or without those that are None."""
    args = {"position": "4", "reason": "x", "confidence": "0.5", "token": "7", "candidates": "[[7,0.5]]"}
    message = pb.TraceEvent(name=FALLBACK, step=1, request=0)
    for key, value in (args | changes).items():
        if value is not None:
            message.args.add(key=key, value=value)
    return message


@given(events)
def test_every_event_reads_back_bit_for_bit(event):
    state = pb.RuntimeState()
    add_fallback(state, event, correlation_id=3)
    again = pb.RuntimeState.FromString(state.SerializeToString())
    assert read_fallback(again.trace_events[0]) == event
    assert (again.trace_events[0].phase, again.trace_events[0].correlation_id) == ("i", 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"position": None},
        {"confidence": None},
        {"unheard-of": "1"},
        {"position": "-1"},
        {"position": "4294967296"},
        {"position": "\u0664"},
        {"position": "1_0"},
        {"confidence": "nan"},
        {"confidence": "1.5"},
        {"confidence": "high"},
        {"token": "7.0"},
        {"candidates": "7:0.5"},
        {"candidates": "[" * 4000},
        {"candidates": "{}"},
        {"candidates": "[[7]]"},
        {"candidates": "[[true,0.5]]"},
        {"candidates": "[[7,NaN]]"},
        {"candidates": "[[7,[0.5]]]"},
        {"candidates": "[[-1,0.5]]"},
        {"candidates": "[" + "[1,0.1]," * MOST_CANDIDATES + "[1,0.1]]"},
        {"reason": "x" * 5000},
    ],
)
def test_what_no_writer_makes_is_refused(changes):
    with pytest.raises(ValueError, match=r"\S"):
        read_fallback(written(**changes))
    assert read_fallback(written()).candidates == ((7, 0.5),)


def test_an_argument_twice_and_an_event_of_nobody_are_refused():
    message = written()
    message.args.add(key="token", value="8")
    with pytest.raises(ValueError, match="its arguments are"):
        read_fallback(message)
    for field in ("request", "step"):
        message = written()
        message.ClearField(field)
        with pytest.raises(ValueError, match="names its request and its step"):
            read_fallback(message)


@given(
    st.lists(st.tuples(st.sampled_from(["position", "confidence", "token", "candidates", ""]), st.text()), max_size=6)
)
def test_any_arguments_are_an_event_or_a_value_error(pairs):
    message = pb.TraceEvent(name=FALLBACK, step=1, request=0)
    for key, value in pairs:
        message.args.add(key=key, value=value)
    try:
        event = read_fallback(message)
    except ValueError:
        return
    assert math.isfinite(event.confidence)
