"""An inbound exchange grows in the log as its pieces pass, and holds no secret however they are cut."""

from __future__ import annotations

import gzip
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.record.inbound import HIDDEN, UNANSWERED, InboundTap
from dumps.record.recorder import RecordLevel
from dumps.record.seams.log import LogLimits, WorldLog
from dumps.schema import state_pb2 as pb

JSON = [("Content-Type", "application/json")]
BODY = b'{"user": "me", "password": "hunter2", "said": "sk-0123456789abcdefghijklmn is mine"}'
MASKED = b'{"user": "me", "password": "xxxxxxx", "said": "xxxxxxxxxxxxxxxxxxxxxxxxxxx is mine"}'


def tap(level: RecordLevel = RecordLevel.FULL, **limits: int) -> InboundTap:
    made = InboundTap(WorldLog(level=level, limits=LogLimits(**limits)), server="asgi")
    made.asked("POST", "http://me/", JSON)
    return made


def chunks_of(exchange: pb.Exchange) -> bytes:
    return b"".join(chunk.data for chunk in exchange.chunks)


@given(st.lists(st.integers(0, len(BODY)), max_size=6))
def test_secrets_are_masked_wherever_the_pieces_end(cuts):
    edges = [0, *sorted(cuts), len(BODY)]
    pieces = [BODY[start:end] for start, end in pairwise(edges)]
    one = tap()
    for number, piece in enumerate(pieces):
        one.received(piece, last=number == len(pieces) - 1)
    one.responded(200, JSON)
    for piece in pieces:
        one.sent(piece)
    one.ended()
    exchange = one.exchange
    assert exchange.request_body == chunks_of(exchange) == MASKED
    sizes = [len(piece) for piece in pieces if piece]
    assert [chunk.size for chunk in exchange.request_chunks] == [chunk.size for chunk in exchange.chunks] == sizes
    assert (exchange.status, exchange.error, exchange.error_message) == (200, "", "")


def test_byte_by_byte_it_is_shown_as_far_as_it_came():
    one = tap()
    for byte in BODY:
        one.received(bytes([byte]))
    assert one.exchange.request_body.startswith(MASKED[:40])
    assert len(one.exchange.request_body) > len(BODY) // 2
    assert not one.exchange.HasField("ended_ns")


@pytest.mark.parametrize("side", ["request", "response"])
def test_of_a_compressed_body_with_a_secret_nothing_is_kept(side):
    one = tap()
    packed, headers = gzip.compress(BODY), [*JSON, ("Content-Encoding", "gzip")]
    one.asked("POST", "http://me/", headers if side == "request" else JSON)
    one.responded(200, headers if side == "response" else JSON)
    feed = one.received if side == "request" else one.sent
    feed(packed[:20])
    feed(packed[20:])
    one.ended()
    exchange = one.exchange
    assert (exchange.request_body, chunks_of(exchange), exchange.error_message) == (b"", b"", HIDDEN)
    kept = exchange.request_chunks if side == "request" else exchange.chunks
    assert [chunk.size for chunk in kept] == [20, len(packed) - 20]


def test_an_application_that_sends_nothing_is_said_to():
    one = tap()
    one.ended()
    assert (one.exchange.error, one.exchange.error_message) == ("", UNANSWERED)


def test_after_its_end_nothing_is_added():
    one = tap()
    one.ended("closed", "gone, password=hunter2")
    before = one.exchange.SerializeToString()
    one.sent(b"more")
    one.ended()
    assert one.exchange.SerializeToString() == before
    assert "hunter2" not in one.exchange.error_message


def test_what_does_not_fit_is_left_out_and_counted():
    one = tap(bytes=10)
    one.received(b"12345678")
    one.sent(b"12345678")
    assert (one.exchange.request_body, chunks_of(one.exchange)) == (b"12345678", b"")
    assert one._log.lost == {"exchange_bytes": 8}
    unseen = tap(exchanges=0)
    unseen.received(b"a")
    unseen.sent(b"a")
    unseen.ended()
    assert unseen.exchange.id == ""
    assert unseen._log.exchanges == []


def test_what_goes_wrong_is_counted_and_raised_to_nobody():
    one = tap()
    one.responded("no status", JSON)  # type: ignore[arg-type]
    assert one._log.lost == {"recorder_errors": 1}
