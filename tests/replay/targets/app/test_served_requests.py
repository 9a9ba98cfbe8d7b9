"""Applications that are asked again what a dump says they were asked, in this process."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest
from aiohttp import web

from dumps.ledger import record
from dumps.record.program_state import LET_GO
from dumps.schema import state_pb2 as pb
from replay.errors import UsageError
from replay.runtime.env import Env, load_env
from replay.targets.app.served import ServedReplay
from replay.targets.app.sought import Conclusion, Sought
from replay.targets.expected import own_signature

SECOND = 1_000_000_000
BEGAN = 5 * SECOND
HEAD = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b""}


class Failed(Exception):
    """What the applications of these tests raise."""


class Dump:
    """A dump of a server, made by hand: requests come a second apart."""

    def __init__(self, kind: str = "asgi") -> None:
        self.state = pb.RuntimeState()
        self.state.manifest.record_level = "full"
        self.state.program.kind = kind
        self.state.program.started_ns = BEGAN

    def request(self, body: bytes = b"", path: str = "/", **fields: Any) -> pb.Exchange:
        number = len(self.state.exchanges) + 1
        made = self.state.exchanges.add(
            id=f"x{number}", direction="in", framing="body", method="POST", url=f"http://a.test{path}"
        )
        made.client, made.task = self.state.program.kind, f"Task-{number * 7}"
        made.started_ns = BEGAN + number * SECOND
        made.request_headers.add(key="Host", value="a.test")
        if body:
            made.request_headers.add(key="Content-Length", value=str(len(body)))
            made.request_chunks.add(delay_ns=1000, size=len(body))
            made.request_body = body
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    def failure(self, exchange: str = "", error: str = f"{__name__}.Failed", **fields: Any) -> pb.Failure:
        last = self.state.exchanges[-1].started_ns if self.state.exchanges else BEGAN
        return self.state.failures.add(
            **{
                "kind": "exception",
                "exception_type": error,
                "exchange": exchange,
                "time_ns": last + SECOND // 2,
                "step": 0,
                **fields,
            }
        )

    def replay(self, found: Any) -> tuple[Conclusion, Env]:
        served = ServedReplay(self.state, found)
        env = load_env(self.state)
        with env:
            outcome = served.run(env)
        return served.conclude(Sought(state=self.state, signature=own_signature(self.state)), env, outcome), env


def verdict(found: Conclusion) -> str:
    return found.decision.verdict.value


def codes(found: Conclusion) -> list[str]:
    return [one["code"] for one in found.findings]


async def answering(scope: Any, receive: Any, send: Any) -> None:
    """Knows no lifespan."""
    assert scope["type"] == "http"
    await send(HEAD)
    await send(BODY)


async def body_of(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Failed("gone")
        body, more = body + message["body"], message["more_body"]
    return body


def test_what_is_asked_at_shutdown_comes_after_the_record():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            open("/nowhere/left-behind").close()
        raise Failed("no more")

    dump = Dump()
    other, asked = dump.request(), dump.request()
    dump.state.exchanges.add(id="x3", direction="out", method="GET", url="http://b.test/", within=other.id)
    dump.failure(asked.id, message="another thing")
    found, env = dump.replay(app)
    assert verdict(found) == "different-failure"
    assert env.counts()["unrecorded"] == 0
    told = [one.message for one in env.findings() if one.code == "after-the-record"]
    assert told == ["asked during shutdown, after the record: open of '/nowhere/left-behind'"]
    assert "unrecorded" not in [one.code for one in env.findings()]


def test_the_scope_is_that_of_the_recorded_request():
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            scope["state"]["made"] = "at startup"
            await send({"type": "lifespan.startup.complete"})
            await receive()
            seen["shut"] = True
            await send({"type": "lifespan.shutdown.complete"})
            return
        seen.update(scope, body=await body_of(receive), now=asyncio.get_running_loop().time())
        seen["task"] = asyncio.current_task().get_name()  # type: ignore[union-attr]
        raise Failed("no more")

    dump = Dump()
    asked = dump.request(b"four", "/a%20b?q=%41", sent_ns=BEGAN + 3 * SECOND)
    asked.request_headers.add(key="X-Name", value="v\u00e9")
    dump.failure(asked.id, message="no more")
    found, _ = dump.replay(app)
    assert (verdict(found), codes(found)) == ("reproduced", [])
    assert (seen["method"], seen["path"], seen["raw_path"], seen["query_string"]) == (
        "POST",
        "/a b",
        b"/a%20b",
        b"q=%41",
    )
    assert seen["headers"] == [(b"host", b"a.test"), (b"content-length", b"4"), (b"x-name", b"v\xe9")]
    assert (seen["body"], seen["server"], seen["task"]) == (b"four", ("a.test", 80), asked.task)
    assert seen["state"] == {"made": "at startup"}
    assert seen["now"] == pytest.approx((BEGAN + 3 * SECOND) / 1e9, abs=0.01)  # when the end of its body was there
    assert seen["shut"]


def test_a_startup_that_fails_again_is_reproduced():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await receive()
            raise Failed("no database")
        except Failed as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise

    dump = Dump()
    dump.failure(message="no database")
    found, _ = dump.replay(app)
    assert verdict(found) == "reproduced"
    assert verdict(Dump.replay(dump, answering)[0]) == "not-reproduced"


def test_a_task_that_nobody_awaits_fails_again():
    async def lost() -> None:
        raise Failed("alone")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        task = asyncio.create_task(lost())
        await asyncio.sleep(0)
        del task
        await answering(scope, receive, send)

    dump = Dump()
    dump.request(sent_ns=BEGAN + SECOND)
    dump.failure(message="alone")
    assert verdict(dump.replay(app)[0]) == "reproduced"


def test_a_body_that_was_not_read_when_it_was_recorded_is_not_made_up():
    async def fails_at_once(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        raise Failed("unread")

    async def reads(scope: Any, receive: Any, send: Any) -> None:
        await body_of(receive)

    dump = Dump()
    asked = dump.request()
    asked.request_headers.add(key="Content-Length", value="9")
    dump.failure(asked.id, message="unread")
    assert verdict(dump.replay(fails_at_once)[0]) == "reproduced"
    found, env = dump.replay(reads)
    assert verdict(found) == "not-reproduced"
    assert "the rest of the body of POST http://a.test/" in found.findings[0]["message"]
    assert [refusal.within for refusal in env.refusals] == [asked.id]


def test_a_handler_that_its_server_cancelled_is_cancelled_again():
    async def waits(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await asyncio.sleep(3600)

    dump = Dump()
    asked = dump.request(sent_ns=BEGAN + SECOND)
    dump.failure(asked.id, "asyncio.exceptions.CancelledError")
    found, env = dump.replay(waits)
    assert (verdict(found), codes(found)) == ("reproduced", ["client-gone-inferred"])
    assert env.elapsed_s == pytest.approx(1.5, abs=0.01)


def test_what_the_record_let_go_is_said_and_its_days_are_not_lived_through():
    turns = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal turns
        if scope["type"] == "http":
            raise Failed("late")
        await receive()
        await send({"type": "lifespan.startup.complete"})
        while True:
            await asyncio.sleep(1)
            turns += 1

    dump = Dump()
    asked = dump.request(sent_ns=BEGAN + SECOND, started_ns=BEGAN + 10**6 * SECOND)
    dump.failure(asked.id, message="late")
    record(dump.state, "exchanges", pb.ABSENT, f"40 {LET_GO}")
    found, _ = dump.replay(app)
    assert (verdict(found), codes(found)) == ("reproduced", ["requests-forgotten"])
    assert turns < 30  # it does not heed the shutdown, and has ten seconds for it


def test_a_web_socket_is_not_asked_again_and_a_failure_in_one_cannot_be_told():
    dump = Dump()
    asked = dump.request(status=101)
    dump.failure(asked.id)
    found, _ = dump.replay(answering)
    assert (verdict(found), found.decision.reason.value) == ("inconclusive", "record-ends")
    assert codes(found) == ["record-ends", "request-skipped"]


def test_another_requests_stray_call_counts_only_where_the_failure_did_not_come_back():
    def app_of(*, fails: bool) -> Any:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            assert scope["type"] == "http"
            if scope["path"] == "/other":
                await body_of(receive)
            elif fails:
                raise Failed("both")
            await answering(scope, receive, send)

        return app

    dump = Dump()
    other = dump.request(path="/other", status=200, ended_ns=BEGAN + 2 * SECOND)
    other.request_headers.add(key="Content-Length", value="9")
    dump.state.exchanges.add(id="x2", direction="out", method="GET", url="http://b.test/", sent_ns=1, within=other.id)
    asked = dump.request(sent_ns=BEGAN + 3 * SECOND)
    dump.failure(asked.id, message="both")
    found, _ = dump.replay(app_of(fails=True))
    assert (verdict(found), codes(found)) == ("reproduced", ["answer-differs"] * 2)
    assert verdict(dump.replay(app_of(fails=False))[0]) == "diverged"


@pytest.mark.parametrize("found", [3, lambda one: one], ids=["a number", "a function"])
def test_what_is_no_application_is_refused(found):
    for kind in ("asgi", "aiohttp"):
        with pytest.raises(UsageError, match="target: "):
            Dump(kind).replay(found)


# aiohttp


def aiohttp_app(seen: list[Any]) -> web.Application:
    async def handler(request: web.Request) -> web.Response:
        seen.append((request.path_qs, dict(request.headers), await request.read()))
        raise Failed("no more")

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handler)
    return app


def test_a_body_that_had_an_encoding_comes_as_it_was_read():
    seen: list[Any] = []
    dump = Dump("aiohttp")
    asked = dump.request(b"plain", sent_ns=BEGAN + 2 * SECOND)
    asked.request_headers[1].value = str(len(zlib.compress(b"plain")))
    asked.request_headers.add(key="Content-Encoding", value="deflate")
    dump.failure(asked.id, message="no more")
    assert verdict(dump.replay(aiohttp_app(seen))[0]) == "reproduced"
    ((_, sent, body),) = seen
    assert (body, sent["Content-Encoding"]) == (b"plain", "deflate")


def test_chunks_come_as_chunks():
    seen: list[Any] = []
    dump = Dump("aiohttp")
    asked = dump.request(b"first", sent_ns=BEGAN + 2 * SECOND)
    asked.request_headers[1].key, asked.request_headers[1].value = "Transfer-Encoding", "chunked"
    asked.request_chunks.add(delay_ns=SECOND // 4, size=6)
    asked.request_body += b"second"
    dump.failure(asked.id, message="no more")
    assert verdict(dump.replay(aiohttp_app(seen))[0]) == "reproduced"
    assert seen[0][2] == b"firstsecond"


def test_a_line_break_in_a_dump_makes_no_second_request():
    seen: list[Any] = []
    dump = Dump("aiohttp")
    asked = dump.request(path="/one")
    asked.request_headers.add(key="X-Name", value="v\r\n\r\nGET /two HTTP/1.1\r\nHost: b.test")
    dump.failure(asked.id, message="no more")
    assert verdict(dump.replay(lambda: aiohttp_app(seen))[0]) == "reproduced"
    ((path, sent, _),) = seen
    assert (path, sent["X-Name"]) == ("/one", "v GET /two HTTP/1.1 Host: b.test")


def test_a_handler_that_aiohttp_cancelled_is_cancelled_again():
    async def handler(request: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    app = web.Application()
    app.router.add_post("/", handler)
    dump = Dump("aiohttp")
    asked = dump.request(sent_ns=BEGAN + SECOND)
    dump.failure(asked.id, "asyncio.exceptions.CancelledError")
    found, env = dump.replay(app)
    assert (verdict(found), codes(found)) == ("reproduced", ["client-gone-inferred"])
    assert env.elapsed_s < 3
