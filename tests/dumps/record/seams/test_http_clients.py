"""What each real client does with a real server is recorded, and the client does not notice."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator

import pytest

from dumps.record.recorder import RecordLevel
from dumps.record.seams.http_tap import GIVEN_UP
from dumps.record.seams.log import WorldLog
from dumps.schema import state_pb2 as pb
from tests.http_clients import CLIENTS, RECORDED_AS, Ask, Outcome
from tests.scripted_server import ScriptedServer, Step, cut_as_sent, pieces, scripted_server

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
ZIPPED = gzip.compress(b"hello hello hello")
EVENTS = [b'data: {"delta": "%d"}\n\n' % number for number in range(4)]
CHUNKED_EVENTS = [b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS]
EVENT_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = EVENT_HEAD + b"".join(CHUNKED_EVENTS) + b"0\r\n\r\n"
UNEVEN = [STREAM[:30], STREAM[30:100], STREAM[100:104], STREAM[104:170], STREAM[170:]]

SCRIPTS: dict[str, list[Step]] = {
    "/hello": [HELLO],
    "/gzip": [b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(ZIPPED), ZIPPED],
    "/uneven": pieces(*UNEVEN),
    "/eof": [*pieces(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhel", b"lo"), "close"],
    "/cut": [*pieces(STREAM[:90], STREAM[90:120]), "close"],
    "/short": [b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", 0.03, "close"],
    "/reset": [*pieces(STREAM[:90], STREAM[90:120]), 0.05, "reset"],
    "/unanswered": [0.03, "reset"],
    "/hangs": ["hang"],
    "/stalls": [STREAM[:120], "hang"],
    "/garbage": [b"SSH-2.0-OpenSSH\r\n\r\n", 0.03, "close"],
    "/grant": [b'HTTP/1.1 200 OK\r\nContent-Length: 28\r\nSet-Cookie: sid=abc\r\n\r\n{"access_token": "secret-1"}'],
    "/redirect": [b"HTTP/1.1 302 Found\r\nLocation: /hello\r\nContent-Length: 0\r\n\r\n"],
}


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted_server(SCRIPTS) as running:
        yield running


@pytest.fixture(params=CLIENTS)
def client(request) -> str:
    return str(request.param)


@pytest.fixture
def record(recording, client) -> Callable[..., tuple[Outcome, WorldLog]]:
    """The same program twice: what it got must be the same with the recording and without."""

    def twice(ask: Ask, level: RecordLevel = RecordLevel.FULL) -> tuple[Outcome, WorldLog]:
        without = CLIENTS[client](ask)
        with recording(level) as log:
            outcome = CLIENTS[client](ask)
        assert outcome == without
        return outcome, log

    return twice


def wire(exchange: pb.Exchange) -> bytes:
    return b"".join(chunk.data for chunk in exchange.chunks)


def test_several_requests_on_one_connection(record, client, server):
    outcome, log = record(Ask(tuple(server.url(path) for path in ("/hello", "/uneven", "/hello?q=2"))))
    assert outcome == [(200, b"hello"), (200, b"".join(EVENTS)), (200, b"hello")]
    assert [one.url for one in log.exchanges] == [server.url(path) for path in ("/hello", "/uneven", "/hello?q=2")]
    assert [wire(one) for one in log.exchanges] == [HELLO, STREAM, HELLO]
    assert not log.lost
    for one in log.exchanges:
        assert (one.method, one.status, one.error, one.error_message) == ("GET", 200, "", "")
        assert one.client == RECORDED_AS.get(client, "httpcore")
        assert one.started_ns <= one.sent_ns <= one.ended_ns
        assert one.call_site[0].filename.endswith("http_clients.py")
        assert one.call_site[0].function.startswith("with_")
        assert all(frame.in_app for frame in one.call_site)
        assert {header.key.lower() for header in one.request_headers} >= {"host", "user-agent"}
    reused = [not one.HasField("connect_ns") for one in log.exchanges]
    assert reused == ([False] * 3 if client == "urllib" else [False, True, True])


def test_chunks_keep_the_boundaries_of_the_socket_and_their_delays(record, server):
    _, log = record(Ask((server.url("/uneven"),)))
    (one,) = log.exchanges
    assert wire(one) == STREAM
    assert cut_as_sent([chunk.size for chunk in one.chunks], UNEVEN)
    delays = [chunk.delay_ns for chunk in one.chunks]
    assert sum(delays) == one.ended_ns - one.sent_ns > 0.1e9


@pytest.mark.parametrize(
    ("path", "body"),
    [("/gzip", None), ("/eof", b"hello"), ("/redirect", None)],
)
def test_kinds_of_bodies(record, server, path, body):
    outcome, log = record(Ask((server.url(path),)))
    one = log.exchanges[0]
    sent = b"".join(step for step in SCRIPTS[path] if isinstance(step, bytes))
    assert (wire(one), one.error, one.HasField("ended_ns")) == (sent, "", True)
    if body is not None:
        assert outcome[0][1] == body


def test_a_request_with_a_body(record, server):
    body = b'{"question": "' + b"why? " * 30_000 + b'"}'
    server.requests.clear()
    ask = Ask((server.url("/hello"),), body=body, headers={"Content-Type": "application/json"})
    outcome, log = record(ask)
    assert outcome == [(200, b"hello")]
    (one,) = log.exchanges
    assert (one.method, one.request_body) == ("POST", body)
    assert server.requests == [("POST", "/hello", body)] * 2


@pytest.mark.parametrize(
    ("path", "error", "came"),
    [
        ("/cut", "closed", STREAM[:120]),
        ("/short", "closed", b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello"),
        ("/reset", "reset", STREAM[:120]),
        ("/unanswered", "reset", b""),
        ("/hangs", "timeout", b""),
        ("/stalls", "timeout", STREAM[:120]),
        ("/garbage", None, b"SSH-2.0-OpenSSH\r\n\r\n"),
    ],
)
def test_connections_that_fail(record, server, path, error, came):
    outcome, log = record(Ask((server.url(path),), timeout_s=0.3))
    assert isinstance(outcome[0], str)
    one = log.exchanges[0]
    assert wire(one) == came
    assert one.error_message
    assert one.HasField("ended_ns")
    if error is not None:
        assert one.error == error
        assert not log.lost
    else:
        assert log.lost["unreadable_connections"] == 1


def test_refused(record):
    with scripted_server({}) as gone:
        url = gone.url("/hello")
    outcome, log = record(Ask((url,)))
    assert isinstance(outcome[0], str)
    (one,) = log.exchanges
    assert (one.error, one.method, one.url) == ("refused", "", url.removesuffix("/hello"))
    assert one.HasField("connect_ns")
    assert one.call_site


def test_a_name_that_does_not_exist(record):
    outcome, log = record(Ask(("http://no-such-host.invalid/x",)))
    assert isinstance(outcome[0], str)
    (one,) = log.exchanges
    assert (one.error, one.method, one.url) == ("dns", "", "http://no-such-host.invalid:80")


def test_tls_is_recorded_decrypted(record, secure_server, authority):
    ask = Ask((secure_server.url("/hello"), secure_server.url("/uneven")), trust=authority[1])
    outcome, log = record(ask)
    assert outcome == [(200, b"hello"), (200, b"".join(EVENTS))]
    assert [one.url for one in log.exchanges] == [secure_server.url("/hello"), secure_server.url("/uneven")]
    assert [wire(one) for one in log.exchanges] == [HELLO, STREAM]
    assert all(one.error == "" for one in log.exchanges)


def test_a_certificate_that_nobody_trusts(record, secure_server):
    outcome, log = record(Ask((secure_server.url("/hello"),)))
    assert isinstance(outcome[0], str)
    one = log.exchanges[0]
    assert (one.error, one.method, one.url) == ("tls", "", secure_server.url(""))
    assert "certificate" in one.error_message.lower()


def test_a_reset_under_tls(record, client, secure_server, authority):
    outcome, log = record(Ask((secure_server.url("/reset"),), trust=authority[1]))
    assert isinstance(outcome[0], str)
    (one,) = log.exchanges
    assert wire(one) == STREAM[:120]
    # The ssl module reports a reset as an end of file, so that is what a client on plain TLS sockets met.
    assert one.error == ("reset" if client in ("aiohttp", "httpx-async") else "closed")


def test_secrets_stay_out_and_the_program_gets_them(record, server):
    ask = Ask(
        (server.url("/grant?api_key=secret-2"),),
        body=b'{"password": "secret-3"}',
        headers={"Authorization": "Bearer secret-4", "Content-Type": "application/json"},
    )
    outcome, log = record(ask)
    assert outcome == [(200, b'{"access_token": "secret-1"}')]
    (one,) = log.exchanges
    assert b"secret-" not in one.SerializeToString()
    assert one.url.endswith("/grant?api_key=REMOVED")
    assert one.request_body == b'{"password": "REMOVED"}'
    assert wire(one).endswith(b'Set-Cookie: sid=xxx\r\n\r\n{"access_token": "xxxxxxxx"}')


def test_below_level_full_nothing_of_a_body_is_kept(record, server):
    _, log = record(Ask((server.url("/uneven?user=jane"),), body=b"user=jane"), RecordLevel.SHAPE)
    (one,) = log.exchanges
    assert (one.url, one.request_body, wire(one)) == (server.url("/uneven"), b"", b"")
    assert cut_as_sent([chunk.size for chunk in one.chunks], UNEVEN)


def test_uninstalling_puts_everything_back(recording, client, server):
    before = _methods()
    for _ in range(2):
        with recording() as log:
            assert _methods() != before
            CLIENTS[client](Ask((server.url("/hello"),)))
        assert _methods() == before
    CLIENTS[client](Ask((server.url("/hello"),)))
    assert len(log.exchanges) == 1


def _methods() -> dict[tuple[type, str], Callable[..., object]]:
    import http.client

    import aiohttp
    import httpcore
    import httpcore2
    import urllib3.connection

    owners: list[type] = [
        aiohttp.TCPConnector,
        aiohttp.BaseConnector,
        aiohttp.client_proto.ResponseHandler,
        aiohttp.http_writer.StreamWriter,
        http.client.HTTPConnection,
        http.client.HTTPSConnection,
        http.client.HTTPResponse,
        urllib3.connection.HTTPConnection,
        urllib3.connection.HTTPSConnection,
    ]
    for library in (httpcore, httpcore2):
        backends = library._backends
        owners += [backends.sync.SyncBackend, backends.sync.SyncStream, backends.sync.TLSinTLSStream]
        owners += [backends.anyio.AnyIOBackend, backends.anyio.AnyIOStream]
    return {(owner, name): value for owner in owners for name, value in vars(owner).items() if callable(value)}


def test_given_up_is_not_a_failure(recording, server):
    """A program that has enough of an answer closes the connection."""
    import httpx

    with (
        recording() as log,
        httpx.Client(trust_env=False) as client,
        client.stream("GET", server.url("/uneven")) as one,
    ):
        next(one.iter_raw())
    (exchange,) = log.exchanges
    assert (exchange.error, exchange.error_message) == ("", GIVEN_UP)
    assert STREAM.startswith(wire(exchange))
