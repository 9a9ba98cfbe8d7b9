"""Fallback decisions in a ring: rare JSON at the end of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

EVENT_BYTES = 256  # of one decision with five candidates, rounded up
MOST_TEXT, MOST_CANDIDATES = 64, 64
ROOM_SHARE = 16  # a step's decisions may take this part of a ring; a record of a fourth of it would be dropped


class FallbackRecord(NamedTuple):
    """One decision; see `dumps.trace.FallbackEvent`. The request is a serial."""

    serial: int
    position: int
    reason: str
    confidence: float
    token: int | None
    candidates: Sequence[tuple[int, float]]


def fitted(
    decisions: Sequence[FallbackRecord], *, ring_bytes: int, keep_tokens: bool
) -> tuple[Sequence[FallbackRecord], int]:
    """Those that a step may record, and how many are left out. Without ``keep_tokens`` nothing says what was drawn."""
    most = ring_bytes // ROOM_SHARE // EVENT_BYTES
    kept = decisions[:most]
    if not keep_tokens:
        kept = [decision._replace(token=None, candidates=()) for decision in kept]
    return kept, len(decisions) - len(kept)


def from_json(entries: Sequence[Sequence[Any]]) -> list[FallbackRecord]:
    """Raises ValueError or TypeError for entries that no writer makes: a dump of longer ones could not be opened."""
    if any(len(entry[2]) > MOST_TEXT or len(entry[5]) > MOST_CANDIDATES for entry in entries if len(entry) == 6):
        raise ValueError("a fallback decision is longer than any")
    return [
        FallbackRecord(
            int(serial),
            int(position),
            str(reason),
            float(confidence),
            None if token is None else int(token),
            [(int(candidate), float(probability)) for candidate, probability in candidates],
        )
        for serial, position, reason, confidence, token, candidates in entries
    ]
