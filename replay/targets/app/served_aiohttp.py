"""An aiohttp application behind aiohttp's own server protocol, which is fed the recorded requests as bytes.

Each request has a connection of its own, without a socket. Bodies were recorded without their content encoding, so
nothing is decompressed, and a request that had one gets the length of what is fed.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from dumps.record.aiohttp_app import Follower
from dumps.record.served import Requests
from dumps.schema import state_pb2 as pb
from replay.errors import UsageError
from replay.runtime.env import Env
from replay.targets.app.arrival import Arrival, headers, is_chunked
from replay.targets.app.waits import until

SHUTDOWN_S = 0.1  # for requests that go on when the failing one is over; they are cancelled then
TOGETHER_NS = 1_000_000
"""A piece of the body that is there so soon came with the head, in one read."""

_BREAKS = re.compile(r"[\r\n\0]+")


def aiohttp_server(found: Any, *, cancels: bool) -> Callable[[Requests, Env], Awaitable[AiohttpServer]]:
    """What serves ``found``, a `web.Application` or a function, plain or async, without arguments that makes one.

    ``cancels`` says that the server told the handler to stop when the client was gone. Raises `UsageError`.
    """
    remedy = "name the application that was recorded, or a function without arguments that makes it"
    if not isinstance(found, web.Application):
        try:
            inspect.signature(found).bind()
        except (TypeError, ValueError) as error:
            message = "target: the dump is of an aiohttp application, and what you name is none"
            raise UsageError(message, remedy=remedy) from error

    async def make(witness: Requests, env: Env) -> AiohttpServer:
        app = found
        if not isinstance(app, web.Application):
            app = found()
            app = await app if inspect.isawaitable(app) else app
        if not isinstance(app, web.Application):
            raise UsageError(f"target: what you name makes a {type(app).__name__}, no web.Application", remedy=remedy)
        Follower(witness).put_into(app)
        return AiohttpServer(app, cancels=cancels)

    return make


class AiohttpServer:
    def __init__(self, app: web.Application, *, cancels: bool) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            handler_cancellation=cancels,
            shutdown_timeout=SHUTDOWN_S,
        )

    async def start(self) -> None:
        await self._runner.setup()

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def ask(self, exchange: pb.Exchange, arrival: Arrival) -> None:
        assert self._runner.server is not None
        protocol = self._runner.server()
        wire = _Wire(protocol)
        protocol.connection_made(wire)
        wire.feed(_head(exchange, arrival))
        chunked, began = is_chunked(exchange), exchange.started_ns
        for piece in arrival.pieces:
            if piece.due_ns - began > TOGETHER_NS:
                await until(piece.due_ns)
            wire.feed(b"%x\r\n%b\r\n" % (len(piece.data), piece.data) if chunked else piece.data)
        if chunked and arrival.complete_ns is not None:
            if arrival.complete_ns - began > TOGETHER_NS:
                await until(arrival.complete_ns)
            wire.feed(b"0\r\n\r\n")
        if arrival.gone_ns is not None:
            await until(arrival.gone_ns)
            wire.lose(_how_it_was_lost(exchange))
        await wire.closed.wait()


class _Wire(asyncio.Transport):
    """A connection that goes nowhere: what is written to it is the witness's affair, which saw it before."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__({"peername": ("127.0.0.1", 0), "sockname": ("127.0.0.1", 0)})
        self.closed = asyncio.Event()
        self._protocol = protocol
        self._closing = self._paused = False
        self._held: deque[bytes] = deque()

    def feed(self, data: bytes) -> None:
        """Bytes of the client; they wait while the protocol reads none."""
        self._held.append(data)
        while self._held and not self._paused and not self._closing:
            self._protocol.data_received(self._held.popleft())

    def lose(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._lost(error)

    def _lost(self, error: Exception | None) -> None:
        self.closed.set()
        self._protocol.connection_lost(error)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._lost, None)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        while self._held and not self._paused and not self._closing:
            self._protocol.data_received(self._held.popleft())

    def is_reading(self) -> bool:
        return not self._paused

    def write(self, data: Any) -> None:
        pass

    def write_eof(self) -> None:
        pass

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol


def _head(exchange: pb.Exchange, arrival: Arrival) -> bytes:
    _, _, rest = exchange.url.partition("://")
    slash = rest.find("/")
    lines = [f"{exchange.method} {rest[slash:] if slash >= 0 else '/'} HTTP/1.1"]
    encoded = bool(headers(exchange, "content-encoding"))
    named = set()
    for header in exchange.request_headers:
        name, value = header.key, header.value
        named.add(name.lower())
        if encoded and name.lower() == "content-length" and arrival.complete_ns is not None:
            value = str(len(exchange.request_body))
        lines.append(f"{name}: {value}")
    if arrival.pieces and not named & {"content-length", "transfer-encoding"}:
        lines.append(f"Content-Length: {len(exchange.request_body)}")
    # A dump is not trusted: a line break in one of its values must not make a second request of it.
    head = "\r\n".join(_BREAKS.sub(" ", line) for line in lines)
    return head.encode("utf-8", "surrogateescape") + b"\r\n\r\n"


def _how_it_was_lost(exchange: pb.Exchange) -> Exception | None:
    """What the system said of the lost connection: nothing, where the client closed it in good order."""
    if f"[Errno {errno.ECONNRESET}]" in exchange.error_message:
        return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    return None
