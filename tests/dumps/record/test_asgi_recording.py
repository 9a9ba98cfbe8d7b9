"""When the recording of an ASGI application begins and ends, and when there is none."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from dumps.record.asgi import record_asgi
from dumps.record.program import recording
from dumps.record.seams import current
from tests.dumps.record.asgi_requests import HEAD, App, Failed, ask
from tests.program_dumps import only_dump

pytestmark = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def lifespan(app: App) -> Any:
    """Runs ``app``'s lifespan as a server would, around the block. Yields what the application told."""
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    told: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.ensure_future(app({"type": "lifespan"}, inbox.get, told.put))
    inbox.put_nowait({"type": "lifespan.startup"})
    await told.get()
    yield
    inbox.put_nowait({"type": "lifespan.shutdown"})
    await told.get()
    await task


async def answer_lifespan(receive: Any, send: Any) -> None:
    for _ in range(2):
        await send({"type": (await receive())["type"] + ".complete"})


async def answering(scope: Any, receive: Any, send: Any) -> None:
    await send(HEAD)
    await send({"type": "http.response.body", "body": b"{}"})


async def test_the_recording_begins_and_ends_with_the_lifespan(served, tmp_path):
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(current.active() is not None)
        if scope["type"] == "lifespan":
            await answer_lifespan(receive, send)

    recorded = served(app)
    for _ in range(2):  # a server may start an application again
        async with lifespan(recorded):
            assert current.active() is not None
            await ask(recorded)
        assert current.active() is None
    assert seen == [False, True, False, True]  # before its startup message, nobody knows whether there will be one


async def test_a_startup_that_fails_makes_a_dump(served, tmp_path):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed"})
        raise Failed("no model")

    inbox: asyncio.Queue[Any] = asyncio.Queue()
    inbox.put_nowait({"type": "lifespan.startup"})
    with pytest.raises(Failed):
        await served(app)({"type": "lifespan"}, inbox.get, asyncio.Queue().put)
    assert only_dump(tmp_path / "dumps").failures[0].message == "no model"
    assert current.active() is None


async def test_in_a_replay_the_application_is_left_as_it_is(tmp_path):
    end = current.begin_replay()
    try:
        assert record_asgi(answering, tmp_path) is answering
    finally:
        end()


async def test_where_somebody_records_already_the_server_goes_on_without(served, tmp_path, caplog):
    with recording(tmp_path / "other"):
        app = served(answering)
        assert len(await ask(app)) == 2
        await ask(app)
    assert caplog.text.count("goes on without a recording") == 1


async def test_options_that_cannot_be_are_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="timeout=0"):
        record_asgi(answering, tmp_path, timeout=0)
    with pytest.raises(ValueError, match="much"):
        record_asgi(answering, tmp_path, level="much")
