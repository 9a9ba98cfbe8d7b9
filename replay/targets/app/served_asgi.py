"""An ASGI application, called as its server called it when it was recorded.

Of the connection only the request is recorded. The rest is what uvicorn tells by default: HTTP/1.1, a client on
loopback, no root path, version 2.3 of the HTTP part of ASGI.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from dumps.record.asgi import FollowedApp, Message
from dumps.record.served import Requests
from dumps.schema import state_pb2 as pb
from replay.errors import UsageError
from replay.runtime.env import Env
from replay.runtime.errors import UnrecordedRequest
from replay.targets.app.arrival import Arrival
from replay.targets.app.waits import until

_ASGI = {"version": "3.0", "spec_version": "2.3"}
_CLIENT = ("127.0.0.1", 0)
_PORTS = {"http": 80, "https": 443}


class UnrecordedBody(UnrecordedRequest):
    """The application reads more of a request's body than it did when it was recorded. ASGI hands a body out as it is
    asked for, so nobody knows what would have come."""

    remedy = "Read what was read, or record again."


def asgi_server(found: Any, *, cancels: bool) -> Callable[[Requests, Env], Awaitable[AsgiServer]]:
    """What serves ``found``, an application or a function without arguments that makes one.

    ``cancels`` says that the server told the handler to stop when the client was gone. Raises `UsageError`.
    """
    if not _takes(found, 3) and not _takes(found, 0):
        raise UsageError(
            "target: the dump is of an ASGI application, and what you name is none",
            remedy="name the application that was recorded, or a function without arguments that makes it",
        )

    async def make(witness: Requests, env: Env) -> AsgiServer:
        app = found
        if not _takes(found, 3):
            app = found()
            app = await app if inspect.isawaitable(app) else app
        return AsgiServer(FollowedApp(app, witness), env, cancels=cancels)

    return make


def _takes(found: Any, number: int) -> bool:
    try:
        inspect.signature(found).bind(*range(number))
    except TypeError:
        return False
    except ValueError:  # a builtin tells nothing of its arguments
        return number == 3
    return True


class AsgiServer:
    def __init__(self, app: FollowedApp, env: Env, *, cancels: bool) -> None:
        self._app, self._env, self._cancels = app, env, cancels
        self._state: dict[str, Any] = {}
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._told: asyncio.Queue[Message | None] = asyncio.Queue()
        self._lifespan: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """As servers do it: an application that fails before it has said anything knows no lifespan."""
        scope = {"type": "lifespan", "asgi": {**_ASGI, "spec_version": "2.0"}, "state": self._state}
        self._lifespan = asyncio.create_task(self._live(scope))
        await self._tell("lifespan.startup")

    async def stop(self) -> None:
        if self._lifespan is not None and not self._lifespan.done():
            await self._tell("lifespan.shutdown")
            self._lifespan.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._lifespan

    async def ask(self, exchange: pb.Exchange, arrival: Arrival) -> None:
        request = _Request(exchange, arrival, self._env)
        scope = _scope(exchange) | {"state": self._state.copy()}
        call = asyncio.create_task(self._app(scope, request.receive, request.send), name=exchange.task or None)
        leaving = asyncio.create_task(self._cancel(call, arrival))
        try:
            await asyncio.wait([call])
        finally:
            call.cancel()
            leaving.cancel()
            await asyncio.gather(call, leaving, return_exceptions=True)  # the witness has seen what it failed with

    async def _live(self, scope: dict[str, Any]) -> None:
        try:
            await self._app(scope, self._inbox.get, self._told.put)
        finally:
            self._told.put_nowait(None)

    async def _tell(self, what: str) -> None:
        self._inbox.put_nowait({"type": what})
        answer = await self._told.get()
        if answer is not None and answer["type"] == f"{what}.failed":
            assert self._lifespan is not None
            await self._lifespan  # raises what it failed with, if that is known
            raise RuntimeError(f"the application's {what} failed: {answer.get('message', '')}")
        if answer is None and self._lifespan is not None:
            await asyncio.wait([self._lifespan])
            self._lifespan.exception()

    async def _cancel(self, call: asyncio.Task[None], arrival: Arrival) -> None:
        if self._cancels and arrival.inferred and arrival.gone_ns is not None:
            await until(arrival.gone_ns)
            call.cancel()


class _Request:
    """What a server does for one request: hands out its body, takes its response."""

    def __init__(self, exchange: pb.Exchange, arrival: Arrival, env: Env) -> None:
        self._exchange, self._arrival, self._env = exchange, arrival, env
        self._pieces = list(arrival.pieces)
        self._received = False
        self._complete = asyncio.Event()

    async def receive(self) -> Message:
        if self._complete.is_set():
            return {"type": "http.disconnect"}
        if self._pieces:
            piece = self._pieces.pop(0)
            await until(piece.due_ns)
            # The end came with the last piece, or in a message of its own.
            self._received = not self._pieces and self._arrival.complete_ns == piece.due_ns
            return {"type": "http.request", "body": piece.data, "more_body": not self._received}
        complete, gone = self._arrival.complete_ns, self._arrival.gone_ns
        if not self._received and complete is not None:
            await until(complete)
            self._received = True
            return {"type": "http.request", "body": b"", "more_body": False}
        in_flight = not self._exchange.HasField("ended_ns") and not self._arrival.failing
        if gone is None and not self._received and not in_flight:
            raise self._env.network.refuse(self._unrecorded())
        await self._disconnected(gone)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._complete.set()

    async def _disconnected(self, gone_ns: int | None) -> None:
        with contextlib.suppress(TimeoutError):
            now = asyncio.get_running_loop().time()
            await asyncio.wait_for(self._complete.wait(), None if gone_ns is None else max(0.0, gone_ns / 1e9 - now))

    def _unrecorded(self) -> UnrecordedBody:
        line = f"{self._exchange.method} {self._exchange.url}"
        error = UnrecordedBody(f"the body of the request {line} was not read to its end when it was recorded")
        error.request = f"the rest of the body of {line}"
        return error


def _scope(exchange: pb.Exchange) -> dict[str, Any]:
    parts = urlsplit(exchange.url)
    try:
        port = parts.port or _PORTS.get(parts.scheme, 80)
    except ValueError:
        port = 80
    return {
        "type": "http",
        "asgi": dict(_ASGI),
        "http_version": "1.1",
        "method": exchange.method,
        "scheme": parts.scheme or "http",
        "path": unquote(parts.path),
        "raw_path": parts.path.encode("ascii", "replace"),
        "query_string": parts.query.encode("latin-1", "replace"),
        "root_path": "",
        "headers": [
            (header.key.lower().encode("latin-1", "replace"), header.value.encode("latin-1", "replace"))
            for header in exchange.request_headers
        ],
        "client": _CLIENT,
        "server": (parts.hostname or "localhost", port),
        "extensions": {},
    }
