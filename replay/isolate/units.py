"""Durations and sizes as people write them."""

from __future__ import annotations

import math
import re

from replay.errors import UsageError

MAX_DURATION_S = 7 * 24 * 3600.0
MAX_SIZE = 1 << 50

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(B|KiB|MiB|GiB|kB|MB|GB|)")
_UNIT_BYTES = {"B": 1, "": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def duration(value: object, *, name: str) -> float:
    """Seconds from "5s", "500ms", "2m", "1h" or a number of seconds. Raises UsageError; zero is refused."""
    seconds = math.nan
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        seconds = float(match[1]) * _UNIT_S[match[2]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    if not 0 < seconds <= MAX_DURATION_S:
        raise UsageError(f"{name}: not a usable duration: {str(value)[:40]!r}", remedy='write it as "5s" or "500ms"')
    return seconds


def size(value: str, *, name: str) -> int:
    """Bytes from "256MiB", "1GB" or a plain number. Raises UsageError; zero is refused."""
    match = _SIZE.fullmatch(value.strip())
    count = int(float(match[1]) * _UNIT_BYTES[match[2]]) if match else 0
    if not 0 < count <= MAX_SIZE:
        raise UsageError(f"{name}: not a usable size: {value[:40]!r}", remedy='write it as "256MiB"')
    return count
