"""Requests to ASGI applications, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

App = Callable[[Any, Any, Any], Awaitable[None]]
HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}


class Failed(Exception):
    """What the applications of tests raise."""


async def ask(app: App, *pieces: bytes, path: str = "/chat", after: float = 0.0) -> list[dict[str, Any]]:
    """One request; what was sent for it. ``after`` its pieces, and so many seconds, the client goes away."""
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        await asyncio.sleep(after)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "https",
        "path": path,
        "query_string": b"api_key=sk-very-secret&n=1",
        "headers": [
            (b"host", b"agent.test"),
            (b"authorization", b"Bearer very-secret"),
            (b"content-type", b"application/json"),
        ],
    }
    await app(scope, receive, send)
    return sent
