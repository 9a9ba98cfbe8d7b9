"""Incidents of the program around a model: an agent whose tool hangs, and a gateway that makes tool calls and text of
what a model says. The model and the tools are real servers on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from replay.models.locate import locate
from tests.agent.services import Tools
from tests.captures.incident import NOT_REPRODUCED, REPRODUCED, SMALLEST
from tests.servers import running_server
from tests.tiny import make_tiny_model, tiny_tokenizer

HERE = Path(__file__).resolve().parents[1]
SMOLLM2 = "smollm2-135m"
LIMIT_S = 120
GATEWAY = "app=tests.gateway.gateway:"
RECORDED = {"answers": "recorded"}
PIECES = ("Ã", "©", "th", "e", "Ġ")  # of the tiny vocabulary: the bytes C3 and A9, which are "é", and text


@dataclass(frozen=True, slots=True)
class World:
    """``folder`` is where the program runs, and leaves its dump. Its environment is this and nothing else, so that a
    dump says nothing of the machine."""

    folder: Path
    model_url: str
    model: str

    def environment(self, **variables: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        python = {"PYTHONPATH": str(HERE.parent), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        return kept | python | variables

    async def start(self, *command: str, **variables: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=self.folder, env=self.environment(**variables), stdout=asyncio.subprocess.PIPE
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramIncident:
    """``play`` runs the program into its failure. The model is the real one, or a tiny random one that stays with the
    fixture: ``brings_model``."""

    note: str
    play: Callable[[World], Awaitable[None]]
    replays: tuple[tuple[Mapping[str, Any], str], ...]
    shows: tuple[str, ...]
    brings_model: bool = False

    def record(self, folder: Path, scratch: Path) -> None:
        model = make_tiny_model(folder / "model", **SMALLEST) if self.brings_model else locate(SMOLLM2)
        name = "tiny" if self.brings_model else SMOLLM2
        place = scratch / "program"
        place.mkdir()
        with running_server(model, scratch / "server", "--served-model-name", name, "--kv-blocks", "64") as server:
            asyncio.run(self._run(World(place, server.url, name)))
        (dump,) = place.glob("dumps/*.pplx")
        shutil.copyfile(dump, folder / "dump.pplx")

    async def _run(self, world: World) -> None:
        async with asyncio.timeout(LIMIT_S):
            await self.play(world)


async def _a_tool_that_never_answers(world: World) -> None:
    for name in ("agent.py", "record.py"):
        shutil.copy(HERE / "agent" / name, world.folder)
    runner = web.AppRunner(Tools("hang").app(), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        agent = await world.start(
            *("record.py", "dumps"),
            TOOLS_URL=f"http://{host}:{port}",
            OPENAI_BASE_URL=f"{world.model_url}/v1",
            OPENAI_API_KEY="none",
            MODEL_NAME=world.model,
        )
        await agent.communicate()
        assert agent.returncode == 1
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _gateway(world: World, **variables: str) -> AsyncIterator[str]:
    """Its address, until its only request has failed."""
    shutil.copy(HERE / "gateway" / "serve.py", world.folder)
    gateway = await world.start("serve.py", "dumps", MODEL_URL=world.model_url, **variables)
    assert gateway.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await gateway.stdout.readline())}"
        while not list(world.folder.glob("dumps/*.pplx")):
            await asyncio.sleep(0.05)
    finally:
        gateway.terminate()
        await gateway.wait()


async def _stream(url: str, chat: Mapping[str, Any]) -> bytes:
    """What the client gets."""
    async with aiohttp.ClientSession() as client, client.post(f"{url}/v1/chat/completions", json=chat) as answer:
        assert answer.status == 200
        try:
            return b"".join([piece async for piece in answer.content.iter_any()])
        except aiohttp.ClientPayloadError:
            return b"broken off"


def _call(name: str, **arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}


def _tool(name: str, *parameters: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


async def _a_brace_in_a_string(world: World) -> None:
    chat = {
        "model": world.model,
        "max_tokens": 60,
        "temperature": 0,
        "stream": True,
        "tools": [_tool("append", "file", "line")],
        "messages": [
            _user("Close the function in main.c"),
            _call("append", file="main.c", line="}"),
            _user("Close the loop in loop.c"),
        ],
    }
    async with _gateway(world) as url:
        assert await _stream(url, chat) == b"broken off"


async def _a_call_cut_by_max_tokens(world: World) -> None:
    chat = {
        "model": world.model,
        "max_tokens": 29,
        "temperature": 0,
        "stream": True,
        "tools": [_tool("send", "to", "text")],
        "messages": [
            _user("Tell Ann that dinner is at eight."),
            _call("send", to="Ann", text="Dinner is at eight."),
            _user("Tell Bob that I shall be late, since the train from Lisbon stands still."),
        ],
    }
    async with _gateway(world) as url:
        got = await _stream(url, chat)
        assert b'"finish_reason": "tool_calls"' in got
        assert got.endswith(b"data: [DONE]\n\n")


async def _an_output_that_ends_inside_a_character(world: World) -> None:
    tiny_tokenizer().save(str(world.folder / "tokenizer.json"))
    tokens = tiny_tokenizer()
    chat = {
        "model": world.model,
        "max_tokens": 7,
        "temperature": 2,
        "seed": 277,
        "stream": True,
        "messages": [_user("Write a word with an accent.")],
        "logit_bias": {str(tokens.token_to_id(piece)): 100 for piece in PIECES},
    }
    async with _gateway(world, TOKENIZER="tokenizer.json") as url:
        got = await _stream(url, chat)
        assert got.endswith(b"data: [DONE]\n\n")


INCIDENTS: Mapping[str, ProgramIncident] = {
    "tool-hang": ProgramIncident(
        note="An agent (tests/agent) asks a chat model for a plan, then its tools. The HTTP request of the second tool "
        "is never answered: the call waits for its deadline of 30 s, and TimeoutError ends the agent. A tiny random "
        "model, whose weights are in this folder, wrote the plan.",
        play=_a_tool_that_never_answers,
        brings_model=True,
        replays=(
            ({"target": "app=agent:answer", "app_path": ["../../tests/agent"], **RECORDED}, REPRODUCED),
            ({"target": "app=agent:answer", "app_path": ["../../tests/agent"]}, REPRODUCED),
            (
                {
                    "target": "app=agent:answer",
                    "app_path": ["../../tests/agent"],
                    **RECORDED,
                    "set": {"tool.tool-2.result": "[]"},
                },
                NOT_REPRODUCED,
            ),
        ),
        shows=(
            "failure.frame",
            "overdue.0.call",
            "overdue.0.tool",
            "overdue.0.deadline_s",
            "overdue.0.requests",
            "overdue.0.stack.0.frame",
            "overdue.0.stack.1.frame",
            "world.model_answers",
        ),
    ),
    "tool-parse": ProgramIncident(
        note="A gateway (tests/gateway) reads a tool call out of what SmolLM2-135M writes, delta by delta. Its parser "
        "counts braces and forgets at each delta whether it is in a string. The model writes a closing brace into a "
        "string that began in the delta before: the parser takes it for the end of the arguments, and what it has by "
        "then is no JSON. The client's stream breaks off. Weights are not here; the recorded answer is played.",
        play=_a_brace_in_a_string,
        replays=(
            ({"target": f"{GATEWAY}app", **RECORDED}, REPRODUCED),
            ({"target": f"{GATEWAY}mended_parser", **RECORDED}, NOT_REPRODUCED),
        ),
        shows=(
            "failure.exception_type",
            "failure.message",
            "failure.frame",
            "context.0.payload",
        ),
    ),
    "tool-truncated": ProgramIncident(
        note="A gateway (tests/gateway) streams a tool call that SmolLM2-135M writes, and max_tokens cuts it inside an "
        "argument. Once a piece of a call was sent, the gateway says finish_reason 'tool_calls', whatever ended the "
        "answer: its client got HTTP 200, a call that looks whole, and cut JSON. The gateway's own audit of what it "
        "sent raises ToolCallTruncated after that. Weights are not here; the recorded answer is played.",
        play=_a_call_cut_by_max_tokens,
        replays=(
            ({"target": f"{GATEWAY}app", **RECORDED}, REPRODUCED),
            ({"target": f"{GATEWAY}mended_finish", **RECORDED}, NOT_REPRODUCED),
        ),
        shows=("failure.exception_type", "failure.message", "context.0.payload"),
    ),
    "utf8-split": ProgramIncident(
        note="A gateway (tests/gateway) gets token ids and makes text of them itself. max_tokens ends the output in "
        "a character of two bytes, and the gateway lets the byte that it held back go as it is: the last delta is no "
        "UTF-8. The gateway's own audit of what it sent raises InvalidUtf8InDelta after that. The ids are those of a "
        "tiny random model, whose weights are in this folder, under a logit_bias for three tokens.",
        play=_an_output_that_ends_inside_a_character,
        brings_model=True,
        replays=(
            ({"target": f"{GATEWAY}app", **RECORDED}, REPRODUCED),
            ({"target": f"{GATEWAY}app"}, REPRODUCED),
            ({"target": f"{GATEWAY}mended_detokenizer", **RECORDED}, NOT_REPRODUCED),
        ),
        shows=("failure.exception_type", "failure.message", "context.0.payload", "world.model_answers"),
    ),
}
