"""Failures to connect, recorded by the recorder's own seams while real clients met them, and then replayed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import httpx
import pytest
import requests

from dumps.record.recorder import RecordLevel
from dumps.record.seams import aiohttp_client, http_client_socket, httpcore_backend
from dumps.record.seams.log import WorldLog
from dumps.schema import state_pb2 as pb
from tests.loopback import Loopback, Script
from tests.seen_by import ASYNC, READ_TIMEOUT, SYNC, Seen

OK = Script([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"])
Make = Callable[..., Any]


@contextmanager
def recorded() -> Iterator[list[pb.Exchange]]:
    log = WorldLog(level=RecordLevel.FULL)
    undo = [seam.install(log) for seam in (aiohttp_client, httpcore_backend, http_client_socket)]
    try:
        yield log.exchanges
    finally:
        for one in undo:
            one()


def record(name: str, url: str) -> tuple[Seen, list[pb.Exchange]]:
    with recorded() as exchanges:
        return asyncio.run(in_async(name, url)) if name in ASYNC else SYNC[name](url), exchanges


def again_from(exchanges: list[pb.Exchange], name: str, url: str, replay: Make) -> tuple[Seen, Any]:
    world = replay(*exchanges)
    return world.run(lambda: in_async(name, url)) if name in ASYNC else world.call(lambda: SYNC[name](url)), world


async def in_async(name: str, url: str) -> Seen:
    return await ASYNC[name](url)


def assert_the_same_failure(live: Seen, again: Seen) -> None:
    """Type and message; of the causes below, asyncio's own differ in ways that no program looks at."""
    assert live.error is not None
    assert again.error is not None
    assert again.error[1] == live.error[1]
    assert again.error[0].split(" < ")[0] == live.error[0].split(" < ")[0]


CLIENTS = [name for name in (*ASYNC, *SYNC) if "chunks" not in name]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_refused_connection_is_refused_again(name: str, replay: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}/x"
    live, exchanges = record(name, url)
    again, world = again_from(exchanges, name, url, replay)
    assert_the_same_failure(live, again)
    assert world.kinds() == []


@pytest.mark.parametrize("name", CLIENTS)
def test_a_name_that_did_not_resolve_does_not_resolve_again(name: str, replay: Make) -> None:
    url = "http://no-such-host.invalid/x"
    live, exchanges = record(name, url)
    again, world = again_from(exchanges, name, url, replay)
    assert_the_same_failure(live, again)
    assert world.kinds() == []


@pytest.mark.parametrize("script", [Script(OK.pieces, "close", first=True), Script([], "silence", first=True)])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_failed_handshake_fails_again(name: str, script: Script, replay: Make) -> None:
    with Loopback(script) as server:  # which speaks no TLS
        url = server.url.replace("http:", "https:")
        live, exchanges = record(name, url)
    again, world = again_from(exchanges, name, url, replay)
    assert_the_same_failure(live, again)
    assert world.kinds() == []


@pytest.mark.parametrize("name", CLIENTS)
def test_a_connect_that_took_too_long_takes_too_long_again(name: str, replay: Make) -> None:
    """A listener whose backlog is full lets nobody in."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        url = f"http://127.0.0.1:{port}/x"
        live, exchanges = record(name, url)
        for filler in fillers:
            filler.close()
    again, world = again_from(exchanges, name, url, replay)
    assert_the_same_failure(live, again)
    assert world.passed_s == pytest.approx(READ_TIMEOUT, abs=0.2)


@pytest.mark.parametrize("name", CLIENTS)
def test_what_the_recorder_wrote_plays(name: str, replay: Make) -> None:
    pieces = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"3\r\none\r\n3\r", b"\ntwo\r\n0\r\n\r\n"]
    with Loopback(Script(pieces)) as server:
        url = f"{server.url}/?token=hidden"
        live, exchanges = record(name, url)
    again, world = again_from(exchanges, name, url, replay)
    assert live.error is None
    assert again == live
    assert world.kinds() == []


@pytest.mark.parametrize("kept_alive", [True, False])
def test_two_requests_on_one_connection_and_on_two(kept_alive: bool, replay: Make) -> None:
    close = b"" if kept_alive else b"Connection: close\r\n"
    scripts = [
        Script(
            [b"HTTP/1.1 200 OK\r\n" + close + b"Content-Length: 1\r\n\r\n" + body], "keep" if kept_alive else "close"
        )
        for body in (b"1", b"2")
    ]

    def twice() -> list[str]:
        with httpx.Client(trust_env=False) as client:
            return [client.get(server.url).text for _ in range(2)]

    with Loopback(*scripts) as server, recorded() as exchanges:
        assert twice() == ["1", "2"]
    assert [exchange.HasField("connect_ns") for exchange in exchanges] == [True, not kept_alive]
    world = replay(*exchanges)
    assert world.call(twice) == ["1", "2"]
    assert world.kinds() == []


def test_bodies_match_whatever_their_boundary_key_order_and_framing(replay: Make) -> None:
    """What the replayed program writes differs in bytes from what was recorded, and is the same request."""

    def post(url: str, *, again: bool) -> list[int]:
        document: Any = {"b": 1.0, "a": [1]} if again else {"a": [1], "b": 1}
        answers: list[Any] = [
            requests.post(url, files={"f": ("n.txt", b"data")}, data={"x": "1"}, timeout=5),
            requests.post(url, json=document, headers={"date": "now" if again else "then"}, timeout=5),
            httpx.post(url, files={"f": ("n.txt", b"data")}, trust_env=False),
            httpx.post(url, content=iter([b"in ", b"chunks"] if again else [b"in chunks"]), trust_env=False),
            httpx.post(f"{url}?b=2&a=%7e1" if again else f"{url}?a=~1&b=2", data={"k": "v w"}, trust_env=False),
        ]
        return [answer.status_code for answer in answers]

    with Loopback(OK) as server:
        url = f"{server.url}/"
        with recorded() as exchanges:
            assert post(url, again=False) == [200] * 5
    assert len(exchanges) == 5
    world = replay(*exchanges)
    assert world.call(lambda: post(url, again=True)) == [200] * 5
    assert world.kinds() == []


def test_tasks_at_the_same_time_each_get_their_own(replay: Make) -> None:
    heads = [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n" + body for body in (b"one", b"two", b"two")]

    async def ask(session: aiohttp.ClientSession, url: str, client: httpx.AsyncClient) -> list[str]:
        async def by_aiohttp() -> str:
            async with session.get(url) as response:
                return await response.text()

        async def by_httpx() -> str:
            return (await client.get(url)).text

        first = asyncio.create_task(by_aiohttp(), name="first")
        await asyncio.sleep(0.02)
        second = asyncio.create_task(by_httpx(), name="second")
        return [await first, await second]

    async def program(url: str) -> list[str]:
        async with aiohttp.ClientSession() as session, httpx.AsyncClient(trust_env=False) as client:
            return await ask(session, url, client)

    with Loopback(*[Script([head]) for head in heads]) as server, recorded() as exchanges:
        assert asyncio.run(program(server.url)) == ["one", "two"]
    assert [exchange.task for exchange in exchanges] == ["first", "second"]
    for _ in range(2):
        world = replay(*exchanges)
        assert world.run(lambda: program(server.url)) == ["one", "two"]
        assert world.kinds() == []
