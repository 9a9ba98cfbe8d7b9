"""One connection's bytes become exchanges, however they are cut; what the tap cannot read it leaves alone."""

from __future__ import annotations

import gzip
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.record.recorder import RecordLevel
from dumps.record.seams.http_tap import GIVEN_UP, Asker, HttpTap
from dumps.record.seams.log import LogLimits, WorldLog
from dumps.schema import state_pb2 as pb

SECRET = b"hunter2-correct-horse"


def make_log(level: RecordLevel = RecordLevel.FULL, **limits: int) -> WorldLog:
    return WorldLog(level=level, limits=LogLimits(**limits))


def make_tap(log: WorldLog, scheme: str = "http", port: int = 80) -> HttpTap:
    tap = HttpTap(log, client="test", scheme=scheme, host="api.example", port=port)
    tap.connecting(1_000)
    tap.connected(1_500)
    return tap


def wire(exchange: pb.Exchange) -> bytes:
    return b"".join(chunk.data for chunk in exchange.chunks)


GET = b"GET /v1/items?q=1 HTTP/1.1\r\nHost: api.example\r\n\r\n"
HEAD = b"HEAD /v1/items HTTP/1.1\r\nHost: api.example\r\n\r\n"
POST = b"POST /v1/chat HTTP/1.1\r\nHost: api.example\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
POST += b'{"stream":true}'
STREAMED = (
    b"PUT /up HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
)

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Id: 7\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX-Sum: 1\r\n\r\n"
)
NO_BODY = b"HTTP/1.1 204 No Content\r\n\r\n"
FOR_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH
UNTIL_EOF = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end"
COOKIE = b"HTTP/1.1 302 Found\r\nSet-Cookie: sid=" + SECRET + b"; Path=/\r\nContent-Length: 0\r\n\r\n"
GRANT = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
GRANT += b'10\r\n{"access_token":\r\n7\r\n"hunter\r\nf\r\n2-correct-horse\r\n2\r\n"}\r\n0\r\n\r\n'

CONVERSATIONS = {
    "keep-alive": [(GET, LENGTH), (POST, CHUNKED), (HEAD, FOR_HEAD), (GET, NO_BODY), (STREAMED, CONTINUED)],
    "until eof": [(GET, LENGTH), (POST, UNTIL_EOF)],
    "secrets": [(GET, COOKIE), (GET, GRANT), (POST, LENGTH)],
}


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def play(conversation: list[tuple[bytes, bytes]], cuts: list[int], log: WorldLog) -> None:
    tap = make_tap(log)
    at_ns = 2_000
    for request, response in conversation:
        for piece in pieces_of(request, cuts):
            tap.sent(piece, at_ns := at_ns + 10)
        for piece in pieces_of(response, cuts):
            tap.received(piece, at_ns := at_ns + 10)
    tap.peer_closed(at_ns + 10)


def without_times(log: WorldLog) -> list[pb.Exchange]:
    found = []
    for exchange in log.exchanges:
        copy = pb.Exchange()
        copy.CopyFrom(exchange)
        copy.ClearField("chunks")
        copy.chunks.add(data=wire(exchange), size=sum(chunk.size for chunk in exchange.chunks))
        copy.started_ns = copy.sent_ns = 0
        copy.ClearField("ended_ns")
        copy.ClearField("connect_ns")
        copy.ClearField("call_site")
        found.append(copy)
    return found


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation(name):
    log = make_log()
    play(CONVERSATIONS[name], [], log)
    assert not log.lost
    assert [exchange.error for exchange in log.exchanges] == [""] * len(CONVERSATIONS[name])
    for exchange, (request, response) in zip(log.exchanges, CONVERSATIONS[name], strict=True):
        assert exchange.method == request.split()[0].decode()
        assert exchange.url == "http://api.example" + request.split()[1].decode()
        assert len(wire(exchange)) == len(response)
        assert exchange.HasField("ended_ns")
        assert SECRET not in exchange.SerializeToString()


def test_fields_of_an_exchange():
    log = make_log()
    play(CONVERSATIONS["keep-alive"], [], log)
    first, second, head, empty, streamed = log.exchanges
    assert (first.started_ns, first.connect_ns, first.sent_ns) == (1_000, 500, 2_010)
    assert (second.started_ns, second.sent_ns) == (2_030, 2_030)
    assert not second.HasField("connect_ns"), "the connection was reused"
    assert (first.status, second.status, head.status, empty.status, streamed.status) == (200, 201, 200, 204, 200)
    assert [(header.key, header.value) for header in first.response_headers] == [("Content-Length", "5"), ("X-Id", "7")]
    assert [(header.key, header.value) for header in first.request_headers] == [("Host", "api.example")]
    assert second.request_body == b'{"stream":true}'
    assert streamed.request_body == b"abcdefg", "after transfer decoding"
    assert wire(streamed) == CONTINUED, "an interim response belongs to the one that follows"
    assert (first.client, first.framing, first.direction, first.task) == ("test", "wire", "out", "MainThread")
    assert first.call_site[0].function == "make_tap"
    assert first.call_site[0].filename.endswith("test_http_tap.py")
    assert [exchange.occurrence for exchange in log.exchanges] == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("name", CONVERSATIONS)
@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_cuts_change_nothing(name, cuts):
    whole, cut = make_log(), make_log()
    play(CONVERSATIONS[name], [], whole)
    play(CONVERSATIONS[name], cuts, cut)
    assert without_times(cut) == without_times(whole)
    assert cut.lost == whole.lost


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_byte_by_byte(name):
    whole, bytewise = make_log(), make_log()
    play(CONVERSATIONS[name], [], whole)
    play(CONVERSATIONS[name], list(range(1000)), bytewise)
    assert without_times(bytewise) == without_times(whole)
    for exchange, (_, response) in zip(bytewise.exchanges, CONVERSATIONS[name], strict=True):
        assert [chunk.size for chunk in exchange.chunks] == [1] * len(response)


@given(cuts=st.lists(st.integers(0, 400), max_size=8), answers=st.lists(st.integers(0, 400), max_size=8))
def test_pipelined_requests_and_answers(cuts, answers):
    conversation = CONVERSATIONS["keep-alive"]
    whole, log = make_log(), make_log()
    play(conversation, [], whole)
    tap = make_tap(log)
    for piece in pieces_of(b"".join(request for request, _ in conversation), cuts):
        tap.sent(piece, 2_000)
    for piece in pieces_of(b"".join(response for _, response in conversation), answers):
        tap.received(piece, 3_000)
    tap.peer_closed(4_000)
    assert [wire(exchange) for exchange in log.exchanges] == [response for _, response in conversation]
    assert [exchange.method for exchange in log.exchanges] == [exchange.method for exchange in whole.exchanges]


def test_chunks_are_what_the_socket_gave_with_their_delays():
    log = make_log()
    tap = make_tap(log)
    tap.sent(GET[:10], 2_000)
    tap.sent(GET[10:], 2_100)
    tap.flushed(2_200)
    for at_ns, piece in [(2_500, LENGTH[:7]), (2_600, LENGTH[7:40]), (3_000, LENGTH[40:])]:
        tap.received(piece, at_ns)
    (exchange,) = log.exchanges
    assert exchange.sent_ns == 2_200
    assert [chunk.data for chunk in exchange.chunks] == [LENGTH[:7], LENGTH[7:40], LENGTH[40:]]
    assert [chunk.delay_ns for chunk in exchange.chunks] == [300, 100, 400]
    assert exchange.ended_ns == 3_000


def test_one_in_flight_is_in_the_log_as_far_as_it_came():
    log = make_log()
    tap = HttpTap(log, client="test", scheme="https", host="::1", port=8443)
    tap.connecting(1_000)
    (exchange,) = log.exchanges
    assert (exchange.url, exchange.method) == ("https://[::1]:8443", "")
    tap.connected(1_100)
    tap.sent(POST[:-5], 1_200)
    assert (exchange.method, exchange.url) == ("POST", "https://[::1]:8443/v1/chat")
    assert exchange.request_body == b'{"stream":'
    assert exchange.sent_ns == 0
    tap.sent(POST[-5:], 1_300)
    tap.received(CHUNKED[:70], 1_400)
    assert (exchange.status, wire(exchange), exchange.HasField("ended_ns")) == (201, CHUNKED[:70], False)


@pytest.mark.parametrize("kind", ["dns", "refused", "timeout", "tls"])
def test_no_connection(kind):
    log = make_log()
    tap = HttpTap(log, client="test", scheme="http", host="api.example", port=80)
    tap.connecting(1_000)
    tap.connect_failed(kind, "as raised, token=abc", 3_000)
    (exchange,) = log.exchanges
    assert (exchange.error, exchange.error_message) == (kind, "as raised, token=REMOVED")
    assert (exchange.url, exchange.method, exchange.connect_ns, exchange.ended_ns) == (
        "http://api.example:80", "", 2_000, 3_000,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("end", "error", "message"),
    [
        (lambda tap: tap.peer_closed(5_000), "closed", "the peer closed the connection"),
        (lambda tap: tap.closed(5_000), "", GIVEN_UP),
        (lambda tap: tap.failed("reset", "Connection reset by peer", 5_000), "reset", "Connection reset by peer"),
        (lambda tap: tap.failed("timeout", "timed out", 5_000), "timeout", "timed out"),
        (lambda tap: tap.raised(ConnectionResetError(104, "gone")), "reset", "[Errno 104] gone"),
    ],
)
@pytest.mark.parametrize("came", [b"", CHUNKED[:30], CHUNKED[:-4]])
def test_a_connection_that_ends_early(end, error, message, came):
    log = make_log()
    tap = make_tap(log)
    tap.sent(GET, 2_000)
    tap.received(came, 2_100)
    end(tap)
    (exchange,) = log.exchanges
    assert (exchange.error, exchange.error_message, wire(exchange)) == (error, message, came)
    assert exchange.HasField("ended_ns")


@pytest.mark.parametrize("end", ["peer_closed", "failed", "closed"])
def test_what_is_written_into_a_broken_connection_is_no_request(end):
    log = make_log()
    tap = make_tap(log)
    tap.sent(STREAMED[:-14], 2_000)
    if end == "closed":
        tap.write_raised(BrokenPipeError(32, "Broken pipe"))
        tap.closed(2_100)
    else:
        getattr(tap, end)(*(("reset", "gone") if end == "failed" else ()), 2_100)
    tap.sent(STREAMED[-14:], 2_200)
    tap.closed(2_300)
    (exchange,) = log.exchanges
    assert (exchange.method, exchange.request_body, exchange.sent_ns, exchange.ended_ns) == ("PUT", b"abc", 0, 2_100)
    assert exchange.error in ("closed", "reset")
    assert not log.lost


def test_an_end_between_requests_is_nobodys():
    log = make_log()
    play([(GET, LENGTH)], [], log)
    tap = make_tap(log)
    assert len(log.exchanges) == 2
    tap.closed(9_000)
    assert [exchange.error for exchange in log.exchanges] == [""], "a connection that nobody used is no exchange"


def test_a_request_that_could_not_be_written():
    log = make_log()
    tap = make_tap(log)
    tap.sent(GET, 2_000)
    tap.write_raised(BrokenPipeError(32, "Broken pipe"))
    tap.closed(2_100)
    assert [(one.method, one.error) for one in log.exchanges] == [("GET", "reset")]
    answered = make_tap(log)
    answered.sent(STREAMED[:-5], 2_000)
    answered.write_raised(BrokenPipeError(32, "Broken pipe"))
    answered.received(LENGTH, 2_050)
    answered.closed(2_100)
    assert (log.exchanges[1].error, log.exchanges[1].status) == ("", 200), "it was refused with an answer"


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


def test_room_for_bytes_and_for_exchanges():
    log = make_log(bytes=60, exchanges=2)
    play([(GET, LENGTH)] * 3, [], log)
    assert [wire(exchange) for exchange in log.exchanges] == [LENGTH, b""]
    assert [chunk.size for chunk in log.exchanges[1].chunks] == [len(LENGTH)]
    assert log.lost["exchanges"] == 1
    assert log.lost["exchange_bytes"] == len(LENGTH), "what is not in the log does not count"


def test_who_asked_is_told_by_the_seam():
    log = make_log()
    tap = make_tap(log)
    tap.asked_by(Asker("agent", [pb.Frame(function="ask", in_app=True)]))
    tap.sent(GET, 2_000)
    tap.received(LENGTH, 2_100)
    tap.sent(GET, 2_200)
    assert [(one.task, one.occurrence) for one in log.exchanges] == [("agent", 0), ("MainThread", 0)]
    assert [frame.function for frame in log.exchanges[0].call_site] == ["ask"]


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
