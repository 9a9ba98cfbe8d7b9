"""Trace events of a dump that have a meaning of their own: fallback decisions of an early exit.

A TraceEvent holds its facts as text. These functions are the only ones that write and read that text. Floats are in
their shortest exact form, so that what was recorded compares bit for bit.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from dumps.schema import state_pb2 as pb

FALLBACK = "fallback"
MOST_CANDIDATES = 64
_MOST_CHARS = 64 * MOST_CANDIDATES
_ARGS = frozenset({"position", "reason", "confidence", "token", "candidates"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackEvent:
    """A decision to go on with an answer after the token at ``position`` instead of ending it early.

    ``request`` is an index in the dump's requests. ``confidence`` is the largest softmax probability there. ``token``
    is None and ``candidates``, (id, probability) pairs, are empty at record level "shape", which keeps no token ids.
    """

    request: int
    step: int
    position: int
    reason: str
    confidence: float
    token: int | None = None
    candidates: tuple[tuple[int, float], ...] = ()


def add_fallback(state: pb.RuntimeState, event: FallbackEvent, *, correlation_id: int) -> None:
    """Append an event. ``correlation_id`` is the same for all events of one request."""
    message = state.trace_events.add(
        name=FALLBACK, phase="i", correlation_id=correlation_id, step=event.step, request=event.request
    )
    args = {"position": str(event.position), "reason": event.reason, "confidence": repr(event.confidence)}
    if event.token is not None:
        args["token"] = str(event.token)
    if event.candidates:
        args["candidates"] = json.dumps(event.candidates, separators=(",", ":"))
    for key, value in args.items():
        message.args.add(key=key, value=value)


def read_fallback(message: pb.TraceEvent) -> FallbackEvent:
    """Raises ValueError that says what cannot be read."""
    if not message.HasField("request") or not message.HasField("step"):
        raise ValueError("a fallback names its request and its step")
    args = {pair.key: pair.value for pair in message.args}
    if len(args) < len(message.args) or not args.keys() <= _ARGS or not args.keys() >= {"position", "confidence"}:
        raise ValueError(f"its arguments are {', '.join(sorted(pair.key for pair in message.args)) or 'missing'}")
    if max(map(len, args.values())) > _MOST_CHARS:
        raise ValueError(f"an argument is longer than {_MOST_CHARS} characters")
    return FallbackEvent(
        request=message.request,
        step=message.step,
        position=_number("position", args["position"]),
        reason=args.get("reason", ""),
        confidence=_probability(args["confidence"]),
        token=_number("token", args["token"]) if "token" in args else None,
        candidates=_candidates(args["candidates"]) if "candidates" in args else (),
    )


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10) or int(text) >= 2**32:
        raise ValueError(f"its {name} is no number below 2^32: {text[:40]!a}")
    return int(text)


def _probability(value: str | float) -> float:
    try:
        probability = float(value)
    except (ValueError, TypeError):
        probability = math.nan
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"{str(value)[:40]!a} is no probability")
    return probability


def _candidates(text: str) -> tuple[tuple[int, float], ...]:
    try:
        pairs = json.loads(text)
    except (ValueError, RecursionError):
        pairs = None
    if not isinstance(pairs, list) or len(pairs) > MOST_CANDIDATES:
        raise ValueError(f"its candidates are no list of at most {MOST_CANDIDATES} pairs")
    found: list[tuple[int, float]] = []
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int or not 0 <= pair[0] < 2**31:
            raise ValueError("a candidate is no pair of a token id and a probability")
        found.append((pair[0], _probability(pair[1])))
    return tuple(found)
