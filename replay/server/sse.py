"""Server-sent events: `text/event-stream` of the HTML standard, one JSON document as the data of each event."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from replay import strict_json

CONTENT_TYPE = "text/event-stream"
KEEP_ALIVE_S = 10.0


def wanted(request: web.Request) -> bool:
    """Whether the client asked for a stream."""
    accepted = ",".join(request.headers.getall("Accept", []))
    return any(part.partition(";")[0].strip().lower() == CONTENT_TYPE for part in accepted.split(","))


def encode(event: str, data: object) -> bytes:
    """One event. The JSON is ASCII on one line, so no text in it can end the event early."""
    return f"event: {event}\ndata: ".encode() + strict_json.dumps(data) + b"\n\n"


class Backlog:
    """Events on their way to a client that may be slow. Progress that was overtaken is dropped, nothing else is."""

    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque()
        self._ready = asyncio.Event()

    def put(self, event: Mapping[str, Any]) -> None:
        last = self._events[-1] if self._events else None
        if last is not None and last["event"] == event["event"] == "progress" and last["stage"] == event["stage"]:
            self._events.pop()
        self._events.append(dict(event))
        self._ready.set()

    def take(self) -> list[dict[str, Any]]:
        """All events that wait, in order."""
        events = list(self._events)
        self._events.clear()
        self._ready.clear()
        return events

    async def wait(self) -> None:
        """Return when there is an event, at the latest after KEEP_ALIVE_S."""
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                await self._ready.wait()
        except TimeoutError:
            return


async def stream(response: web.StreamResponse, backlog: Backlog, work: asyncio.Task[Any]) -> None:
    """Write events until ``work`` is done and its events are out. What ``work`` came to is the caller's to send."""
    work.add_done_callback(lambda _: backlog.put({"event": "done"}))
    while True:
        await backlog.wait()
        events = backlog.take()
        if not events:
            await response.write(b": still here\n\n")
        for event in events:
            name = event.pop("event")
            if name == "done":
                return
            await response.write(encode(name, event))
