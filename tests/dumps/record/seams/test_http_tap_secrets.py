"""What the tap keeps back of a connection: secrets, and all text below level full."""

from __future__ import annotations

import gzip
import json

import pytest

from dumps.record.recorder import RecordLevel
from tests.dumps.record.seams.conversations import GET, LENGTH, POST, SECRET, make_log, make_tap, pieces_of, wire


@pytest.mark.parametrize("level", [RecordLevel.SHAPE, RecordLevel.TOKENS])
def test_below_level_full_there_are_sizes_only(level):
    log = make_log(level)
    tap = make_tap(log)
    tap.sent(POST.replace(b"/v1/chat", b"/v1/chat?user=jane"), 2_000)
    tap.received(LENGTH.replace(b"X-Id: 7", b"Location: http://api.example/next?user=jane"), 2_100)
    (exchange,) = log.exchanges
    assert exchange.url == "http://api.example/v1/chat"
    assert (exchange.request_body, wire(exchange)) == (b"", b"")
    assert [chunk.size for chunk in exchange.chunks] == [len(LENGTH) + 36]
    assert exchange.status == 200
    assert b"jane" not in exchange.SerializeToString()


def test_secrets_of_a_request():
    log = make_log()
    body = json.dumps({"q": "fine", "api_key": SECRET.decode()}).encode()
    head = b"POST /x?token=%s&q=1 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\nCookie: sid=%s\r\n" % (
        (SECRET,) * 3
    )
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    tap = make_tap(log)
    tap.sent(head + body, 2_000)
    (exchange,) = log.exchanges
    assert exchange.url == "http://api.example/x?token=REMOVED&q=1"
    assert exchange.request_body == b'{"q": "fine", "api_key": "REMOVED"}'
    assert SECRET not in exchange.SerializeToString()


@pytest.mark.parametrize("cut", range(68, 110, 3))
def test_a_key_that_is_known_late_is_masked_in_what_was_kept_before(cut):
    key = b"sk-proj-0123456789abcdefghijABCDEFGHIJ"
    response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n35\r\nthe key is " + key + b", ok\r\n0\r\n\r\n"
    log = make_log()
    tap = make_tap(log)
    tap.sent(GET, 2_000)
    for piece in (response[: cut // 2], response[cut // 2 : cut], response[cut:]):
        tap.received(piece, 2_100)
    assert wire(log.exchanges[0]) == response.replace(key, b"x" * len(key))
    assert len(log.exchanges[0].chunks) == 3


@pytest.mark.parametrize("cut", range(55, 90, 5))
def test_a_body_that_becomes_unreadable_hides_a_secret_that_was_arriving(cut):
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    response = head + b'1a\r\n{"password": "hunter2-corre' + b'ct-horse"}, "kept": "kept"'
    log = make_log()
    tap = make_tap(log)
    tap.sent(GET, 2_000)
    tap.received(response[:cut], 2_100)
    tap.received(response[cut:], 2_200)
    assert wire(log.exchanges[0]) == response.replace(SECRET, b"x" * len(SECRET))
    assert log.lost == {"unreadable_connections": 1}


def test_a_compressed_response_with_a_secret_keeps_its_sizes_only():
    for name, hidden in (("text", False), ("password", True)):
        log = make_log()
        body = gzip.compress(json.dumps({name: SECRET.decode() * 9}).encode())
        response = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        tap = make_tap(log)
        tap.sent(GET, 2_000)
        for at_ns, piece in enumerate(pieces_of(response, [20, 60, 75]), 2_100):
            tap.received(piece, at_ns)
        (exchange,) = log.exchanges
        assert sum(chunk.size for chunk in exchange.chunks) == len(response)
        assert wire(exchange) == (b"" if hidden else response)
        assert log.lost == ({"hidden_bodies": 1} if hidden else {})
