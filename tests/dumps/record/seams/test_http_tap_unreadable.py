"""What the tap cannot read it leaves alone and counts, whatever the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.schema import state_pb2 as pb
from tests.dumps.record.seams.conversations import GET, LENGTH, SECRET, make_log, make_tap, wire


@pytest.mark.parametrize(
    "response", [b"HTTP/3 zut\r\n\r\n", b"garbage " * 20 + b"\r\n\r\n", LENGTH[:20] + b"\x00\x01: x\r\n\r\n"]
)
def test_a_response_that_is_no_http_is_kept_as_it_came(response):
    log = make_log()
    tap = make_tap(log)
    tap.sent(GET, 2_000)
    tap.received(response, 2_100)
    tap.received(b'and on {"password": "' + SECRET, 2_200)
    tap.peer_closed(2_300)
    (exchange,) = log.exchanges
    assert exchange.error == "closed"
    assert exchange.error_message.startswith("not HTTP/1.x: ")
    assert wire(exchange) == response + b'and on {"password": "' + b"x" * len(SECRET)
    assert log.lost == {"unreadable_connections": 1}


def test_a_request_that_is_no_http_ends_the_recording_of_its_connection():
    log = make_log()
    tap = make_tap(log)
    tap.sent(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x12", 2_000)
    tap.received(b"\x00\x00\x12\x04", 2_100)
    tap.sent(GET, 2_200)
    tap.peer_closed(2_300)
    assert tap.stopped
    assert log.lost == {"unreadable_connections": 1}
    assert len(log.exchanges) == 1
    assert log.exchanges[0].error_message.startswith("not HTTP/1.x")


def test_a_tunnel_is_left_out():
    log = make_log()
    tap = make_tap(log)
    tap.sent(b"CONNECT far.example:443 HTTP/1.1\r\nHost: far.example:443\r\n\r\n", 2_000)
    tap.received(b"HTTP/1.1 200 OK\r\n\r\n\x16\x03", 2_100)
    assert (tap.tunnel, log.exchanges, log.lost) == (("far.example", 443), [], {"tunnels": 1})


def test_what_follows_an_upgrade_is_left_out():
    log = make_log()
    tap = make_tap(log)
    tap.sent(b"GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", 2_000)
    switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"
    tap.received(switch + b"\x81\x02hi", 2_100)
    tap.received(b"\x81\x02ho", 2_200)
    (exchange,) = log.exchanges
    assert (exchange.status, wire(exchange), exchange.error, log.lost) == (101, switch, "", {"upgrades": 1})


def test_a_declined_upgrade_is_an_exchange_like_others():
    log = make_log()
    tap = make_tap(log)
    for _ in range(2):
        tap.sent(b"GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", 2_000)
        tap.received(LENGTH, 2_100)
    assert [wire(exchange) for exchange in log.exchanges] == [LENGTH] * 2


def test_bytes_that_nobody_asked_for():
    log = make_log()
    tap = make_tap(log)
    tap.received(b"HTTP/1.1 408 Request Timeout\r\n\r\n", 1_600)
    tap.sent(GET, 2_000)
    tap.received(LENGTH + b"more", 2_100)
    assert (wire(log.exchanges[0]), log.lost) == (LENGTH, {"unasked_responses": 2})


def test_it_never_raises(monkeypatch):
    log = make_log()
    tap = make_tap(log)
    monkeypatch.setattr("dumps.record.seams.http_tap.scrub_url", lambda url: 1 / 0)
    tap.sent(GET, 2_000)
    tap.received(LENGTH, 2_100)
    tap.peer_closed(2_200)
    assert tap.stopped
    assert log.lost == {"unreadable_connections": 1}
    assert "ZeroDivisionError" in log.exchanges[0].error_message


@given(sent=st.binary(max_size=200), received=st.lists(st.binary(max_size=80), max_size=4))
def test_any_bytes_at_all(sent, received):
    log = make_log()
    tap = make_tap(log)
    tap.sent(sent, 2_000)
    for piece in received:
        tap.received(piece, 2_100)
    tap.sent(GET, 2_200)
    for piece in received:
        tap.received(piece, 2_300)
    tap.peer_closed(2_400)
    for exchange in log.exchanges:
        assert pb.Exchange.FromString(exchange.SerializeToString()) == exchange
