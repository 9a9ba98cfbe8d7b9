"""Points in time that a request carries, read so that two requests can be compared without them.

A program that puts the time of day into a request never sends the same bytes twice. Read are ISO 8601 and RFC 3339
("2026-12-01T01:06:01.117474", with or without fraction and zone, also without "-" and ":") and the dates of HTTP
("Tue, 01 Dec 2026 01:06:01 GMT"), also inside a longer text; and, where it is the whole value, a count since 1970 in
seconds, milli-, micro- or nanoseconds. Only what lies near a known time counts: any number may be an id. A date alone
is no point in time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise

NEAR_NS = 24 * 3600 * 1_000_000_000
"""A value further from the known time is not taken for a time. A day: the zone of a local time is not written in it."""

EARLIEST_COUNT_NS = 10**18
"""In 2001. On a clock that was never set, near 1970, any small number would count seconds."""

_TIMES = re.compile(
    r"""(?<!\d)(?:
        (?P<year>\d{4})(?P<dash>-?)(?P<month>\d\d)(?P=dash)(?P<day>\d\d)(?P<between>[Tt\ ])
        (?P<hour>\d\d)(?P<colon>:?)(?P<minute>\d\d)(?:(?P=colon)(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?)?
        (?P<zone>[Zz]|[+-]\d\d:?\d\d)?
      | (?P<weekday>Mon|Tue|Wed|Thu|Fri|Sat|Sun),
        \ (?P<http_day>\d{1,2})\ (?P<http_month>[A-Z][a-z]{2})\ (?P<http_year>\d{4})
        \ (?P<http_hour>\d\d):(?P<http_minute>\d\d):(?P<http_second>\d\d)\ (?P<http_zone>GMT|UTC|[+-]\d{4})
    )(?!\d)""",
    re.VERBOSE | re.ASCII,
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_COUNT = re.compile(r"\d{9,20}(?:\.\d{1,9})?", re.ASCII)
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Apart:
    """How far the times of two values lie apart: of each time the distance, and the unit in which it is written."""

    distances_ns: tuple[tuple[int, int], ...]

    @property
    def ns(self) -> int:
        """The largest distance."""
        return max(distance for distance, _ in self.distances_ns)

    def within(self, at_most_ns: int) -> bool:
        """Whether none is further apart, but for one unit: "12:59" and "13:00" may be a moment apart."""
        return all(distance <= max(at_most_ns, unit) for distance, unit in self.distances_ns)

    def __add__(self, other: Apart) -> Apart:
        return Apart(self.distances_ns + other.distances_ns)


def apart(one: object, other: object, *, now_ns: int) -> Apart | None:
    """How far apart two values are that differ in nothing but points in time.

    Values are what JSON knows; ``now_ns`` is nanoseconds since 1970 (UTC), near which a time must lie. Both sides must
    be written in one way: same zone, same unit. None if they differ in anything else, or hold no time.
    """
    mine, theirs = (_read(value, now_ns) for value in (one, other))
    if mine is None or theirs is None or mine[0] != theirs[0]:
        return None
    return Apart(tuple((abs(a - b), unit) for (a, unit), (b, _) in zip(mine[1], theirs[1], strict=True)))


def apart_ns(one: object, other: object, *, now_ns: int) -> int | None:
    """The largest distance of `apart`, in nanoseconds."""
    found = apart(one, other, now_ns=now_ns)
    return found.ns if found is not None else None


_Read = tuple[tuple[str, ...], list[tuple[int, int]]]
"""What is not time, with the form of each time; the times since 1970 and their units, in ns."""


def _read(value: object, now_ns: int) -> _Read | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 10**20:
        return _count("number", Decimal(str(value)), now_ns)
    if not isinstance(value, str):
        return None
    return _count("text", Decimal(value), now_ns) if _COUNT.fullmatch(value) else _within(value, now_ns)


def _count(kind: str, value: Decimal, now_ns: int) -> _Read | None:
    for unit, scale in _UNITS.items():
        ns = int(value * scale)
        if ns >= EARLIEST_COUNT_NS and abs(ns - now_ns) <= NEAR_NS:
            return (kind, unit), [(ns, scale)]
    return None


def _within(text: str, now_ns: int) -> _Read | None:
    found = [(match, ns) for match in _TIMES.finditer(text) if (ns := _since_1970(match)) is not None]
    found = [(match, ns) for match, ns in found if abs(ns - now_ns) <= NEAR_NS]
    if not found:
        return None
    edges = [0, *(edge for match, _ in found for edge in match.span()), len(text)]
    between = [text[start:end] for start, end in list(pairwise(edges))[::2]]
    return (*between, *(_form(match) for match, _ in found)), [(ns, _unit_ns(match)) for match, ns in found]


def _unit_ns(match: re.Match[str]) -> int:
    return (1 if match["second"] or match["http_second"] else 60) * 10**9


def _form(match: re.Match[str]) -> str:
    """How a time is written, but for its digits. A fraction may be absent: isoformat() leaves out one of zero."""
    parts = match.groupdict("")
    form = (parts["dash"], parts["between"], parts["colon"], parts["zone"], parts["http_zone"])
    return " ".join((*form, "minutes" if parts["hour"] and not parts["second"] else ""))


def _since_1970(match: re.Match[str]) -> int | None:
    """Nanoseconds; a time without a zone is taken as UTC. None if the calendar has no such time."""
    parts = match.groupdict("")
    try:
        if parts["weekday"]:
            day = int(parts["http_year"]), _MONTHS.index(parts["http_month"]) + 1, int(parts["http_day"])
            clock = int(parts["http_hour"]), int(parts["http_minute"]), int(parts["http_second"])
        else:
            day = int(parts["year"]), int(parts["month"]), int(parts["day"])
            clock = int(parts["hour"]), int(parts["minute"]), int(parts["second"] or 0)
        passed = datetime(*day, *clock, tzinfo=UTC) - _EPOCH
    except ValueError:
        return None
    seconds = passed.days * 86400 + passed.seconds - _offset_s(parts["zone"] or parts["http_zone"])
    return seconds * 10**9 + int(parts["fraction"].ljust(9, "0") or 0)


def _offset_s(zone: str) -> int:
    """Seconds ahead of UTC."""
    if zone[:1] not in ("+", "-"):
        return 0
    digits = zone[1:].replace(":", "")
    return (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)
