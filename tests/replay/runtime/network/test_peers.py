"""What real clients see from a real server, and then from its recording with the server gone: the same."""

from __future__ import annotations

import asyncio
import functools
import zlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.loopback import PAUSE, Loopback, Script, captured
from tests.seen_by import ASYNC, READ_TIMEOUT, SYNC, Seen

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-One: 1\r\nX-One: 2\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
PACKED = zlib.compress(b"hello" * 99)

SCRIPTS = {
    "with a length": Script([HEAD + b"Content-Length: 5\r\n\r\nhello"]),
    "cut in the head": Script([HEAD[:20], HEAD[20:] + b"Content-Length: 5\r\n\r\nhe", b"llo"]),
    "chunked": Script([CHUNKED + b"3\r\none\r\n", b"3\r\ntwo\r\n5\r\nthree\r\n", b"0\r\n\r\n"]),
    "chunks cut anywhere": Script([CHUNKED + b"8\r", b"\none", b"two", b"ab\r\n2\r\nxy\r", b"\n0\r\n\r\n"]),
    "with trailers": Script([CHUNKED + b"3\r\none\r\n", b"0\r\nX-Late: yes\r\n\r\n"]),
    "compressed": Script(
        [HEAD + b"Content-Encoding: deflate\r\nContent-Length: %d\r\n\r\n" % len(PACKED), PACKED[:9], PACKED[9:]]
    ),
    "a bad gateway": Script([b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad"]),
    "no content": Script([b"HTTP/1.1 204 No Content\r\n\r\n"]),
    "until it closes": Script([HEAD + b"\r\nhello", b" world"], "close"),
    "closes as announced": Script([HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok"], "close"),
    "HTTP/1.0": Script([b"HTTP/1.0 200 OK\r\n\r\nold"], "close"),
    "closed without a word": Script([], "close"),
    "closed in the head": Script([HEAD], "close"),
    "closed in the body": Script([HEAD + b"Content-Length: 50\r\n\r\nhello"], "close"),
    "closed in a chunk": Script([CHUNKED + b"3\r\none\r\n", b"9\r\nha"], "close"),
    "reset without a word": Script([], "reset"),
    "reset in the body": Script([HEAD + b"Content-Length: 50\r\n\r\nhello"], "reset"),
    "reset in a chunk": Script([CHUNKED + b"3\r\none\r\n", b"9\r\nha"], "reset"),
    "silent without a word": Script([], "silence"),
    "silent in the body": Script([HEAD + b"Content-Length: 50\r\n\r\nhello"], "silence"),
    "silent in a chunk": Script([CHUNKED + b"3\r\none\r\n", b"9\r\nha"], "silence"),
    "no HTTP": Script([b"HTTP/1.1 abc\r\n\r\n"], "close"),
    "a bad chunk": Script([CHUNKED + b"3\r\none\r\n", b"zz\r\n\r\n"], "close"),
    "no JSON at all": Script([b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\xff{[\x00"]),
}
Make = Callable[..., Any]


async def bounded(fetch: Callable[[str], Awaitable[Seen]], url: str) -> Seen:
    """aiohttp 3.14 waits for ever on some heads that it cannot read, whatever its timeouts are."""
    try:
        async with asyncio.timeout(1.5):
            return await fetch(url)
    except TimeoutError:
        return Seen(error=("hangs", ""))


def live(name: str, url: str) -> Seen:
    return asyncio.run(bounded(ASYNC[name], url)) if name in ASYNC else SYNC[name](url)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_client_sees_from_the_recording_what_it_saw_from_the_server(script: Script, replay: Make) -> None:
    try:
        compare(script, replay, pause=PAUSE)
    except AssertionError:
        compare(script, replay, pause=8 * PAUSE)  # a busy machine may have joined two pieces


def compare(script: Script, replay: Make, *, pause: float) -> None:
    with Loopback(script, pause=pause) as server, ThreadPoolExecutor() as pool:
        exchange = captured(f"{server.url}/path", script=script)
        urls = {name: f"{server.url}/path?client={at}" for at, name in enumerate((*ASYNC, *SYNC))}
        seen_live = dict(zip(urls, pool.map(live, urls, urls.values()), strict=True))
        asked = {name: sum(f"client={at} ".encode() in one for one in server.requests) for at, name in enumerate(urls)}
    assert [chunk.data for chunk in exchange.chunks] == list(script.pieces)
    for name, url in urls.items():
        exchange.url = url
        world = replay(*[exchange] * asked[name])  # aiohttp asks again if it gets no answer
        if name in ASYNC:
            seen = world.run(functools.partial(bounded, ASYNC[name], url))
        else:
            seen = world.call(functools.partial(SYNC[name], url))
        assert seen == seen_live[name], name
        assert world.kinds() == [], name
        recorded_s = (sum(chunk.delay_ns for chunk in exchange.chunks) + exchange.connect_ns) / 1e9 * asked[name]
        assert world.passed_s >= recorded_s, name
        if script.end == "silence":
            assert world.passed_s == pytest.approx(recorded_s + READ_TIMEOUT, abs=0.1), name


def test_scripts_cover_every_way_to_end() -> None:
    assert {script.end for script in SCRIPTS.values()} == {"keep", "close", "reset", "silence"}
