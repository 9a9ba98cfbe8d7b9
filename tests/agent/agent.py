"""A small agent: a chat model plans, two HTTP tools look things up, a file cache keeps a token and what was found.

It is what people put around a model, bugs included. Nothing in it knows of recordings but the two decorators on its
tools. Addresses and the key come from the environment, as in a container.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
import httpx
import openai
from openai.types.chat import ChatCompletionMessageParam

from dumps.record.seams import context
from dumps.record.seams.tools import tool

TOOL_DEADLINE_S = 30.0
RETRIES = 2


class TokenExpired(Exception):
    """The token for the tools is past its end."""


@dataclass(slots=True)
class Token:
    value: str
    expires: float  # Unix time


@dataclass(slots=True)
class Services:
    """Where the world is."""

    tools: str = field(default_factory=lambda: os.environ["TOOLS_URL"])
    model: str = field(default_factory=lambda: os.environ["OPENAI_BASE_URL"])
    model_name: str = field(default_factory=lambda: os.environ.get("MODEL_NAME", "smollm2-135m"))
    cache: Path = field(default_factory=lambda: Path(os.environ.get("AGENT_CACHE", "cache")))


@tool(deadline=TOOL_DEADLINE_S)
async def weather(city: str, token: str) -> dict[str, Any]:
    """Today's weather, asked with httpx. Bad gateways are asked again."""
    services = Services()
    headers = {"Authorization": f"Bearer {token}", "X-Trace": uuid.uuid4().hex}
    async with httpx.AsyncClient(timeout=None) as client:
        for attempt in range(RETRIES + 1):
            answer = await client.get(f"{services.tools}/weather", params={"city": city}, headers=headers)
            if answer.status_code < 500 or attempt == RETRIES:
                break
            await asyncio.sleep(0.2 * 2**attempt)
    return parse_weather(answer.text)


def parse_weather(text: str) -> dict[str, Any]:
    report = json.loads(text)
    return {"city": report["city"], "celsius": report["celsius"]}


@tool(deadline=TOOL_DEADLINE_S)
async def rates(currency: str, token: str) -> list[dict[str, Any]]:
    """Exchange rates, streamed with aiohttp as one JSON object a line."""
    services = Services()
    found = []
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
        session.get(
            f"{services.tools}/rates", params={"of": currency}, headers={"Authorization": f"Bearer {token}"}
        ) as answer,
    ):
        async for line in answer.content:
            found.append(json.loads(line))
    return found


class Agent:
    def __init__(self) -> None:
        self.services = Services()
        self.model = openai.AsyncOpenAI(max_retries=0)
        self.messages: list[dict[str, str]] = []

    async def answer(self, question: str) -> str:
        with context.frame("agent", {"question": question}):
            self.say("user", question)
            plan = await self.chat("plan")
            token = await self.token()
            report = await self.cached_weather("Lisbon", token)
            self.check(token)
            table = await rates("EUR", token.value)
            self.say("user", f"weather: {report}; rates: {len(table)}; plan: {plan[:40]}")
            return await self.chat("answer")

    async def chat(self, purpose: str) -> str:
        """One streamed turn of the model."""
        with context.frame("chat", {"purpose": purpose}):
            stream = await self.model.chat.completions.create(
                model=self.services.model_name,
                messages=cast(list[ChatCompletionMessageParam], self.messages),
                temperature=0,
                max_tokens=12,
                stream=True,
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        self.say("assistant", text)
        return text

    def say(self, role: str, content: str) -> None:
        self.messages.append({"role": role, "content": content})
        context.message(role, content, f"m{len(self.messages)}")

    async def token(self) -> Token:
        """From the cache, else from the service."""
        kept = self.services.cache / "token.json"
        if kept.exists():
            return Token(**json.loads(kept.read_text()))
        async with httpx.AsyncClient(timeout=None) as client:
            answer = await client.post(f"{self.services.tools}/token", json={"client": "agent"})
        given = answer.json()
        token = Token(given["access"], time.time() + given["valid_s"])
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps({"value": token.value, "expires": token.expires}))
        return token

    async def cached_weather(self, city: str, token: Token) -> dict[str, Any]:
        kept = self.services.cache / f"weather-{city}.json"
        try:
            return dict(json.loads(kept.read_text()))
        except FileNotFoundError:
            report = await weather(city, token.value)
        kept.write_text(json.dumps(report))
        return report

    def check(self, token: Token) -> None:
        if time.time() >= token.expires:
            raise TokenExpired(f"the token ended {time.time() - token.expires:.0f} s ago")


async def answer(question: str) -> str:
    """The entry: what a request handler would call."""
    return await Agent().answer(question)
