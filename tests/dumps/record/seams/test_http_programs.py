"""Programs of several requests: concurrent, streamed, cancelled, through the official client, behind a proxy."""

from __future__ import annotations

import asyncio
import http.client
import io
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress

import aiohttp
import httpx
import openai
import pytest
import urllib3
from aiohttp import web

from dumps.record.seams.http_tap import GIVEN_UP
from dumps.schema import state_pb2 as pb
from tests.scripted_server import ScriptedServer, Step, cut_as_sent, pieces, scripted_server

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNK = (
    b'{"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}'
)
EVENTS = b"".join(b"data: " + CHUNK % word + b"\n\n" for word in (b"one ", b"two ", b"three")) + b"data: [DONE]\n\n"
CHAT = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(EVENTS) + EVENTS
CHAT_PIECES = [CHAT[:50], CHAT[50:130], CHAT[130:131], CHAT[131:400], CHAT[400:]]
SCRIPTS: dict[str, list[Step]] = {
    "/hello": [HELLO],
    "/slow": [0.1, HELLO],
    "/hangs": ["hang"],
    "/half": [HELLO[:-2], "hang"],
    "/v1/chat/completions": pieces(*CHAT_PIECES),
}


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    with scripted_server(SCRIPTS) as running:
        yield running


def wire(exchange: pb.Exchange) -> bytes:
    return b"".join(chunk.data for chunk in exchange.chunks)


async def test_a_server_in_the_same_program_is_not_in_the_way(recording):
    """It shares the writer of messages with the client."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=b"hello " + await request.read())

    application = web.Application()
    application.router.add_post("/", answer)
    with recording() as log:
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        (host, port) = runner.addresses[0]
        async with aiohttp.ClientSession() as session, session.post(f"http://{host}:{port}/", data=b"you") as answered:
            assert await answered.read() == b"hello you"
        await runner.cleanup()
    (one,) = log.exchanges
    assert (one.request_body, one.status) == (b"you", 200)
    assert wire(one).endswith(b"\r\n\r\nhello you")


def test_the_official_client_streams(recording, server):
    with recording() as log, openai.OpenAI(base_url=server.url("/v1"), api_key="sk-secret", max_retries=0) as client:
        stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "count"}], stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    _check_chat(text, log.exchanges, "test_the_official_client_streams")


async def test_the_official_client_streams_async(recording, server):
    with recording() as log:
        async with openai.AsyncOpenAI(base_url=server.url("/v1"), api_key="sk-secret", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "count"}], stream=True
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    _check_chat(text, log.exchanges, "test_the_official_client_streams_async")


def _check_chat(text: str, exchanges: list[pb.Exchange], asked_in: str) -> None:
    assert text == "one two three"
    (one,) = exchanges
    assert wire(one) == CHAT
    assert cut_as_sent([chunk.size for chunk in one.chunks], CHAT_PIECES)
    assert (one.client, one.method, one.status, one.error) == ("httpcore", "POST", 200, "")
    assert b'"stream":true' in one.request_body.replace(b" ", b"")
    assert b"sk-secret" not in one.SerializeToString()
    assert one.call_site[0].function == asked_in


@pytest.mark.parametrize("library", ["aiohttp", "httpx"])
async def test_concurrent_tasks_are_told_apart(recording, server, library):
    async def ask_with_aiohttp(session: aiohttp.ClientSession) -> None:
        for _ in range(3):
            async with session.get(server.url("/slow")) as answer:
                await answer.read()

    async def ask_with_httpx(client: httpx.AsyncClient) -> None:
        for _ in range(3):
            await client.get(server.url("/slow"))

    with recording() as log:
        if library == "aiohttp":
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=2)) as session:
                await asyncio.gather(*(asyncio.create_task(ask_with_aiohttp(session), name=f"w{n}") for n in range(4)))
        else:
            async with httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_connections=2)) as client:
                await asyncio.gather(*(asyncio.create_task(ask_with_httpx(client), name=f"w{n}") for n in range(4)))
    found = sorted((one.task, one.occurrence) for one in log.exchanges)
    assert found == [(f"w{worker}", turn) for worker in range(4) for turn in range(3)]
    assert {wire(one) for one in log.exchanges} == {HELLO}
    assert {one.call_site[0].function.rpartition(".")[2] for one in log.exchanges} == {f"ask_with_{library}"}
    assert sum(one.HasField("connect_ns") for one in log.exchanges) == 2
    assert len({one.id for one in log.exchanges}) == 12


@pytest.mark.parametrize("path", ["/hangs", "/half"])
@pytest.mark.parametrize("library", ["aiohttp", "httpx"])
async def test_a_cancelled_task(recording, server, library, path):
    async def ask() -> None:
        if library == "aiohttp":
            async with aiohttp.ClientSession() as session, session.get(server.url(path)) as answer:
                await answer.read()
        else:
            async with httpx.AsyncClient(trust_env=False) as client:
                await client.get(server.url(path))

    with recording() as log, pytest.raises(TimeoutError):
        await asyncio.wait_for(ask(), 0.3)
    (one,) = log.exchanges
    assert (one.error, one.error_message, one.HasField("ended_ns")) == ("", GIVEN_UP, True)
    assert wire(one) == (HELLO[:-2] if path == "/half" else b"")


async def test_aiohttp_s_limit_for_a_whole_request_is_the_program_giving_up(recording, server):
    with recording() as log:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.2)) as session:
            with pytest.raises(TimeoutError):
                await session.get(server.url("/hangs"))
    assert [(one.error, one.error_message) for one in log.exchanges] == [("", GIVEN_UP)]


@pytest.mark.parametrize("library", ["aiohttp", "httpx"])
async def test_a_connection_that_takes_too_long(recording, library, monkeypatch):
    """Nobody accepts: the queue of a listening socket is full."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        with recording() as log:
            if library == "aiohttp":
                async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(connect=0.2)) as session:
                    with pytest.raises(TimeoutError):
                        await session.get(url)
            else:
                async with httpx.AsyncClient(trust_env=False, timeout=0.2) as client:
                    with pytest.raises(httpx.ConnectTimeout):
                        await client.get(url)
    (one,) = log.exchanges
    assert (one.error, one.method) == ("timeout", "")
    assert 0.15e9 < one.connect_ns < 5e9


async def test_a_streamed_request_body(recording, server):
    async def parts() -> AsyncIterator[bytes]:
        for number in range(5):
            await asyncio.sleep(0.01)
            yield b"part %d, " % number

    body = b"".join(b"part %d, " % number for number in range(5))
    server.requests.clear()
    with recording() as log:
        async with aiohttp.ClientSession() as session:
            answer = await session.post(server.url("/hello"), data=parts())
            assert await answer.read() == b"hello"
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.post(server.url("/hello"), content=parts())).content == b"hello"
    assert [one.request_body for one in log.exchanges] == [body] * 2
    assert [request[2] for request in server.requests] == [body] * 2
    assert all(one.sent_ns - one.started_ns > 40e6 for one in log.exchanges)


async def test_a_request_that_aiohttp_writes_from_a_task_of_its_own(recording, server):
    async def parts() -> AsyncIterator[bytes]:
        await asyncio.sleep(0.01)
        yield b"part"

    async def program() -> None:
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                async with session.post(server.url("/hello"), data=parts(), expect100=False) as answer:
                    await answer.read()

    with recording() as log:
        await asyncio.create_task(program(), name="agent")
    assert [(one.task, one.occurrence, one.HasField("connect_ns")) for one in log.exchanges] == [
        ("agent", 0, True), ("agent", 1, False),
    ]  # fmt: skip
    assert {one.call_site[0].function.rpartition(".")[2] for one in log.exchanges} == {"program"}


@pytest.mark.parametrize(
    "make_body", [lambda: io.BytesIO(b"12345"), lambda: io.StringIO("12345"), lambda: [b"1", b"2345"]]
)
def test_http_client_sends_files_and_parts_directly(recording, server, make_body):
    server.requests.clear()
    connection = http.client.HTTPConnection("localhost", server.port)
    with recording() as log:
        connection.putrequest("PUT", "/hello")
        connection.putheader("Content-Length", "5")
        connection.endheaders()
        connection.send(make_body())
        assert connection.getresponse().read() == b"hello"
        connection.close()
    assert [request[2] for request in server.requests] == [one.request_body for one in log.exchanges] == [b"12345"]


@pytest.mark.parametrize(
    "make_body",
    [
        lambda: b"as bytes",
        lambda: "as text",
        lambda: io.BytesIO(b"from a file"),
        lambda: io.StringIO("from a text file, caf\xe9"),
        lambda: iter([b"in ", bytearray(b"parts"), b""]),
        lambda: memoryview(b"a view"),
    ],
)
def test_http_client_takes_bodies_of_every_kind(recording, server, make_body):
    server.requests.clear()

    def ask() -> bytes:
        connection = http.client.HTTPConnection("localhost", server.port)
        connection.request("PUT", "/hello", body=make_body())
        answer = connection.getresponse()
        try:
            return answer.read()
        finally:
            connection.close()

    assert ask() == b"hello"
    with recording() as log:
        assert ask() == b"hello"
    without, recorded = server.requests
    assert recorded == without
    assert log.exchanges[0].request_body == without[2]


def test_connections_of_before_are_not_followed_and_go_on(recording, server):
    connection = http.client.HTTPConnection("localhost", server.port)

    def ask() -> bytes:
        connection.request("GET", "/hello")
        return connection.getresponse().read()

    with httpx.Client(trust_env=False) as client:
        assert (ask(), client.get(server.url("/hello")).content) == (b"hello", b"hello")
        with recording() as log:
            assert (ask(), client.get(server.url("/hello")).content) == (b"hello", b"hello")
        assert log.exchanges == []
        connection.close()
        with recording() as log:
            assert ask() == b"hello"
        assert len(log.exchanges) == 1
        assert ask() == b"hello", "and a connection of a recording outlives it"
        assert len(log.exchanges) == 1
        connection.close()


@pytest.mark.parametrize("library", ["httpx", "http.client"])
def test_a_recording_that_ends_while_a_response_is_read(recording, server, library):
    connection = http.client.HTTPConnection("localhost", server.port)
    with httpx.Client(trust_env=False) as client:
        with recording() as log:
            if library == "httpx":
                request = client.build_request("POST", server.url("/v1/chat/completions"))
                stream: Iterator[bytes] = client.send(request, stream=True).iter_raw()
            else:
                connection.request("POST", "/v1/chat/completions")
                answer = connection.getresponse()
                stream = iter(lambda: answer.read1(), b"")
            got = next(stream)
            (one,) = log.exchanges
            assert not one.HasField("ended_ns"), "in flight, and visible"
            assert EVENTS.startswith(got)
            seen = wire(one)
            assert CHAT.startswith(seen)
        assert got + b"".join(stream) == EVENTS
        connection.close()
    assert (wire(one), one.HasField("ended_ns")) == (seen, False), "nothing is recorded after its end"


def test_behind_a_proxy_the_exchange_is_that_with_the_server(recording, authority, secure_server):
    """Each client says CONNECT to the proxy, then speaks TLS with the server through it."""
    tls = ssl.create_default_context(cafile=authority[1])
    url = secure_server.url("/hello")

    async def ask_with_aiohttp(proxy: str) -> bytes:
        async with aiohttp.ClientSession() as session, session.get(url, proxy=proxy, ssl=tls) as answer:
            return await answer.read()

    with forwarding_proxy() as port, recording() as log:
        proxy = f"http://localhost:{port}"
        assert asyncio.run(ask_with_aiohttp(proxy)) == b"hello"
        with httpx.Client(proxy=proxy, verify=tls, trust_env=False) as client:
            assert client.get(url).content == b"hello"
        with urllib3.ProxyManager(proxy, ssl_context=tls) as pool:
            assert pool.request("GET", url).data == b"hello"
        connection = http.client.HTTPSConnection("localhost", port, context=tls)
        connection.set_tunnel("localhost", secure_server.port)
        connection.request("GET", "/hello")
        assert connection.getresponse().read() == b"hello"
        connection.close()
    assert [(one.client, one.url, wire(one)) for one in log.exchanges] == [
        (client, url, HELLO) for client in ("aiohttp", "httpcore", "http.client", "http.client")
    ]


@contextmanager
def forwarding_proxy() -> Iterator[int]:
    """A proxy that knows CONNECT only, for one client after another."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads: list[threading.Thread] = []
        sockets: list[socket.socket] = []

        def pump(source: socket.socket, sink: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(65536):
                    sink.sendall(data)
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                head = b""
                while b"\r\n\r\n" not in head:
                    head += client.recv(65536)
                host, _, port = head.split()[1].decode().rpartition(":")
                far = socket.create_connection((host, int(port)))
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                pair = [threading.Thread(target=pump, args=ends) for ends in ((client, far), (far, client))]
                threads.extend(pair)
                for thread in pair:
                    thread.start()
                sockets.extend([client, far])

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join()
            for thread in threads:
                thread.join()
            for one in sockets:
                one.close()
