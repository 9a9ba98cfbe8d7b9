"""Points in time in requests: what programs write is read back; ids, versions and plain numbers are not times."""

from __future__ import annotations

import email.utils
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.exchanges.canonical import canonical_request
from dumps.exchanges.match_key import TimeDifference, difference, time_difference
from dumps.exchanges.times import apart_ns
from dumps.schema import state_pb2 as pb

NOW = datetime(2026, 12, 1, 1, 6, 1, 117474, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 10**9

zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
early = st.integers(0, 10**7).map(lambda microseconds: timedelta(microseconds=microseconds))


def ns_of(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1) * 1000


NOW_NS = ns_of(NOW)


def apart(one: object, other: object) -> int | None:
    return apart_ns(one, other, now_ns=NOW_NS)


@given(early, zones, st.sampled_from(["T", " "]), st.sampled_from(["", "It is now {}, says the clock."]))
def test_what_isoformat_writes_is_read(gap: timedelta, zone: timezone, between: str, text: str) -> None:
    def written(moment: datetime, *, naive: bool) -> str:
        shown = moment.astimezone(zone).replace(tzinfo=None) if naive else moment.astimezone(zone)
        return (text or "{}").format(shown.isoformat(between))

    for naive in (False, True):
        one, other = written(NOW, naive=naive), written(NOW - gap, naive=naive)
        assert apart(one, other) == gap // timedelta(microseconds=1) * 1000


@given(early, st.sampled_from([(SECOND, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns")]), st.booleans())
def test_counts_since_1970_are_read_in_every_unit(gap: timedelta, unit: tuple[int, str], quoted: bool) -> None:
    scale, _ = unit
    one, other = ns_of(NOW) // scale, ns_of(NOW - gap) // scale
    sides: tuple[object, object] = (str(one), str(other)) if quoted else (one, other)
    assert apart(*sides) == (one - other) * scale


@given(early)
def test_what_time_time_returns_is_read(gap: timedelta) -> None:
    one, other = (json.loads(json.dumps(moment.timestamp())) for moment in (NOW, NOW - gap))
    exactly = gap // timedelta(microseconds=1) * 1000
    for sides in ((one, other), (str(one), str(other))):
        found = apart(*sides)
        assert found is not None
        assert abs(found - exactly) <= 1000  # a double has about half a microsecond here


@given(early, st.booleans())
def test_dates_of_http_are_read(gap: timedelta, usegmt: bool) -> None:
    moments = [moment.replace(microsecond=0) for moment in (NOW, NOW - gap)]
    one, other = (email.utils.format_datetime(moment, usegmt=usegmt) for moment in moments)
    assert apart(one, other) == ns_of(moments[0]) - ns_of(moments[1])


@pytest.mark.parametrize(
    ("one", "other", "ns"),
    [
        ("20261201T010601Z", "20261201T010559Z", 2 * SECOND),
        ("2026-12-01T01:06Z", "2026-12-01T01:05Z", 60 * SECOND),
        ("2026-12-01T01:06:01.123456789Z", "2026-12-01T01:06:01.123456788Z", 1),
        ("2026-12-01T01:06:01.5", "2026-12-01T01:06:01", SECOND // 2),
        (
            "from 2026-12-01 01:00:00 to 2026-12-01 01:06:00",
            "from 2026-12-01 00:59:59 to 2026-12-01 01:05:57",
            3 * SECOND,
        ),
        ("2026-12-01T01:06:01Z", "2026-12-01T01:05:00Z", 61 * SECOND),
        ("2026-12-02T14:00:01+14:00", "2026-12-02T14:00:00+14:00", SECOND),  # a day from now by its zone only
    ],
)
def test_other_ways_of_writing_a_time(one: str, other: str, ns: int) -> None:
    assert apart(one, other) == ns


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2026-12-01", "2026-11-30"),  # a date alone
        ("1.2.3", "1.2.4"),
        ("2026.12.1", "2026.12.2"),
        (1, 2),
        (True, False),
        (None, "2026-12-01T01:06:01"),
        (1_600_000_000, 1_600_000_001),  # the year 2020: an id, or another time than this
        ("2020-12-01T01:06:01Z", "2020-12-01T01:06:02Z"),
        ("2026-12-01T01:06:01Z", "2026-12-01T01:06:01+00:00"),  # another way of writing is another program
        ("2026-12-01T01:06:01Z", "2026-12-01 01:06:01Z"),
        ("a 2026-12-01T01:06:01Z", "b 2026-12-01T01:06:01Z"),
        ("2026-12-01T01:06:01Z", "2026-12-01T01:06:01Z 2026-12-01T01:06:01Z"),
        (NOW_NS // SECOND, str(NOW_NS // SECOND)),
        (NOW_NS // SECOND, NOW_NS // 10**6),
        ("2026-13-01T01:06:01Z", "2026-13-01T01:06:02Z"),
        ("2026-12-01T25:06:01Z", "2026-12-01T25:06:02Z"),
        ("Tue, 01 Foo 2026 01:06:01 GMT", "Tue, 01 Foo 2026 01:06:02 GMT"),
        (float("nan"), float("inf")),
        pytest.param(10**5000, 10**5000 + 1, id="more digits than str() writes"),
    ],
)
def test_what_is_no_time_near_now(one: object, other: object) -> None:
    assert apart(one, other) is None


@given(st.integers(0, 2**64), st.integers(0, 2**64))
def test_a_number_far_from_now_is_no_time(one: int, other: int) -> None:
    """Of numbers below 2**64 those that a day allows are one in twenty thousand."""
    near = [
        any(abs(value * scale - NOW_NS) <= 86400 * SECOND for scale in (1, 10**3, 10**6, 10**9))
        for value in (one, other)
    ]
    if not all(near):
        assert apart(one, other) is None
        assert apart(str(one), str(other)) is None


def test_on_a_clock_that_was_never_set_small_numbers_are_numbers() -> None:
    assert apart_ns(1, 2, now_ns=SECOND) is None


@given(st.uuids(), st.uuids())
def test_ids_are_no_times(one: Any, other: Any) -> None:
    assert apart(str(one), str(other)) is None or one == other
    assert apart(one.hex, other.hex) is None


@given(st.text(), st.text())
def test_any_text_can_be_read(one: str, other: str) -> None:
    assert apart(one, other) is None


def ask(body: object = None, *, kind: str = "application/json", url: str = "http://h/") -> pb.Exchange:
    exchange = pb.Exchange(method="POST", url=url)
    if body is not None:
        exchange.request_headers.add(key="Content-Type", value=kind)
        exchange.request_body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return exchange


def times(one: pb.Exchange, other: pb.Exchange) -> list[TimeDifference] | None:
    sides = canonical_request(one), canonical_request(other)
    return time_difference(*sides, now_ns=NOW_NS, at_most_ns=10 * SECOND)


AT, LATER, MUCH_LATER = "2026-12-01T01:06:01+00:00", "2026-12-01T01:06:03+00:00", "2026-12-01T01:06:12+00:00"


@pytest.mark.parametrize(
    ("one", "other", "field"),
    [
        (ask({"nested": {"ts": AT}}), ask({"nested": {"ts": LATER}}), "body.nested.ts"),
        (ask(b'{"ts": 1796087161}', kind="application/x-www-form-urlencoded"),
         ask(b'{"ts":1796087163}', kind="application/x-www-form-urlencoded"), "body.ts"),  # as urllib and curl label it
        (ask({"x": "y" * 500 + AT}), ask({"x": "y" * 500 + LATER}), "body.x"),  # beyond what is shown
        (ask(f"at={AT}".encode(), kind="application/x-www-form-urlencoded"),
         ask(f"at={LATER}".encode(), kind="application/x-www-form-urlencoded"), "form.at"),
        (ask(AT.encode(), kind="text/plain"), ask(LATER.encode(), kind="text/plain"), "body"),
        (ask(url="http://h/?since=1796087161"), ask(url="http://h/?since=1796087163"), "query.since"),
        (ask(url="http://h/?at=2026-12-01T01%3A06%3A01%2B00%3A00&at=x"),
         ask(url="http://h/?at=2026-12-01T01:06:03%2B00:00&at=x"), "query.at"),
        (ask(url="http://h/logs/1796087161/x"), ask(url="http://h/logs/1796087163/x"), "url.path"),
    ],
)  # fmt: skip
def test_a_time_is_found_wherever_a_request_holds_one(one: pb.Exchange, other: pb.Exchange, field: str) -> None:
    assert times(one, other) == [TimeDifference(field, 2 * SECOND)]


def test_no_difference_but_in_times_and_not_too_far() -> None:
    assert times(ask({"ts": AT, "k": 1}), ask({"ts": LATER, "k": 2})) is None
    assert times(ask({"ts": AT}), ask({"ts": MUCH_LATER})) is None
    assert times(ask({"ts": AT}), ask({"ts": LATER, "more": None})) is None
    assert times(ask({"x": "y" * 500 + AT + "1"}), ask({"x": "y" * 500 + LATER + "2"})) is None
    many = [AT] * 50
    assert times(ask([*many, 1]), ask([LATER] * 50 + [2])) is None  # the one that is no time comes late
    assert times(ask(url="http://h/1796087161"), ask(url="http://h/1796087161/1796087161")) is None
    assert times(ask(url="http://h/?a=1796087161&a=x"), ask(url="http://h/?a=1796087163&a=y")) is None
    other = ask({"ts": LATER})
    other.method = "PUT"
    assert times(ask({"ts": AT}), other) is None


def test_a_difference_knows_its_times_though_it_shows_an_excerpt() -> None:
    [found] = difference(ask({"x": AT + "y" * 200 + AT}), ask({"x": LATER + "y" * 200 + MUCH_LATER}))
    assert found.other is not None
    assert MUCH_LATER not in found.other
    assert found.apart_ns(NOW_NS) == 11 * SECOND


def post(body: bytes, kind: str = "text/plain") -> pb.Exchange:
    exchange = pb.Exchange(method="POST", url="http://h/x", request_body=body)
    exchange.request_headers.add(key="Content-Type", value=kind)
    return exchange


@pytest.mark.parametrize(
    ("one", "other", "apart_s"),
    [
        ("at={0:.6f}", "at={1:.6f}", 2),
        ("name,at\na,{0:.3f}\nb,{0:.3f}\n", "name,at\na,{1:.3f}\nb,{1:.3f}\n", 2),
        ("seen at {0:.0f} by x", "seen at {1:.0f} by x", 2),
        ("seen at {0:.0f} by x", "seen at {1:.0f} by y", None),
        ("id-{0:.0f}", "id-{1:.0f}", None),
    ],
)
def test_counts_since_1970_among_the_words_of_a_plain_body(one, other, apart_s):
    first, second = NOW_NS / SECOND, NOW_NS / SECOND + 2
    found = times(post(one.format(first).encode()), post(other.format(first, second).encode()))
    if apart_s is None:
        assert found is None
    else:
        assert found is not None
        assert [(one.field, round(one.apart_ns / SECOND)) for one in found] == [("body", apart_s)]


@pytest.mark.parametrize(
    ("one", "other", "matched"),
    [
        ({"took": 0.011}, {"took": 0.0001}, True),
        ({"latency_ms": 12}, {"latency_ms": 0}, True),
        ({"stats": {"elapsed": "0.42"}}, {"stats": {"elapsed": "0.0"}}, True),
        ({"took": 0.011}, {"took": 0.5}, False),  # longer than it was: here nothing takes time
        ({"took": 0.011}, {"took": -1}, False),
        ({"took": 0.011, "n": 1}, {"took": 0.001, "n": 2}, False),
        ({"price": 0.011}, {"price": 0.001}, False),
        ({"took": True}, {"took": 0}, False),
        ({"took": "long"}, {"took": "short"}, False),
    ],
)
def test_a_duration_may_be_shorter(one, other, matched):
    found = times(*(post(json.dumps(side).encode(), "application/json") for side in (one, other)))
    assert (found is not None) == matched
