"""A gateway in front of a model server: it makes tool calls of what the model writes, and text of token ids.

It has three defects of real engines' frontends; `mended` is without them. Which of them a request meets depends on what
the model says.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from dumps.record.seams import context
from tests.gateway import upstream
from tests.gateway.audit import Token, check_delta, check_tool_call
from tests.gateway.detokenizer import Detokenizer, MendedDetokenizer, Vocabulary
from tests.gateway.tool_parser import MendedToolCallParser, ToolCallParser

CLIENT = web.AppKey("client", aiohttp.ClientSession)
VOCABULARY = web.AppKey("vocabulary", Vocabulary)


def finish_reason(reason: str, parser: ToolCallParser) -> str:
    """Once a piece of a tool call was sent, it says "tool_calls", whatever ended the answer."""
    return "tool_calls" if parser.name else reason


def mended_finish_reason(reason: str, parser: ToolCallParser) -> str:
    return "tool_calls" if parser.complete else reason


FinishReason = Callable[[str, ToolCallParser], str]


@dataclass(frozen=True, slots=True)
class Gateway:
    parser: type[ToolCallParser] = ToolCallParser
    detokenizer: type[Detokenizer] = Detokenizer
    finish_reason: FinishReason = finish_reason

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        app.cleanup_ctx.append(_connected)
        return app

    async def answer(self, request: web.Request) -> web.StreamResponse:
        chat = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await (self._tool_call if chat.get("tools") else self._text)(request, chat, response)
        return response

    async def _tool_call(self, request: web.Request, chat: dict[str, Any], response: web.StreamResponse) -> None:
        parser, number, last, reason = self.parser(), 0, Token(-1, -1, ""), ""
        async with aclosing(upstream.ask(request.app[CLIENT], chat)) as deltas:
            async for delta in deltas:
                for token in delta.token_ids:
                    last = Token(last.index + 1, token, delta.text)
                frame = {"number": number, "text": delta.text, "token": last.index, "parser": parser.state()}
                named = bool(parser.name)
                with context.frame("delta", frame):
                    added = parser.feed(delta.text)
                if parser.name and (added or not named):
                    function = ({} if named else {"name": parser.name}) | {"arguments": added}
                    await _send(response, {"tool_calls": [{"index": 0, "type": "function", "function": function}]})
                number, reason = number + 1, delta.finish_reason or ""
        reason = self.finish_reason(reason, parser)
        await _end(response, reason)
        check_tool_call(parser.name, parser.arguments, reason, last)

    async def _text(self, request: web.Request, chat: dict[str, Any], response: web.StreamResponse) -> None:
        detokenizer, last, reason = self.detokenizer(request.app[VOCABULARY]), Token(-1, -1, ""), ""
        sent: list[bytes] = []
        async with aclosing(upstream.ask(request.app[CLIENT], chat)) as deltas:
            async for delta in deltas:
                for token in delta.token_ids:
                    last = Token(last.index + 1, token, delta.text)
                    if piece := detokenizer.push(token):
                        sent.append(await _send_text(response, piece))
                reason = delta.finish_reason or ""
        pending = detokenizer.pending
        if piece := detokenizer.finish():
            sent.append(await _send_text(response, piece))
        await _end(response, reason)
        for number, each in enumerate(sent):
            check_delta(number, each, last, pending)


async def _connected(app: web.Application) -> AsyncIterator[None]:
    if "TOKENIZER" in os.environ:
        app[VOCABULARY] = Vocabulary(Path(os.environ["TOKENIZER"]))
    async with aiohttp.ClientSession(os.environ["MODEL_URL"] + "/") as client:
        app[CLIENT] = client
        yield


async def _send(response: web.StreamResponse, delta: dict[str, Any], reason: str | None = None) -> None:
    event = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


async def _send_text(response: web.StreamResponse, piece: bytes) -> bytes:
    """Without a detour over str: the pieces are UTF-8 already."""
    content = json.dumps(piece.decode("utf-8", "surrogateescape"), ensure_ascii=False)
    event = f'{{"object": "chat.completion.chunk", "choices": [{{"index": 0, "delta": {{"content": {content}}}}}]}}'
    data = b"data: " + event.encode("utf-8", "surrogateescape") + b"\n\n"
    await response.write(data)
    return data


async def _end(response: web.StreamResponse, reason: str) -> None:
    await _send(response, {}, reason)
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()


def app() -> web.Application:
    return Gateway().app()


def mended_parser() -> web.Application:
    return Gateway(parser=MendedToolCallParser).app()


def mended_finish() -> web.Application:
    return Gateway(finish_reason=mended_finish_reason).app()


def mended_detokenizer() -> web.Application:
    return Gateway(detokenizer=MendedDetokenizer).app()
