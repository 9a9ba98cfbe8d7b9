"""Sends planned requests to an endpoint on their schedule, and notes what comes back.

Only the URL that the user gave is contacted: no redirect is followed, the environment's proxies and ~/.netrc are not
read, no cookie is kept. Nothing that an endpoint does is raised: a dead one is a result.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from replay.openai_wire import EventReader
from replay.report import tool_version
from replay.targets.endpoint.plan import Call, Plan
from replay.targets.endpoint.reply import ErrorBody, Reply

CONNECT_S = 10.0
MODELS_S = 10.0
MAX_ANSWER_BYTES = 64 << 20
MAX_ERROR_BYTES = 1 << 16

# What may be left out where a server does not know it: another answer comes, and the report says so. Without the rest
# of a request it would be another request.
MAY_GO = (
    *("stream_options", "seed", "logit_bias", "stop", "stop_token_ids", "ignore_eos", "min_tokens"),
    *("top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "top_p", "temperature"),
)

Emit = Callable[[dict[str, Any]], None]


class Outcome(StrEnum):
    """How one request ended. FAILED is an error that the server states, DROPPED an answer that has no end, SILENT one
    of which no byte came for too long, LATE one that had a deadline, ABORTED one that we left as its client had."""

    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"
    DROPPED = "dropped"
    SILENT = "silent"
    LATE = "late"
    ABORTED = "aborted"
    UNREACHABLE = "unreachable"


@dataclass(slots=True)
class Heard:
    """Times are in seconds since the request was sent. ``message`` is the server's text or the system's, untrusted."""

    outcome: Outcome = Outcome.ANSWERED
    status: int | None = None
    error: ErrorBody = field(default_factory=ErrorBody)
    reply: Reply = field(default_factory=Reply)
    first_byte_s: float | None = None
    total_s: float = 0.0
    as_text: bool = False

    def end(self, outcome: Outcome, message: str = "") -> None:
        self.outcome = outcome
        if message:
            self.error = ErrorBody(message=message, code=self.error.code, param=self.error.param)


class Player:
    """Plays a plan once or more often, and remembers what the endpoint does not take. Use it as a context manager."""

    def __init__(self, plan: Plan, url: str, *, key: str = "", proxy: str | None = None) -> None:
        self.dropped: dict[str, str] = {}  # parameter: the server's words
        self.as_text = False
        self._plan, self._url, self._key, self._proxy = plan, url, key, proxy

    async def __aenter__(self) -> Player:
        headers = {"User-Agent": f"pplx-replay/{tool_version()}", "Accept-Encoding": "identity"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._session = aiohttp.ClientSession(
            # No queue on our side, and no connection used twice: one that the server closed while it was idle would
            # look like an answer that was dropped.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=self._plan.silence_s),
            trust_env=False,
            headers=headers,
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def once(self, emit: Emit, stage: str) -> list[Heard]:
        """Send every request at its time and wait until each has ended. What was heard, by request."""
        loop = asyncio.get_running_loop()
        began, ended, total = loop.time(), 0, len(self._plan.calls)

        def tell() -> None:
            emit({"event": "progress", "stage": stage, "done": ended, "total": total})

        async def one(call: Call) -> Heard:
            nonlocal ended
            await asyncio.sleep(began + call.at_s - loop.time())
            heard = await self._ask(call)
            ended += 1
            tell()
            return heard

        tell()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(call)) for call in self._plan.calls]
        return [task.result() for task in tasks]

    async def models(self) -> list[str]:
        """Names that the endpoint lists; none where it does not."""
        try:
            async with (
                asyncio.timeout(MODELS_S),
                self._session.get(f"{self._url}/models", allow_redirects=False, proxy=self._proxy) as response,
            ):
                listed = json.loads(await _start_of(response))
                return [str(one["id"])[:200] for one in listed["data"]][:20]
        except (aiohttp.ClientError, TimeoutError, ValueError, TypeError, KeyError, RecursionError):
            return []

    async def _ask(self, call: Call) -> Heard:
        """One request, again and again while the endpoint names a part of it that it does not take."""
        body, as_text = self._fitting(call)
        while True:
            data = call.verbatim if body is None else json.dumps(body)
            heard = await self._post(call, str(data).encode())
            heard.as_text = as_text
            if body is None or heard.status not in (400, 422):
                if as_text and heard.outcome is not Outcome.REFUSED:
                    self.as_text = True
                return heard
            refused = _refused(body, heard.error)
            if refused in MAY_GO:
                self.dropped.setdefault(refused, heard.error.message)
                body = {name: value for name, value in body.items() if name != refused}
            elif refused == "max_tokens" and call.unlimited and call.asked == body["max_tokens"]:
                # It says beforehand that so much does not fit, which is what a server should do.
                body = {**body, "max_tokens": body["max_tokens"] - 1}
            elif refused == "prompt" and call.text and not as_text and not _other_vocabulary(heard.error):
                body, as_text = {**body, "prompt": call.text}, True
            else:
                return heard

    def _fitting(self, call: Call) -> tuple[dict[str, Any] | None, bool]:
        if call.body is None:
            return None, False
        body = {name: value for name, value in call.body.items() if name not in self.dropped}
        if self.as_text and call.text:
            return {**body, "prompt": call.text}, True
        return body, False

    async def _post(self, call: Call, data: bytes) -> Heard:
        heard = Heard()
        began = asyncio.get_running_loop().time()
        limits = {Outcome.ABORTED: call.abort_s, Outcome.LATE: self._plan.deadline_s}
        soonest, limit = min(limits.items(), key=lambda item: float("inf") if item[1] is None else item[1])
        try:
            async with asyncio.timeout(limit) as clock:
                await self._exchange(call, data, heard, began)
        except aiohttp.ClientConnectorError as error:
            heard.end(Outcome.UNREACHABLE, f"no connection to {error.host}:{error.port}: {error.strerror or error}")
        except aiohttp.ConnectionTimeoutError:
            heard.end(Outcome.UNREACHABLE, f"no connection within {CONNECT_S:g} s")
        except aiohttp.SocketTimeoutError:
            heard.end(Outcome.SILENT, f"no byte for {self._plan.silence_s:g} s")
        except TimeoutError:
            if not clock.expired():
                raise
            heard.end(soonest, f"no end within {limit:g} s")
        except aiohttp.ClientHttpProxyError as error:
            heard.end(Outcome.UNREACHABLE, f"the proxy answers HTTP {error.status}")
        except (aiohttp.ClientError, OSError) as error:
            heard.end(Outcome.DROPPED, f"{type(error).__name__}: {error}")
        heard.total_s = asyncio.get_running_loop().time() - began
        if self._key and self._key in heard.error.message:
            heard.end(heard.outcome, heard.error.message.replace(self._key, "<api key>"))
        return heard

    async def _exchange(self, call: Call, data: bytes, heard: Heard, began: float) -> None:
        async with self._session.post(
            self._url + call.path,
            data=data,
            headers={"Content-Type": "application/json"},
            allow_redirects=False,
            proxy=self._proxy,
        ) as response:
            heard.status = response.status
            heard.first_byte_s = asyncio.get_running_loop().time() - began
            if 300 <= response.status < 400:
                host = urlsplit(response.headers.get("Location", "")).netloc or "another path"
                heard.end(Outcome.REFUSED, f"it redirects to {host}; give that URL if it is meant")
            elif response.status >= 400:
                raw = await _start_of(response)
                heard.error = _error_in(raw) or ErrorBody(message=raw.decode("utf-8", "replace")[:2000])
                heard.end(Outcome.FAILED if response.status >= 500 else Outcome.REFUSED)
            elif response.content_type == "text/event-stream":
                await _stream(response, heard)
            else:
                await _whole(response, heard)
            if heard.outcome is Outcome.ANSWERED:
                _conclude(call, heard)


async def _stream(response: aiohttp.ClientResponse, heard: Heard) -> None:
    reader, size = EventReader(), 0
    async for data in response.content.iter_any():
        size += len(data)
        if size > MAX_ANSWER_BYTES:
            heard.end(Outcome.FAILED, f"its answer goes on beyond {MAX_ANSWER_BYTES} bytes")
            return
        try:
            for event in reader.feed(data):
                heard.reply.take(event)
        except (ValueError, RecursionError) as error:
            heard.end(Outcome.FAILED, f"it streams what is no event: {error}")
            return


async def _whole(response: aiohttp.ClientResponse, heard: Heard) -> None:
    body = await _start_of(response, MAX_ANSWER_BYTES)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        heard.end(Outcome.FAILED, f"it answers with what is no JSON: {error}")
        return
    if isinstance(document, dict):
        heard.reply.take(document)


def _conclude(call: Call, heard: Heard) -> None:
    """An answer that came with HTTP 200 may still be none."""
    if heard.reply.error is not None:
        heard.error = heard.reply.error
        heard.outcome = Outcome.FAILED
    elif not heard.reply.is_whole(call.n):
        heard.end(Outcome.DROPPED, "the answer ended without a finish_reason")


async def _start_of(response: aiohttp.ClientResponse, limit: int = MAX_ERROR_BYTES) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) >= limit:
            break
    return bytes(data[:limit])


def _error_in(raw: bytes) -> ErrorBody | None:
    try:
        return ErrorBody.of(json.loads(raw))
    except (ValueError, RecursionError):
        return None


def _other_vocabulary(error: ErrorBody) -> bool:
    """Whether ids are refused because the model does not have them. It is another model: its answer to the same text
    would say nothing of the recorded one."""
    return "vocab" in error.message.lower()


def _refused(body: dict[str, Any], error: ErrorBody) -> str:
    """The parameter of ``body`` that a 400 is about, "" where it does not say."""
    if error.param:
        name = error.param.partition("[")[0].partition(".")[0]
        return name if name in body else ""
    words = set(re.findall(r"\w+", error.message))
    named = [name for name in (*MAY_GO, "max_tokens", "prompt") if name in words and name in body]
    return named[0] if named else ""
