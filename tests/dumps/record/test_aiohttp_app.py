"""A recorded aiohttp server: what its dumps say, and that its clients notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import http_writer, streams, web, web_protocol

from dumps.record.aiohttp_app import record_aiohttp
from dumps.record.seams import current
from dumps.record.seams.tools import tool
from dumps.schema import state_pb2 as pb
from tests.program_dumps import dumps_in, only_dump

pytestmark = pytest.mark.asyncio


class Failed(Exception):
    """What the handlers of these tests raise."""


@tool
async def look_up(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "found"


async def broken(request: web.Request) -> web.Response:
    await request.read()
    await look_up(0)
    raise Failed("no more")


async def half(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"one half, ")
    await response.write(b"and ")
    raise Failed("no other half")


async def bad_gateway(request: web.Request) -> web.Response:
    raise web.HTTPBadGateway(text="upstream")


async def missing(request: web.Request) -> web.Response:
    raise web.HTTPNotFound(text="no")


async def answered(request: web.Request) -> web.Response:
    return web.json_response({"api_key": "sk-very-secret", "asked": await request.json()}, status=500)


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"more\n" * 1000)
        await asyncio.sleep(0.005)


async def sleepy(request: web.Request) -> web.Response:
    return web.Response(text=await look_up(0.3))


HANDLERS = (broken, half, bad_gateway, missing, answered, endless, sleepy)


@contextlib.asynccontextmanager
async def serving(folder: Path, **options: Any) -> Any:
    """A recorded application behind aiohttp's own runner. Yields a client for it."""
    cancels = options.pop("handler_cancellation", False)
    app = web.Application()
    for handler in HANDLERS:
        app.router.add_route("*", f"/{handler.__name__}", handler)
    assert record_aiohttp(app, folder, **{"level": "full"} | options) is app
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=cancels)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        async with aiohttp.ClientSession(f"http://{host}:{port}") as client:
            yield client
    finally:
        await runner.cleanup()


def inbound(state: pb.RuntimeState) -> pb.Exchange:
    (exchange,) = (one for one in state.exchanges if one.direction == "in")
    return exchange


async def test_an_exception_that_leaves_the_handler_makes_a_dump(tmp_path):
    async def pieces() -> Any:
        yield b'{"password": "hun'
        await asyncio.sleep(0.05)
        yield b'ter2"}'

    async with serving(tmp_path) as client:
        headers = {"Content-Type": "application/json", "Authorization": "Bearer very-secret"}
        async with client.post("/broken?token=abc", data=pieces(), headers=headers) as answer:
            assert answer.status == 500
    state = only_dump(tmp_path)
    exchange = inbound(state)
    assert exchange.method == "POST"
    assert exchange.url.endswith("/broken?token=REMOVED")
    assert "very-secret" not in str(exchange.request_headers)
    assert exchange.request_body == b'{"password": "xxxxxxx"}'
    assert [chunk.size for chunk in exchange.request_chunks] == [17, 6]
    assert exchange.request_chunks[1].delay_ns > 20_000_000
    assert exchange.error_message == "Failed: no more"
    (failure,), (call,) = state.failures, state.tool_calls
    assert (failure.kind, failure.exchange, failure.step) == ("exception", exchange.id, 1)
    assert failure.frame.endswith("test_aiohttp_app.py:broken")
    assert call.within == exchange.id
    assert state.program.kind == "aiohttp"


async def test_what_was_sent_before_is_in_the_dump_as_it_was_sent(tmp_path):
    async with serving(tmp_path) as client:
        with contextlib.suppress(aiohttp.ClientError):
            async with client.get("/half") as answer:
                await answer.read()
    exchange = inbound(only_dump(tmp_path))
    assert exchange.status == 200
    assert [chunk.data for chunk in exchange.chunks] == [b"one half, ", b"and "]
    assert "Server" in [header.key for header in exchange.response_headers]


async def test_errors_that_are_answers(tmp_path):
    async with serving(tmp_path) as client:
        for path, status in (("/missing", 404), ("/nowhere", 404), ("/bad_gateway", 502)):
            async with client.get(path) as answer:
                assert answer.status == status
        async with client.post("/answered", json={"q": 1}) as answer:
            assert (answer.status, (await answer.json())["asked"]) == (500, {"q": 1})
    state = only_dump(tmp_path)
    assert state.failures[0].exception_type == "aiohttp.web_exceptions.HTTPBadGateway"
    assert state.failures[0].frame.endswith("test_aiohttp_app.py:bad_gateway")
    assert [one.status for one in state.exchanges if one.direction == "in"] == [404, 404, 0]  # it is yet to be sent


async def test_the_whole_exchange_is_there_once_it_is_over(tmp_path):
    async with serving(tmp_path) as client:
        async with client.post("/answered", json={"q": 1}) as answer:
            await answer.read()
        async with client.get("/broken") as answer:
            assert answer.status == 500
    state = only_dump(tmp_path)
    first = next(one for one in state.exchanges if one.direction == "in")
    assert (first.status, first.error, first.HasField("ended_ns")) == (500, "", True)
    assert first.request_body == b'{"q": 1}'
    (chunk,) = first.chunks
    assert chunk.data == b'{"api_key": "xxxxxxxxxxxxxx", "asked": {"q": 1}}'


@pytest.mark.parametrize("cancels", [False, True])
async def test_a_client_that_goes_away_makes_a_dump(tmp_path, cancels):
    async with serving(tmp_path, handler_cancellation=cancels) as client:
        async with client.get("/endless") as answer:
            await answer.content.readline()
            answer.close()
        for _ in range(200):
            if list(tmp_path.glob("*.pplx")):
                break
            await asyncio.sleep(0.02)
    (failure,) = only_dump(tmp_path).failures
    assert failure.kind == "exception"
    assert failure.exception_type.endswith("CancelledError" if cancels else "ConnectionResetError")
    assert failure.frame.endswith("test_aiohttp_app.py:endless")


async def test_a_request_that_takes_too_long_makes_a_dump_and_goes_on(tmp_path):
    async with serving(tmp_path, timeout=0.1) as client, client.get("/sleepy") as answer:
        assert await answer.text() == "found"
    state = only_dump(tmp_path)
    (failure,) = state.failures
    assert (failure.kind, failure.invariant, failure.step) == ("timeout", "request", 1)
    assert failure.frame.endswith("test_aiohttp_app.py:look_up")


async def test_what_was_put_in_place_is_taken_away_again(tmp_path):
    def functions() -> list[Any]:
        writer, reader = http_writer.StreamWriter, streams.StreamReader
        names = ((writer, "write"), (writer, "write_eof"), (writer, "write_headers"), (reader, "feed_data"))
        found = [vars(owner)[name] for owner, name in (*names, (reader, "feed_eof"))]
        return [*found, web_protocol.RequestHandler.finish_response]

    before = functions()
    async with serving(tmp_path):
        assert not any(one is other for one, other in zip(before, functions(), strict=True))
        assert current.active() is not None
    assert before == functions()
    assert current.active() is None


async def test_in_a_replay_nothing_is_done(tmp_path):
    end = current.begin_replay()
    try:
        async with serving(tmp_path) as client, client.get("/broken") as answer:
            assert answer.status == 500
            assert current.active() is None
    finally:
        end()
    assert dumps_in(tmp_path) == []
