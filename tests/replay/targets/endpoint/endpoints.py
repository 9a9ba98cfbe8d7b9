"""Endpoints on the loopback: scripts of what one says byte for byte, and one that a function answers for."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tests.scripted_server import Step

PATH = "/v1/completions"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def text(piece: str, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": piece, "finish_reason": finish}]}


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"completion_tokens": tokens}}


def streamed(*events: dict[str, Any], end: str = "whole") -> list[Step]:
    """A chunked stream; ``end`` other than "whole" leaves its last chunk out."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    steps: list[Step] = [head]
    datas = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    if end == "whole":
        datas.append(b"data: [DONE]\n\n")
    steps += [b"%x\r\n%s\r\n" % (len(data), data) for data in datas]
    return [*steps, b"0\r\n\r\n"] if end == "whole" else [*steps, 0.05, end]


FULL = streamed(*[text("x")] * 3, text("x", "length"), usage(4))
"""Four tokens, all that a request of the small dump asks for."""

CUT = streamed(text("x"), text("x", "length"), usage(2))


def error(status: int, body: Any) -> list[Step]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return [
        b"HTTP/1.1 %d No\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(data)),
        data,
    ]


def refusal(message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


@contextmanager
def serving(handler: Handler) -> Iterator[str]:
    """An aiohttp application on the loopback, in a thread of its own: ``handler`` for every path. Gives its URL.

    A handler whose client hangs up is cancelled.
    """
    loop = asyncio.new_event_loop()
    ready: queue.SimpleQueue[int] = queue.SimpleQueue()

    async def serve(ended: asyncio.Event) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ready.put(runner.addresses[0][1])
        await ended.wait()
        await runner.cleanup()

    ended = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(ended)))
    thread.start()
    try:
        yield f"http://127.0.0.1:{ready.get(timeout=10)}"
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
