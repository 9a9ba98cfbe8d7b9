"""A recorded ASGI application: what its dumps say, and that its server and clients notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from dumps.record.asgi import record_asgi
from dumps.record.program import MAX_ALIKE
from dumps.record.seams import current
from dumps.record.seams.context import frame, message
from dumps.record.seams.log import LogLimits
from dumps.record.seams.tools import tool
from tests.dumps.record.asgi_requests import HEAD, Failed, ask
from tests.program_dumps import dumps_in, only_dump

pytestmark = pytest.mark.asyncio


@tool
async def look_up(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "found"


async def streaming(scope: Any, receive: Any, send: Any) -> None:
    """Reads the whole request, sends half an answer, fails."""
    while (await receive()).get("more_body"):
        pass
    with frame("turn", {"n": 1}, message_id="m1"):
        message("user", "hello", "m2")
        await look_up(0)
        await send(HEAD)
        await send({"type": "http.response.body", "body": b'{"half": ', "more_body": True})
        raise Failed("no more")


async def test_an_exception_that_leaves_the_application_makes_a_dump(served, tmp_path):
    app = served(streaming)
    with pytest.raises(Failed, match="no more"):
        await ask(app, b'{"password": "hun', b'ter2", "q": 1}')

    state = only_dump(tmp_path / "dumps")
    assert state.manifest.reason == "exception"
    assert (state.program.kind, state.program.started_ns > 0) == ("asgi", True)
    (exchange,) = state.exchanges
    assert (exchange.direction, exchange.framing, exchange.method) == ("in", "body", "POST")
    assert exchange.url == "https://agent.test/chat?api_key=REMOVED&n=1"
    assert [(h.key, h.value) for h in exchange.request_headers][:2] == [
        ("host", "agent.test"),
        ("authorization", "Bearer REMOVED"),
    ]
    assert exchange.request_body == b'{"password": "xxxxxxx", "q": 1}'
    assert [chunk.size for chunk in exchange.request_chunks] == [17, 14]
    assert exchange.status == 200
    assert [(chunk.data, chunk.size) for chunk in exchange.chunks] == [(b'{"half": ', 9)]
    assert [(h.key, h.value) for h in exchange.response_headers] == [("content-type", "application/json")]
    assert exchange.error_message == "Failed: no more"

    (failure,) = state.failures
    assert (failure.kind, failure.exchange, failure.step) == ("exception", exchange.id, 1)
    assert failure.exception_type.endswith("Failed")
    assert failure.frame.endswith("test_asgi.py:streaming")
    (call,) = state.tool_calls
    assert (call.name, call.status, call.within) == ("look_up", "finished", exchange.id)
    assert [(frame.kind, frame.last_message_id) for frame in state.context_stack] == [("request", ""), ("turn", "m2")]
    (snapshot,) = (tmp_path / "dumps").glob("context-snapshot-*.json")
    assert "hello" in snapshot.read_text()


async def test_at_level_shape_there_is_no_text(served, tmp_path):
    with pytest.raises(Failed):
        await ask(served(streaming, level="shape"), b'{"q": "what I asked"}')
    (exchange,) = only_dump(tmp_path / "dumps").exchanges
    assert exchange.url == "https://agent.test/chat"
    assert exchange.request_body == exchange.chunks[0].data == b""
    assert (exchange.request_chunks[0].size, exchange.chunks[0].size) == (21, 9)


async def test_an_answer_with_500_that_the_application_made_is_no_failure(served, tmp_path):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(HEAD | {"status": 500})
        await send({"type": "http.response.body", "body": b"sorry"})

    assert [one["type"] for one in await ask(served(app))] == ["http.response.start", "http.response.body"]
    assert not (tmp_path / "dumps").exists()


async def waiting(scope: Any, receive: Any, send: Any) -> None:
    """Answers after its client has gone."""
    while (await receive())["type"] == "http.request":
        pass
    raise Failed("nobody there")


async def test_a_client_that_goes_away_makes_one_dump_and_what_follows_none(served, tmp_path):
    with pytest.raises(Failed):
        await ask(served(waiting))
    state = only_dump(tmp_path / "dumps")
    (failure,), (exchange,) = state.failures, state.exchanges
    assert (failure.kind, failure.invariant, failure.exception_type) == ("exception", "client-gone", "")
    assert failure.exchange == exchange.id
    assert (exchange.error, exchange.status) == ("closed", 0)
    assert failure.frame.endswith("test_asgi.py:waiting")


async def test_a_client_that_goes_when_it_has_everything_is_no_failure(served, tmp_path):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(HEAD)
        await send({"type": "http.response.body", "body": b"{}"})
        await receive()
        await receive()

    await ask(served(app))
    assert not (tmp_path / "dumps").exists()


async def sleeping(scope: Any, receive: Any, send: Any) -> None:
    await look_up(0.3)
    await send(HEAD)
    await send({"type": "http.response.body", "body": b"{}"})


async def test_a_cancelled_request_makes_a_dump(served, tmp_path):
    task = asyncio.create_task(ask(served(sleeping)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (failure,) = only_dump(tmp_path / "dumps").failures
    assert failure.exception_type == "asyncio.exceptions.CancelledError"
    assert failure.frame.endswith("test_asgi.py:look_up")


async def test_a_request_that_takes_too_long_makes_a_dump_and_goes_on(served, tmp_path):
    app = served(sleeping, timeout=0.1)
    sent = await ask(app)
    assert sent[-1]["body"] == b"{}"
    state = only_dump(tmp_path / "dumps")
    (failure,), (call,) = state.failures, state.tool_calls
    assert (failure.kind, failure.invariant, failure.step) == ("timeout", "request", 1)
    assert failure.frame.endswith("test_asgi.py:look_up")
    assert (call.status, call.within, failure.exchange) == ("pending", state.exchanges[0].id, state.exchanges[0].id)
    assert not state.exchanges[0].HasField("ended_ns")
    assert [thread.name for thread in state.threads if thread.current] == ["MainThread"]


async def test_the_context_is_that_of_the_request_that_takes_too_long(served, tmp_path):
    async def waits_for_its_dump(scope: Any, receive: Any, send: Any) -> None:
        while not (tmp_path / "dumps").exists():
            await look_up(0.3)
        await sleeping(scope, receive, send)

    app = served(waits_for_its_dump, timeout=0.1)
    await asyncio.gather(ask(app, path="/first"), ask(app, path="/second"))
    state = only_dump(tmp_path / "dumps")  # the second one's failure is the same
    assert state.failures[0].exchange == state.exchanges[0].id
    assert "/first" in state.context_stack[0].payload_json


async def test_one_that_is_in_time_makes_none(served, tmp_path):
    await ask(served(sleeping, timeout=5.0))
    assert not (tmp_path / "dumps").exists()


async def test_a_failure_that_repeats_says_nothing_new(served, tmp_path, monkeypatch, caplog):
    app = served(streaming)
    for _ in range(3):
        with pytest.raises(Failed):
            await ask(app)
    assert len(dumps_in(tmp_path / "dumps")) == 1
    said = [one.getMessage() for one in caplog.records if one.name == "pplx.record" and one.levelname == "WARNING"]
    begins = ["dump written", "replay it", "no dump was written", "no dump was written"]
    assert [one.partition(":")[0] for one in said] == begins
    assert "Failed in" in said[2]
    assert said[2].endswith("test_asgi.py:streaming")
    monkeypatch.setattr("dumps.record.program.ALIKE_S", 0.0)
    for _ in range(10):
        with pytest.raises(Failed):
            await ask(app)
    assert len(dumps_in(tmp_path / "dumps")) == MAX_ALIKE


async def test_requests_at_the_same_time_are_told_apart(served, tmp_path):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        with frame("turn", {"path": scope["path"]}):
            for _ in range(3):
                await look_up(0.01)
            if scope["path"] == "/bad":
                raise Failed("one of them")

    recorded = served(app)
    await asyncio.gather(*(ask(recorded, path=f"/{name}") for name in ("a", "bad", "c")), return_exceptions=True)
    state = only_dump(tmp_path / "dumps")
    (failure,) = state.failures
    (bad,) = (exchange for exchange in state.exchanges if exchange.url.endswith("/bad?api_key=REMOVED&n=1"))
    assert (failure.exchange, failure.step) == (bad.id, 3)
    assert len(state.tool_calls) == 9
    assert "/bad" in state.context_stack[-1].payload_json


async def test_a_log_of_days_keeps_what_is_in_flight(served, tmp_path):
    limits = LogLimits(exchanges=20, tool_calls=20)
    release = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await look_up(0)
        if scope["path"] == "/long":
            await release.wait()
            await look_up(0)
            raise Failed("after all")

    recorded = served(app, limits=limits)
    long = asyncio.create_task(ask(recorded, path="/long"))
    await asyncio.sleep(0.01)
    for _ in range(100):
        await ask(recorded)
    release.set()
    with pytest.raises(Failed):
        await long
    state = only_dump(tmp_path / "dumps")
    (failure,) = state.failures
    assert failure.step == 2
    assert [call.within for call in state.tool_calls].count(failure.exchange) == 2
    assert len(state.exchanges) < 20
    notes = {entry.path: entry.note for entry in state.ledger}
    assert "were let go" in notes["exchanges"]
    assert "did not fit" not in notes["exchanges"]


async def broken(request: Request) -> JSONResponse:
    raise Failed((await request.body()).decode())


async def slowly(request: Request) -> StreamingResponse:
    async def pieces() -> Any:
        for number in range(100):
            yield f"{number}\n"
            await asyncio.sleep(0.02)

    return StreamingResponse(pieces())


application = Starlette(routes=[Route("/broken", broken, methods=["POST"]), Route("/slowly", slowly)], debug=False)
application.state.name = "ours"


@contextlib.asynccontextmanager
async def running(app: Any) -> Any:
    """The application behind a real server; yields its URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="on"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
        assert not task.done()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


async def test_starlette_behind_uvicorn(tmp_path, monkeypatch):
    app = record_asgi(application, tmp_path / "dumps", level="full", timeout=30.0)
    assert app.state.name == "ours"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_service", type(sys)("some_service"))
    monkeypatch.setattr(sys.modules["some_service"], "app", app, raising=False)
    async with running(app) as url, httpx.AsyncClient() as client:
        answer = await client.post(f"{url}/broken", content=b"what was sent")
        assert answer.status_code == 500
        state = only_dump(tmp_path / "dumps")
        async with client.stream("GET", f"{url}/slowly") as response:
            async for _ in response.aiter_lines():
                break
        for _ in range(200):
            if len(list(Path(tmp_path / "dumps").glob("*.pplx"))) == 2:
                break
            await asyncio.sleep(0.02)
    assert current.active() is None

    inbound = next(one for one in state.exchanges if one.direction == "in")
    assert (inbound.url, inbound.request_body, inbound.status) == (f"{url}/broken", b"what was sent", 500)
    assert state.program.entry == "some_service:app"
    assert state.failures[0].frame.endswith("test_asgi.py:broken")
    assert state.failures[0].message == "what was sent"
    # The client of this test lives in the same process, and is recorded for what it is.
    (out,) = (one for one in state.exchanges if one.direction == "out")
    assert (out.url, out.within) == (inbound.url, "")

    gone = dumps_in(tmp_path / "dumps")[-1]
    assert gone.failures[0].invariant == "client-gone"
    (cut,) = (one for one in gone.exchanges if one.direction == "in" and one.url.endswith("/slowly"))
    assert (cut.error, cut.status) == ("closed", 200)
    assert cut.chunks[0].data == b"0\n"


async def test_a_server_that_is_made_to_go_at_once_leaves_a_dump_of_what_was_in_flight(served, tmp_path):
    """As uvicorn does at the second Ctrl-C: the lifespan and the requests are cancelled together."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await asyncio.Event().wait()
        await receive()
        await send({"type": "lifespan.startup.complete"})
        try:
            await asyncio.Event().wait()
        finally:
            await send({"type": "lifespan.shutdown.failed"})

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        pass

    recorded = served(app)
    lifespan = asyncio.create_task(recorded({"type": "lifespan"}, receive, send))
    await asyncio.sleep(0.01)
    request = asyncio.create_task(ask(recorded))
    await asyncio.sleep(0.01)
    for task in (lifespan, request):
        task.cancel()
    await asyncio.gather(lifespan, request, return_exceptions=True)
    state = only_dump(tmp_path / "dumps")
    assert state.failures[0].exception_type.endswith("CancelledError")
    assert state.failures[0].exchange == state.exchanges[0].id
    assert not recorded._served.follows, "it ends with the last of them"
