"""Trace events of a dump for people: how many of which, and the first few in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dumps.schema import state_pb2 as pb
from dumps.text import printable
from dumps.trace import FALLBACK, FallbackEvent, read_fallback

MOST_EVENTS = 8
MOST_NAMES = 12


def describe_trace(state: pb.RuntimeState) -> list[str]:
    """Lines, safe to print; none where there are no events."""
    events = state.trace_events
    if not events:
        return []
    lines = [_counted(event.name or "unnamed" for event in events)]
    reasons = [pair.value for event in events if event.name == FALLBACK for pair in event.args if pair.key == "reason"]
    if reasons:
        lines.append(f"answers went on: {_counted(reasons)}")
    lines += [_line(state, event) for event in events[:MOST_EVENTS]]
    if len(events) > MOST_EVENTS:
        lines.append(f"... and {len(events) - MOST_EVENTS} more: --field trace_events[{MOST_EVENTS}]")
    return lines


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{count} {printable(name, 40)}" for name, count in Counter(names).most_common(MOST_NAMES))


def _line(state: pb.RuntimeState, event: pb.TraceEvent) -> str:
    step = f"step {event.step}" if event.HasField("step") else "no step"
    whose = f", request {event.request}" if event.HasField("request") else ""
    return f"{step}{whose}: {printable(_words(state, event), 240)}"


def _words(state: pb.RuntimeState, event: pb.TraceEvent) -> str:
    if event.name == FALLBACK:
        try:
            return _decision(state, read_fallback(event))
        except ValueError as error:
            return f"{event.name}, not readable: {error}"
    return event.name + "".join(f", {pair.key} {pair.value}" for pair in event.args)


def _decision(state: pb.RuntimeState, fallback: FallbackEvent) -> str:
    """What was drawn, and why that did not end the answer."""
    drawn = "" if fallback.token is None else f"token {fallback.token} "
    flags = state.requests[fallback.request].flags if fallback.request < len(state.requests) else pb.InternalFlags()
    shown = f"{fallback.confidence:.4g}"
    if fallback.reason == "below-threshold" and flags.HasField("early_exit"):
        if float(shown) >= flags.early_exit:  # rounded up to it
            shown = repr(fallback.confidence)
        why = f"confidence {shown} below {flags.early_exit!r}"
    else:
        why = f"confidence {shown}, {fallback.reason or 'no reason'}"
    candidates = ", ".join(f"{token} {probability:.3g}" for token, probability in fallback.candidates)
    return f"{drawn}at position {fallback.position}: {why}" + (f"; of {candidates}" if candidates else "")
