"""Internal flags, early ends and fallback decisions for a drawn state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from dumps.schema import state_pb2 as pb
from dumps.trace import FallbackEvent, add_fallback

DrawFn = Callable[[st.SearchStrategy[Any]], Any]


def add_traces(draw: DrawFn, state: pb.RuntimeState) -> None:
    """Give some requests flags, let some of their ends be early ones, and trace decisions of those that ask for it."""
    for index, request in enumerate(state.requests):
        if not draw(st.booleans()):
            continue
        request.flags.fallback_trace = draw(st.booleans())
        if draw(st.booleans()):
            request.flags.early_exit = draw(st.floats(0.125, 1.0))
            if request.finish_cause == "eos":
                _end_early(state, index)
    for step in state.steps:
        ended = {end.request for end in step.finished}
        for chunk in step.scheduled:
            traced = state.requests[chunk.request].flags.fallback_trace
            if traced and chunk.sampled and chunk.request not in ended:
                _decide(draw, state, step.index, chunk)


def _end_early(state: pb.RuntimeState, index: int) -> None:
    state.requests[index].finish_cause = "early-exit"
    for end in (end for step in state.steps for end in step.finished):
        if end.request == index:
            end.cause = "early-exit"


def _decide(draw: DrawFn, state: pb.RuntimeState, step: int, chunk: pb.Scheduled) -> None:
    confidence = draw(st.floats(0.0, 1.0))
    known = chunk.HasField("sampled_token")
    event = FallbackEvent(
        request=chunk.request,
        step=step,
        position=chunk.start + chunk.num_tokens,
        reason=draw(st.sampled_from(["below-threshold", "min-tokens", "no-threshold"])),
        confidence=confidence,
        token=chunk.sampled_token if known else None,
        candidates=((chunk.sampled_token, confidence),) if known else (),
    )
    add_fallback(state, event, correlation_id=chunk.request + 1)
