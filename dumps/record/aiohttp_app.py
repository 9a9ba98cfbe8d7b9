"""Records an aiohttp server application.

    from dumps.record.aiohttp_app import record_aiohttp

    record_aiohttp(app, "dumps/", level="full")

What is recorded and when a dump is made is as in `dumps.record.asgi`; what fails is an exception that leaves the
handler, also an `HTTPException` with a status of 500 or more. One below that is an answer. The recording begins with
``on_startup`` and ends with ``on_cleanup``.

Bodies are as the handler reads them, and as it writes them: without their content encoding. Files that the system
sends by itself (`web.FileResponse`) and web sockets after their handshake are not seen.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Unpack

from aiohttp import http_writer, streams, web, web_protocol

from dumps.record.program import RecordingOptions
from dumps.record.seams import current
from dumps.record.seams.patches import Patches
from dumps.record.served import Handling, Requests, Served

_Method = Callable[..., Any]


def record_aiohttp(
    app: web.Application,
    folder: str | os.PathLike[str],
    *,
    timeout: float | None = None,
    **options: Unpack[RecordingOptions],
) -> web.Application:
    """Record ``app`` into ``folder`` once it runs, and return it; in a replay nothing is done to it.

    Options as in `dumps.record.program.recording`, but ``timeout`` is for each request. Raises ValueError for a level
    or a timeout that there cannot be, and RuntimeError for an application that runs already.
    """
    if not current.replaying():
        served = Served(folder, kind="aiohttp", objects=(app,), timeout=timeout, **options)
        Follower(served).put_into(app)
    return app


class Follower:
    """Tells ``served``, a recording or a replay, of each request that an application handles."""

    def __init__(self, served: Requests) -> None:
        self._served = served
        self._patches = Patches()
        self._follows = False  # aiohttp tells when a response has been sent
        self._by_request: dict[int, Handling] = {}  # these three by id of the object
        self._by_reader: dict[int, Handling] = {}
        self._by_writer: dict[int, Handling] = {}

    def put_into(self, app: web.Application) -> None:
        app.middlewares.insert(0, self._middleware)
        app.on_startup.insert(0, self._start)
        app.on_cleanup.append(self._stop)

    async def _start(self, app: web.Application) -> None:
        self._served.start()
        if not self._served.follows:
            return
        writer, reader = http_writer.StreamWriter, streams.StreamReader
        self._follows = self._patches.wrap(web_protocol.RequestHandler, "finish_response", self._finish_response)
        self._patches.wrap_all(
            [
                (reader, "feed_data", self._feed_data),
                (reader, "feed_eof", self._feed_eof),
                (writer, "write_headers", self._write_headers),
                (writer, "write", self._write),
                (writer, "write_eof", self._write),
            ]
        )

    async def _stop(self, app: web.Application) -> None:
        self._patches.undo()
        self._served.stop()

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        handling = self._served.handle(decoded=True) if self._served.follows else None
        if handling is None:
            response: web.StreamResponse = await handler(request)
            return response
        self._begin(request, handling)
        over = not self._follows
        try:
            try:
                with handling:
                    answer = await self._answer(request, handler)
            except asyncio.CancelledError:
                over = True
                raise
            if isinstance(answer, web.HTTPException):
                raise answer
            return answer
        finally:
            if over:
                self._end(request)

    async def _answer(self, request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        """What the handler returns, or raises as an answer."""
        try:
            response: web.StreamResponse = await handler(request)
            return response
        except web.HTTPException as answer:
            if answer.status >= 500:
                raise
            return answer

    def _begin(self, request: web.Request, handling: Handling) -> None:
        path = request.raw_path
        url = path if "://" in path.partition("?")[0] else f"{request.scheme}://{request.host}{path}"
        handling.tap.asked(request.method, url, list(request.headers.items()))
        self._by_request[id(request)] = handling
        self._by_writer[id(request._payload_writer)] = handling
        reader = request.content
        for piece in list(getattr(reader, "_buffer", ())):  # came together with the head
            handling.tap.received(bytes(piece))
        if reader.is_eof():
            handling.tap.received(b"", last=True)
        else:
            self._by_reader[id(reader)] = handling

    def _end(self, request: web.BaseRequest, *, complete: bool = True) -> None:
        handling = self._by_request.pop(id(request), None)
        if handling is None:
            return
        self._by_writer.pop(id(request._payload_writer), None)
        self._by_reader.pop(id(request.content), None)
        if not complete:
            handling.client_gone()
        handling.ended()

    def _finish_response(self, finish_response: _Method) -> _Method:
        async def wrapper(protocol: Any, request: web.BaseRequest, *args: Any, **kwargs: Any) -> Any:
            reset = True
            try:
                result = await finish_response(protocol, request, *args, **kwargs)
                reset = bool(result[1])
                return result
            finally:
                self._end(request, complete=not reset)

        return wrapper

    def _feed_data(self, feed_data: _Method) -> _Method:
        def wrapper(reader: Any, data: bytes, *args: Any, **kwargs: Any) -> Any:
            if (handling := self._by_reader.get(id(reader))) is not None:
                handling.tap.received(bytes(data))
            return feed_data(reader, data, *args, **kwargs)

        return wrapper

    def _feed_eof(self, feed_eof: _Method) -> _Method:
        def wrapper(reader: Any) -> Any:
            if (handling := self._by_reader.pop(id(reader), None)) is not None:
                handling.tap.received(b"", last=True)
            return feed_eof(reader)

        return wrapper

    def _write_headers(self, write_headers: _Method) -> _Method:
        async def wrapper(writer: Any, status_line: str, headers: Any) -> Any:
            if (handling := self._by_writer.get(id(writer))) is not None:
                status = status_line.split(" ", 2)[1:2]
                handling.tap.responded(int(status[0]) if status and status[0].isdigit() else 0, list(headers.items()))
            return await write_headers(writer, status_line, headers)

        return wrapper

    def _write(self, write: _Method) -> _Method:
        async def wrapper(writer: Any, chunk: Any = b"", *args: Any, **kwargs: Any) -> Any:
            if (handling := self._by_writer.get(id(writer))) is not None:
                handling.tap.sent(bytes(chunk))
            return await write(writer, chunk, *args, **kwargs)

        return wrapper
