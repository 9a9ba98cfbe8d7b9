"""Served applications that wait for an answer which had not come when the record ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import pytest
from aiohttp import web

from dumps.record.seams.http_tap import GIVEN_UP
from dumps.schema import state_pb2 as pb
from tests.replay.targets.app.test_served_requests import BODY, HEAD, Dump, codes, verdict

URL = "http://b.test"


async def by_httpx(path: str) -> str:
    async with httpx.AsyncClient(trust_env=False, timeout=None) as client:
        return (await client.get(URL + path)).text


async def by_aiohttp(path: str) -> str:
    client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
    async with client, client.get(URL + path) as answer:
        return await answer.text()


Get = Callable[[str], Any]


async def work(get: Get) -> None:
    """The recorded one failed between the two."""
    slow = asyncio.create_task(get("/slow"))
    await get("/fast")
    await slow


def served(kind: str, get: Get) -> Any:
    if kind == "asgi":

        async def app(scope: Any, receive: Any, send: Any) -> None:
            assert scope["type"] == "http"
            await work(get)
            await send(HEAD)
            await send(BODY)

        return app

    async def handler(request: web.Request) -> web.Response:
        await work(get)
        return web.Response()

    application = web.Application()
    application.router.add_post("/", handler)
    return application


def dump_of(kind: str) -> tuple[Dump, pb.Exchange]:
    """A dump, and its request for /slow, which is not over."""
    dump = Dump(kind)
    asked = dump.request()
    for path in ("/fast", "/slow"):
        out = dump.state.exchanges.add(
            id=f"out{path}", direction="out", method="GET", url=URL + path, within=asked.id, framing="body"
        )
        out.request_headers.add(key="Host", value="b.test")
        out.connect_ns, out.started_ns, out.sent_ns = 1000, asked.started_ns + 1000, asked.started_ns + 2000
    slow, fast = out, dump.state.exchanges[-2]
    fast.status, fast.ended_ns = 200, fast.sent_ns + 2000
    fast.response_headers.add(key="Content-Length", value="1")
    fast.chunks.add(delay_ns=1000, size=1, data=b"a")
    dump.failure(asked.id, message="no more", step=2)
    return dump, slow


@pytest.mark.parametrize("get", [by_httpx, by_aiohttp])
@pytest.mark.parametrize("kind", ["asgi", "aiohttp"])
def test_one_that_waits_for_what_had_not_come_lived_to_the_end_of_the_record(kind: str, get: Get) -> None:
    dump, slow = dump_of(kind)
    found, _ = dump.replay(served(kind, get))
    assert (verdict(found), codes(found)[:2]) == ("not-reproduced", ["beyond-the-record", "stalled"])
    assert f"waits for what had not come then: {slow.id} GET {URL}/slow" in found.findings[0]["message"]


@pytest.mark.parametrize("get", [by_httpx, by_aiohttp])
@pytest.mark.parametrize("kind", ["asgi", "aiohttp"])
def test_what_was_let_go_of_when_the_request_failed_is_not_known(kind: str, get: Get) -> None:
    dump, slow = dump_of(kind)
    slow.error_message, slow.ended_ns = GIVEN_UP, slow.sent_ns + 9000
    found, env = dump.replay(served(kind, get))
    assert (verdict(found), codes(found)[:1]) == ("not-reproduced", ["beyond-the-record"])
    assert "the recorded program had let go of it" in found.findings[0]["message"]
    assert [one.kind for one in env.refusals] == ["unrecorded"]


@pytest.mark.parametrize("kind", ["asgi", "aiohttp"])
def test_one_that_waits_for_what_nothing_brings_has_another_failure(kind: str) -> None:
    dump, slow = dump_of(kind)
    dump.state.exchanges.remove(slow)
    dump.state.failures[0].step = 1
    found, _ = dump.replay(served(kind, lambda path: asyncio.Event().wait() if path == "/slow" else by_httpx(path)))
    assert (verdict(found), codes(found)) == ("different-failure", ["stalled"])
    assert found.failure is not None
    assert found.failure.kind == "stall"
