"""Which recorded exchange answers a request, or a wish for a connection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dumps.exchanges.canonical import CanonicalRequest, CanonicalUrl, canonical_request, canonical_url
from dumps.exchanges.match_key import (
    FieldDifference,
    MatchKey,
    TimeDifference,
    key_of,
    nearest,
    time_difference,
)
from dumps.record.seams.log import inbound
from dumps.schema import state_pb2 as pb

MAX_COMPARED = 200
"""Recorded requests that are compared with an unrecorded one to find the nearest."""

MAX_TIME_APART_NS = 10 * 1_000_000_000
"""So far a time in a request may be from the recorded one: what the program computes before it asks takes no time on
the clock of a replay, and the times it sends are early by as much."""

_COUNTED_NAME = re.compile(r"(Task|Thread|Dummy|ThreadPoolExecutor)-\d+.*")
_PORTS = {"http": 80, "https": 443}


@dataclass(slots=True, eq=False)
class Recorded:
    """One recorded outbound exchange. ``place`` is its place in the recording."""

    exchange: pb.Exchange
    place: int
    request: CanonicalRequest
    key: MatchKey | None
    origin: tuple[str, int]
    taken: bool = False
    reserved: bool = False
    """A connection that was made for it has sent nothing yet."""
    within: str = ""
    """Id of the inbound request for which the replay asked it."""
    asker: str = ""
    """The task, or the thread, that asked it in the replay."""


@dataclass(frozen=True, slots=True)
class OrderDifference:
    """``first`` was asked before ``second`` in the replay, and after it in the recording."""

    first: pb.Exchange
    second: pb.Exchange


@dataclass(frozen=True, slots=True)
class Nearest:
    """The recorded request that shares most with one that was not recorded. ``answered``: it has answered another."""

    exchange: pb.Exchange
    differences: list[FieldDifference]
    answered: bool


@dataclass(slots=True)
class Matcher:
    """The recorded exchanges of a program, each of which answers once.

    A request takes the exchange with its match key that comes next in the recording, among those of its own task first
    if the task has a name of its own: those that are counted ("Task-7") differ from run to run. Before that, in a
    server, among those of the inbound request that it is made for. If no exchange has its key, it takes of those that
    differ from it in times only, and come first in that order, the one whose times are nearest.
    """

    recorded: list[Recorded]
    asked: list[Recorded] = field(default_factory=list)
    _by_key: dict[MatchKey, list[Recorded]] = field(default_factory=dict)
    _connect_times_known: bool = False

    def __post_init__(self) -> None:
        for one in self.recorded:
            self._connect_times_known |= one.exchange.HasField("connect_ns")
            if one.key is not None:
                self._by_key.setdefault(one.key, []).append(one)

    @classmethod
    def of(cls, exchanges: Iterable[pb.Exchange]) -> Matcher:
        """Inbound exchanges take no part."""
        outbound = [exchange for exchange in exchanges if exchange.direction != "in"]
        return cls([_recorded(exchange, place) for place, exchange in enumerate(outbound)])

    def connection(self, host: str, port: int, task: str) -> Recorded | None:
        """The exchange for which this connection is made: the next of that origin that had to make one, not taken and
        without a connection. It is reserved until `release` or until it is taken; one without a request is taken."""
        origin = host.lower().strip("[]"), port
        free = (one for one in self.recorded if one.origin == origin and not one.taken and not one.reserved)
        found = self._next((one for one in free if self._connects(one.exchange)), task)
        if found is not None:
            found.reserved = True
            if not found.exchange.method:
                self._take(found, task)
        return found

    def take(self, request: CanonicalRequest, task: str) -> Recorded | None:
        """The exchange that answers ``request``, which then answers no other; None if it is not recorded."""
        found = self._next((one for one in self._by_key.get(key_of(request), ()) if not one.taken), task)
        if found is not None:
            self._take(found, task)
        return found

    def take_but_for_times(
        self, request: CanonicalRequest, task: str, *, wall_ns: int
    ) -> tuple[Recorded, list[TimeDifference]] | None:
        """The exchange that answers ``request`` though times in it differ, by MAX_TIME_APART_NS at most, and where.

        ``wall_ns`` is the replay's time of day. For a request that `take` finds none for.
        """
        left = (one for one in self.recorded if one.key is not None and not one.taken)
        found: list[tuple[Recorded, list[TimeDifference]]] = []
        for one in self._in_order(left, task):
            if found and self._rank(one, task) != self._rank(found[0][0], task):
                break
            times = time_difference(one.request, request, now_ns=wall_ns, at_most_ns=MAX_TIME_APART_NS)
            if times is not None:
                found.append((one, times))
        if not found:
            return None
        chosen = min(found, key=lambda pair: max(time.apart_ns for time in pair[1]))
        self._take(chosen[0], task)
        return chosen

    def abandon(self, method: str, url: str, task: str) -> None:
        """A request was begun and never finished; so was its recording, if there is one."""
        wanted = canonical_url(url)
        found = self._next(
            (
                one
                for one in self.recorded
                if not one.taken
                and one.exchange.method == method
                and not one.exchange.sent_ns
                and one.request.url == wanted
            ),
            task,
        )
        if found is not None:
            self._take(found, task)

    def times_recorded(self, request: CanonicalRequest) -> int:
        return len(self._by_key.get(key_of(request), ()))

    def nearest(self, request: CanonicalRequest) -> Nearest | None:
        """The recorded request that shares most with ``request``.

        Of those not asked yet if there are any, unless only one that has answered shares its method and address.
        """
        ranked = [(_unlike(one.request, request), one) for one in self.recorded if one.key is not None]
        alike = [pair for pair in ranked if pair[0] == 0]
        pool = alike or ranked
        pool = [pair for pair in pool if not pair[1].taken] or pool
        candidates = [one for _, one in sorted(pool, key=lambda pair: pair[0])[:MAX_COMPARED]]
        found = nearest(request, [one.request for one in candidates])
        if found is None:
            return None
        chosen = candidates[found[0]]
        return Nearest(chosen.exchange, found[1], chosen.taken)

    @property
    def reserves(self) -> bool:
        """Whether a connection was made that has sent nothing yet."""
        return any(one.reserved for one in self.recorded)

    def left_over(self) -> list[pb.Exchange]:
        """What was recorded and not asked, in the order of the recording."""
        return [one.exchange for one in self.recorded if not one.taken]

    def order_differences(self) -> Iterator[OrderDifference]:
        """For each exchange that came later than in the recording, the one that overtook it furthest."""
        furthest: Recorded | None = None
        for one in self.asked:
            if furthest is not None and one.place < furthest.place:
                yield OrderDifference(furthest.exchange, one.exchange)
            else:
                furthest = one

    def _connects(self, exchange: pb.Exchange) -> bool:
        """Whether a connection was made for it; where the recording has no times, it may have been for any."""
        return not exchange.method or exchange.HasField("connect_ns") or not self._connect_times_known

    def _next(self, candidates: Iterable[Recorded], task: str) -> Recorded | None:
        return next(iter(self._in_order(candidates, task)), None)

    def _in_order(self, candidates: Iterable[Recorded], task: str) -> list[Recorded]:
        """Those of the inbound request first, then those of the task, then as they were recorded."""
        return sorted(candidates, key=lambda one: self._rank(one, task))

    def _rank(self, one: Recorded, task: str) -> tuple[bool, bool]:
        within, own = inbound.get(), not _COUNTED_NAME.fullmatch(task)
        return bool(within) and one.exchange.within != within, own and one.exchange.task != task

    def _take(self, one: Recorded, task: str) -> None:
        one.taken, one.reserved, one.within, one.asker = True, False, inbound.get(), task
        self.asked.append(one)


def _recorded(exchange: pb.Exchange, place: int) -> Recorded:
    request = canonical_request(exchange)
    return Recorded(exchange, place, request, key_of(request) if exchange.method else None, _origin(exchange.url))


def _origin(url: str) -> tuple[str, int]:
    parts = canonical_url(url)
    if not isinstance(parts, CanonicalUrl):
        return "", 0
    port = parts.port if parts.port is not None else _PORTS.get(parts.scheme, 0)
    return parts.host.strip("[]"), port


def _unlike(one: CanonicalRequest, other: CanonicalRequest) -> int:
    """A rough order for a long recording, 0 for the same method and address, whatever its query."""
    method = int(one.method != other.method)
    if not isinstance(one.url, CanonicalUrl) or not isinstance(other.url, CanonicalUrl):
        return 2 * (one.url != other.url) + method
    return 4 * (one.url.origin != other.url.origin) + 2 * (one.url.path != other.url.path) + method
