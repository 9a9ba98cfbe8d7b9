"""The tools' real services on loopback, each of which can be told to fail in one way."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import Counter
from pathlib import Path

from aiohttp import web

WEATHER = {"city": "Lisbon", "celsius": 21.5, "sky": "clear"}
RATES = [{"to": "USD", "rate": 1.08}, {"to": "GBP", "rate": 0.86}, {"to": "JPY", "rate": 169.2}]
TOKEN_VALID_S = 3600


class Tools:
    """``failure`` is "hang", "malformed", "reset", "clock-jump", or empty for none.

    For "clock-jump" the weather waits until the file ``jumped`` is there: whoever owns the agent's clock makes it.
    """

    def __init__(self, failure: str = "", jumped: Path | None = None) -> None:
        self.failure = failure
        self.jumped = jumped
        self.asked: Counter[str] = Counter()
        self._stop = asyncio.Event()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/token", self.token)
        app.router.add_get("/weather", self.weather)
        app.router.add_get("/rates", self.rates)
        app.on_shutdown.append(self._end)
        return app

    async def _end(self, app: web.Application) -> None:
        self._stop.set()

    async def token(self, request: web.Request) -> web.Response:
        self.asked["token"] += 1
        return web.json_response({"access": "a-token-of-the-day", "valid_s": TOKEN_VALID_S})

    async def weather(self, request: web.Request) -> web.StreamResponse:
        self.asked["weather"] += 1
        if self.failure == "malformed":
            if self.asked["weather"] == 1:
                return web.Response(status=502, text="<html><h1>502 Bad Gateway</h1></html>", content_type="text/html")
            return web.Response(text=json.dumps(WEATHER)[:-12], content_type="application/json")
        if self.failure == "clock-jump":
            assert self.jumped is not None
            self.jumped.with_suffix(".asked").touch()
            while not self.jumped.exists():
                await asyncio.sleep(0.01)
        return web.json_response(WEATHER)

    async def rates(self, request: web.Request) -> web.StreamResponse:
        self.asked["rates"] += 1
        if self.failure == "hang":
            await self._stop.wait()
            return web.Response(status=503)  # to nobody: the agent is gone
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for number, rate in enumerate(RATES):
            line = json.dumps(rate).encode() + b"\n"
            if self.failure == "reset" and number == 2:
                await self._reset(request, line)
                return response
            await response.write(line)
            await asyncio.sleep(0.02)
        await response.write_eof()
        return response

    async def _reset(self, request: web.Request, line: bytes) -> None:
        """Half of a chunk, then a reset."""
        transport = request.transport
        assert transport is not None
        transport.write(f"{len(line):x}\r\n".encode() + line[: len(line) // 2])
        await asyncio.sleep(0.05)
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
