"""When a recorded request answers a replayed one, and in which fields two requests differ."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any
from urllib.parse import unquote

from dumps.exchanges.canonical import CanonicalRequest, CanonicalUrl, Pairs, canonical_request, json_text
from dumps.exchanges.times import Apart, apart
from dumps.schema import state_pb2 as pb
from dumps.text import printable

MAX_DIFFERENCES = 50
_EXCERPT = 80
_BEFORE = 24  # characters of an excerpt that both sides share
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WEIGHTS = {"method": 40, "url": 1000, "url.scheme": 100, "url.host": 100, "url.port": 100, "url.path": 50}
_NOTHING = object()
_DURATION = re.compile(
    r"(?:^|[._-])(?:ms|us|ns|s|secs?|seconds|millis|time|took|elapsed|latency|duration|delay|age|uptime)(?:$|[._\[-])",
    re.IGNORECASE,
)
_BETWEEN_WORDS = re.compile(r"(?<!\d{4}-\d\d-\d\d)[ \t]|[\r\n,;=&|\"']")
"""A date and the time behind it are one word."""


@dataclass(frozen=True, slots=True)
class MatchKey:
    """Equal for equal requests. ``body`` is of its canonical form, whose kind is ``body_kind``."""

    method: str
    url: str
    body_kind: str
    body: bytes


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """One field that two requests do not share, as printable text; None on the side that lacks it.

    ``field`` is "method", "url.host", "query.NAME", "form.NAME", "body.messages[2].content", or "body" for bytes.
    Long texts are cut to where they begin to differ; ``values`` are whole. They are what may hold a time: the segments
    of a path, the values of a name, one value of a body. Both are empty elsewhere.
    """

    field: str
    one: str | None
    other: str | None
    values: tuple[Sequence[object], Sequence[object]] = dataclasses.field(default=((), ()), compare=False, repr=False)
    free_text: bool = dataclasses.field(default=False, compare=False, repr=False)
    """The values are no ids and nothing else of one piece, so that a count since 1970 may be a word of them."""

    @property
    def named_as_a_duration(self) -> bool:
        return _DURATION.search(self.field) is not None

    def shrank(self) -> bool:
        """Whether this is a number with a name that durations have, and less on the other side, but not negative."""
        mine, theirs = self.values
        if not self.named_as_a_duration or len(mine) != 1 or len(theirs) != 1:
            return False
        one, other = _number(mine[0]), _number(theirs[0])
        return one is not None and other is not None and 0 <= other < one

    def apart(self, now_ns: int) -> Apart | None:
        """How far the times are apart in which alone the two sides differ; None if they differ in anything else.

        ``now_ns`` is nanoseconds since 1970 (UTC), a day around which a value may be a time.
        """
        mine, theirs = self.values
        if not mine or len(mine) != len(theirs):
            return None
        found = _apart(mine, theirs, now_ns)
        if found is not None or not self.free_text:
            return found
        words = [[word for value in side for word in _BETWEEN_WORDS.split(str(value))] for side in self.values]
        return _apart(words[0], words[1], now_ns) if len(words[0]) == len(words[1]) else None

    def apart_ns(self, now_ns: int) -> int | None:
        """The largest distance of `apart`, in nanoseconds."""
        found = self.apart(now_ns)
        return found.ns if found is not None else None


@dataclass(frozen=True, slots=True)
class TimeDifference:
    """A field in which two requests differ by ``apart_ns`` nanoseconds, and in nothing else. 0 for a duration, whose
    unit nobody knows."""

    field: str
    apart_ns: int


def _apart(mine: Sequence[object], theirs: Sequence[object], now_ns: int) -> Apart | None:
    pairs = [(one, other) for one, other in zip(mine, theirs, strict=True) if one != other]
    found = [apart(one, other, now_ns=now_ns) for one, other in pairs]
    times = [one for one in found if one is not None]
    return sum(times[1:], times[0]) if times and len(times) == len(found) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def match_key(exchange: pb.Exchange) -> MatchKey:
    """The key of the request in ``exchange``. Its secrets must have been replaced as the recorder does it."""
    return key_of(canonical_request(exchange))


def key_of(request: CanonicalRequest) -> MatchKey:
    return MatchKey(request.method, str(request.url), request.body.kind, request.body.data)


def difference(one: pb.Exchange, other: pb.Exchange) -> list[FieldDifference]:
    """Where the requests of two exchanges differ, at most MAX_DIFFERENCES fields; empty if their keys are equal."""
    return request_difference(canonical_request(one), canonical_request(other))


def request_difference(one: CanonicalRequest, other: CanonicalRequest) -> list[FieldDifference]:
    return list(islice(_differences(one, other), MAX_DIFFERENCES))


def time_difference(
    one: CanonicalRequest, other: CanonicalRequest, *, now_ns: int, at_most_ns: int
) -> list[TimeDifference] | None:
    """The fields of two requests that differ in times only, no more than ``at_most_ns`` apart, or one unit of how the
    time is written where that is more, and in durations that are shorter on the other side; None if others differ.

    ``now_ns`` is nanoseconds since 1970 (UTC), a day around which a value may be a time.
    """
    found = []
    for difference in _differences(one, other):  # all of them: the fifty-first may be no time
        times = difference.apart(now_ns)
        if times is None and difference.shrank():
            found.append(TimeDifference(difference.field, 0))
            continue
        if times is None or not times.within(at_most_ns):
            return None
        found.append(TimeDifference(difference.field, times.ns))
    return found


def nearest(
    request: CanonicalRequest, candidates: Sequence[CanonicalRequest]
) -> tuple[int, list[FieldDifference]] | None:
    """The index of the candidate that shares most with ``request``, and where the two differ.

    The earlier of two equally near ones; None without candidates.
    """
    ranked = [
        (_distance(differences), at, differences)
        for at, candidate in enumerate(candidates)
        for differences in [request_difference(candidate, request)]
    ]
    if not ranked:
        return None
    _, at, differences = min(ranked, key=lambda found: found[:2])
    return at, differences


def _distance(differences: list[FieldDifference]) -> int:
    """Another body to the same address is nearer than the same body to another address."""
    return sum(_WEIGHTS.get(difference.field, 1) for difference in differences)


def _differences(one: CanonicalRequest, other: CanonicalRequest) -> Iterator[FieldDifference]:
    yield from _leaf("method", one.method, other.method)
    if isinstance(one.url, CanonicalUrl) and isinstance(other.url, CanonicalUrl):
        for name in ("scheme", "host", "port"):
            yield from _leaf(f"url.{name}", getattr(one.url, name), getattr(other.url, name))
        mine, theirs = one.url.path, other.url.path
        yield from _leaf("url.path", mine, theirs, values=(_segments(mine), _segments(theirs)))
        yield from _pair_differences("query", one.url.query, other.url.query)
    else:
        yield from _leaf("url", str(one.url), str(other.url))
    yield from _body_differences(one, other)


def _body_differences(one: CanonicalRequest, other: CanonicalRequest) -> Iterator[FieldDifference]:
    if one.body.data == other.body.data and one.body.kind == other.body.kind:
        return
    if one.body.kind != other.body.kind or one.body.kind == "bytes":
        yield from _body_as_bytes(one, other)
    elif one.body.kind == "form":
        yield from _pair_differences("form", one.body.value, other.body.value)
    elif one.body.kind == "multipart":
        for at, (part, other_part) in enumerate(zip_longest(one.body.value, other.body.value)):
            if part != other_part:
                mine, theirs = _text(part), _text(other_part)
                yield from _leaf(f"body.parts[{at}]", mine, theirs, different=True, values=([mine], [theirs]))
    else:
        yield from _json_differences("body", one.body.value, other.body.value)


def _body_as_bytes(one: CanonicalRequest, other: CanonicalRequest) -> Iterator[FieldDifference]:
    mine, theirs = (_text(side.body.data) for side in (one, other))
    if one.body.kind == other.body.kind:
        yield from _leaf("body", mine, theirs, different=True, values=([mine], [theirs]), free_text=True)
        return
    mine, theirs = (f"({side.body.kind}) {text}" for side, text in ((one, mine), (other, theirs)))
    yield from _leaf("body", mine, theirs, different=True)


def _pair_differences(prefix: str, one: Pairs, other: Pairs) -> Iterator[FieldDifference]:
    for name in sorted({name for name, _ in (*one, *other)}):
        mine, theirs = ([value for key, value in pairs if key == name] for pairs in (one, other))
        if mine != theirs:
            values = _unquoted(mine), _unquoted(theirs)
            path = f"{prefix}.{unquote(name)}"
            yield from _leaf(path, _pair_side(mine), _pair_side(theirs), different=True, values=values)


def _unquoted(values: list[str | None]) -> list[str | None]:
    return [None if value is None else unquote(value) for value in values]


def _segments(path: str) -> list[str]:
    return [unquote(segment) for segment in path.split("/")]


def _pair_side(values: list[str | None]) -> str | None:
    return ", ".join(unquote(value or "") for value in values) if values else None


def _json_differences(path: str, one: Any, other: Any) -> Iterator[FieldDifference]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            step = f".{key}" if _IDENTIFIER.fullmatch(key) else f"[{json_text(key)}]"
            yield from _json_differences(path + step, one.get(key, _NOTHING), other.get(key, _NOTHING))
    elif isinstance(one, list) and isinstance(other, list):
        for at, (mine, theirs) in enumerate(zip_longest(one, other, fillvalue=_NOTHING)):
            yield from _json_differences(f"{path}[{at}]", mine, theirs)
    elif one is _NOTHING or other is _NOTHING or json_text(one) != json_text(other):
        text = isinstance(one, str) and " " in one
        sides = _json_side(one), _json_side(other)
        yield from _leaf(path, *sides, different=True, values=([one], [other]), free_text=text)


def _json_side(value: Any) -> str | None:
    if value is _NOTHING:
        return None
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _leaf(
    name: str,
    one: object,
    other: object,
    *,
    different: bool = False,
    values: tuple[Sequence[object], Sequence[object]] = ((), ()),
    free_text: bool = False,
) -> Iterator[FieldDifference]:
    if different or one != other:
        yield FieldDifference(printable(name), *_excerpts(one, other), values, free_text)


def _excerpts(one: object, other: object) -> tuple[str | None, str | None]:
    mine, theirs = (None if side is None else str(side) for side in (one, other))
    start = 0
    if mine is not None and theirs is not None and max(len(mine), len(theirs)) > _EXCERPT:
        shared = next((at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
        shared = min(len(mine), len(theirs)) if shared is None else shared
        start = max(0, shared - _BEFORE)
    return tuple(  # type: ignore[return-value]
        None if side is None else ("…" if start else "") + printable(side[start:], _EXCERPT) for side in (mine, theirs)
    )


def _text(part: bytes | None) -> str | None:
    return None if part is None else part.decode("utf-8", "backslashreplace")
