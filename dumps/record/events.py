"""Fallback decisions of a history as the trace events of a dump."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dumps.ledger import record
from dumps.record.history import HistoryStep
from dumps.schema import state_pb2 as pb
from dumps.trace import FallbackEvent, add_fallback

MOST_EVENTS = 100_000
"""Events of some 350 bytes in a dump's head, which readers take up to 256 MiB of; a large ring holds more."""


def fill_events(state: pb.RuntimeState, steps: Iterable[HistoryStep], index: Mapping[int, int]) -> None:
    """Add the events of all steps, the newest if they are too many, with a ledger entry for those that are left out."""
    ends = [step.end for step in steps if step.end is not None]
    decisions = [(end.index, decision) for end in ends for decision in end.fallbacks]
    for step, (serial, position, reason, confidence, token, candidates) in decisions[-MOST_EVENTS:]:
        event = FallbackEvent(
            request=index[serial],
            step=step,
            position=position,
            reason=reason,
            confidence=confidence,
            token=token,
            candidates=tuple(candidates),
        )
        add_fallback(state, event, correlation_id=serial)
    notes = []
    if cut := sum(end.fallbacks_cut for end in ends):
        notes.append(f"{cut} fallback decisions had no room; a larger --ring-size keeps them")
    if (older := len(decisions) - MOST_EVENTS) > 0:
        notes.append(f"{older} older fallback decisions would make the dump too large")
    if notes:
        record(state, "trace_events", pb.ABSENT, "; ".join(notes))
