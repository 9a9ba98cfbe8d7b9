"""Clients that go away or talk nonsense leave a line in the log at most, never a traceback."""

from __future__ import annotations

import asyncio
import io
import logging

import pytest
from aiohttp import web

from replay.http_log import make_http_logger

LONG = b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + b"e" * 9000 + b"\r\n\r\n"
GONE = b"GET /gone HTTP/1.1\r\nHost: x\r\n\r\n"


async def hang_up(request: web.Request) -> web.Response:
    raise ConnectionResetError("Cannot write to closing transport")


def logged(request: bytes, level: int) -> str:
    """What is logged when ``request`` has been answered."""
    parent = logging.getLogger("tests.http-log")
    stream = io.StringIO()
    parent.handlers, parent.propagate = [logging.StreamHandler(stream)], False
    parent.setLevel(level)

    async def ask() -> None:
        app = web.Application()
        app.router.add_get("/gone", hang_up)
        runner = web.AppRunner(app, access_log=None, logger=make_http_logger(parent))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        writer.write(request)
        await asyncio.wait_for(reader.read(100), 10)
        writer.close()
        await runner.cleanup()

    asyncio.run(ask())
    return stream.getvalue()


@pytest.mark.parametrize("level", [logging.DEBUG, logging.WARNING])
@pytest.mark.parametrize("request_bytes", [LONG, GONE], ids=["long", "gone"])
def test_no_traceback(request_bytes, level):
    text = logged(request_bytes, level)
    assert "Traceback" not in text
    lines = [line for line in text.splitlines() if "handling request" in line]
    assert len(lines) == (0 if request_bytes is GONE and level > logging.DEBUG else 1), text
    if request_bytes is LONG:
        assert "LineTooLong" in lines[0]
