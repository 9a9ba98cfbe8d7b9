"""Records an ASGI application, whatever server runs it.

    from dumps.record.asgi import record_asgi

    app = record_asgi(app, "dumps/", level="full")

Each request becomes an exchange of direction "in", and what the application asks of the world for it one of direction
"out"; nothing is written until something fails. A dump is made of an exception that leaves the application (Starlette
and FastAPI let it pass after they have answered with 500), of a client that goes away before it has the response, of a
cancelled request, of a request that takes longer than ``timeout`` seconds, and on SIGUSR2. A 500 that the application
made itself is an answer. No failure, by exception type and frame, has more than one dump a minute, or MAX_ALIKE in all.

The recording begins and ends with the application's lifespan; where its server has none, it begins with the first
request. Web sockets are not recorded. The event loop waits while a dump is made.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Unpack
from urllib.parse import quote

from dumps.record.program import RecordingOptions
from dumps.record.seams import current
from dumps.record.served import Handling, Requests, Served

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]


def record_asgi(
    app: App, folder: str | os.PathLike[str], *, timeout: float | None = None, **options: Unpack[RecordingOptions]
) -> App:
    """``app``, recorded into ``folder``; in a replay ``app`` itself.

    Options as in `dumps.record.program.recording`, but ``timeout`` is for each request. Raises ValueError for a level
    or a timeout that there cannot be.
    """
    if current.replaying():
        return app
    objects: list[Any] = [app]
    served = Served(folder, kind="asgi", objects=objects, timeout=timeout, **options)
    recorded = FollowedApp(app, served)
    objects.insert(0, recorded)  # what the module calls its application is rather this one
    return recorded


class FollowedApp:
    """``app``, telling ``served`` of each request: a recording, or a replay."""

    def __init__(self, app: App, served: Requests) -> None:
        self._app = app
        self._served = served

    def __getattr__(self, name: str) -> Any:
        """What else one asks of an application: ``app.state``, ``app.router``."""
        if name == "_app":  # before __init__, as copy and pickle do it
            raise AttributeError(name)
        return getattr(self._app, name)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        handling = self._served.handle() if scope["type"] == "http" else None
        if handling is None:
            await self._app(scope, receive, send)
            return
        handling.tap.asked(*_head(scope))
        request = _Request(handling, receive, send)
        try:
            with handling:
                await self._app(scope, request.receive, request.send)
        finally:
            handling.ended()

    async def _lifespan(self, scope: Any, receive: Receive, send: Send) -> None:
        refused = False

        async def starting() -> Message:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._served.start()
            return message

        async def telling(message: Message) -> None:
            nonlocal refused
            refused = refused or message["type"] == "lifespan.startup.failed"
            if message["type"] == "lifespan.shutdown.complete":
                self._served.stop()
            elif message["type"] == "lifespan.shutdown.failed":  # also where it is cancelled, together with requests
                self._served.stop_with_the_last()
            await send(message)

        try:
            await self._app(scope, starting, telling)
        except BaseException as error:
            # One that has told the server nothing knows no lifespan; its requests are recorded all the same.
            if refused:
                self._served.failed_to_start(error)
            raise
        finally:
            if refused:
                self._served.stop()


class _Request:
    """Stands between the application and its server for one request."""

    def __init__(self, handling: Handling, receive: Receive, send: Send) -> None:
        self._handling, self._receive, self._send = handling, receive, send
        self._complete = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._handling.tap.received(message.get("body", b""), last=not message.get("more_body", False))
        elif message["type"] == "http.disconnect" and not self._complete:
            self._handling.client_gone()
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._handling.tap.responded(message["status"], _text(message.get("headers", ())))
        elif message["type"] == "http.response.body":
            self._handling.tap.sent(message.get("body", b""))
            if not message.get("more_body", False):
                self._complete = True
                self._handling.tap.ended()
        await self._send(message)


def _head(scope: Any) -> tuple[str, str, list[tuple[str, str]]]:
    """Method, absolute URL and headers of a request."""
    headers = _text(scope.get("headers", ()))
    host = next((value for name, value in headers if name.lower() == "host"), "")
    if not host:
        name, port = scope.get("server") or ("localhost", None)
        host = f"{name}:{port}" if port else str(name)
    path = scope["raw_path"].decode("latin-1") if scope.get("raw_path") else quote(scope["path"])
    query = scope.get("query_string", b"").decode("latin-1")
    url = f"{scope.get('scheme', 'http')}://{host}{path}" + (f"?{query}" if query else "")
    return scope["method"], url, headers


def _text(headers: Any) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
