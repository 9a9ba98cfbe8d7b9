"""How a recorded request arrives again: pieces, end, and a client that goes away."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.record.seams.log import inbound
from dumps.schema import state_pb2 as pb
from replay.runtime.network.match import Matcher
from replay.targets.app.arrival import Arrival, is_cancelled


def exchange(*pieces: bytes, headers: dict[str, str] | None = None, **fields: Any) -> pb.Exchange:
    made = pb.Exchange(id="x1", direction="in", method="POST", url="http://a.test/", started_ns=1000, client="asgi")
    for key, value in (headers or {}).items():
        made.request_headers.add(key=key, value=value)
    for piece in pieces:
        made.request_chunks.add(delay_ns=10, size=len(piece))
    made.request_body = b"".join(pieces)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@given(st.lists(st.binary(min_size=1, max_size=5)))
def test_pieces_come_at_their_recorded_boundaries_and_times(pieces):
    arrival = Arrival.of(exchange(*pieces, sent_ns=5000))
    assert [piece.data for piece in arrival.pieces] == pieces
    assert [piece.due_ns for piece in arrival.pieces] == [1000 + 10 * (n + 1) for n in range(len(pieces))]
    assert (arrival.complete_ns, arrival.gone_ns, arrival.missing) == (5000, None, 0)


@pytest.mark.parametrize(
    ("headers", "pieces", "complete"),
    [
        ({}, (), 1000),  # a GET that nobody read a body of
        ({"Content-Length": "4"}, (b"ab", b"cd"), 1020),
        ({"Content-Length": "5"}, (b"ab", b"cd"), None),
        ({"Content-Length": "4", "Transfer-Encoding": "chunked"}, (b"abcd",), None),
        ({"Content-Length": "four"}, (), None),
        ({"Content-Length": "²"}, (), None),
    ],
)
def test_without_a_recorded_end_the_request_itself_says_whether_it_is_whole(headers, pieces, complete):
    assert Arrival.of(exchange(*pieces, headers=headers)).complete_ns == complete


def test_a_client_that_went_away_goes_at_that_time():
    arrival = Arrival.of(exchange(b"ab", error="closed", ended_ns=7000))
    assert (arrival.gone_ns, arrival.inferred) == (7000, False)


@pytest.mark.parametrize(
    ("client", "kind", "sent_ns", "gone"),
    [
        ("aiohttp", "ConnectionResetError", 5000, 9000),
        ("aiohttp", "aiohttp.client_exceptions.ClientConnectionResetError", 5000, 9000),
        ("aiohttp", "KeyError", 0, 9000),  # its body was never whole
        ("aiohttp", "KeyError", 5000, None),
        ("asgi", "ConnectionResetError", 0, None),  # ASGI tells by a message, which is recorded
        ("asgi", "asyncio.exceptions.CancelledError", 5000, 9000),
    ],
)
def test_a_failure_may_tell_of_a_client_that_went_away(client, kind, sent_ns, gone):
    failure = pb.Failure(kind="exception", exception_type=kind, time_ns=9000)
    arrival = Arrival.of(exchange(headers={"Transfer-Encoding": "chunked"}, client=client, sent_ns=sent_ns), failure)
    assert (arrival.gone_ns, arrival.inferred) == (gone, gone is not None)
    assert is_cancelled(failure) == kind.endswith("CancelledError")


def test_what_the_dump_does_not_hold_is_counted():
    made = exchange(b"abcd", b"efgh", sent_ns=5000)
    made.request_body = b"abcde"
    arrival = Arrival.of(made)
    assert [piece.data for piece in arrival.pieces] == [b"abcd", b"e"]
    assert arrival.missing == 3


def test_a_request_in_a_server_takes_the_answer_of_its_own_inbound_one():
    recorded = [
        pb.Exchange(id=name, direction="out", method="GET", url="http://b.test/", task="Task-1", sent_ns=1, within=of)
        for name, of in (("x3", "x1"), ("x4", "x2"))
    ]
    matcher = Matcher.of(recorded)
    token = inbound.set("x2")
    try:
        taken = matcher.take(matcher.recorded[0].request, "Task-9")
    finally:
        inbound.reset(token)
    assert taken is not None
    assert (taken.exchange.id, taken.within) == ("x4", "x2")
