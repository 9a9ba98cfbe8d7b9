"""The agent with one thing changed: each bug mended, and a call that nobody recorded."""

from __future__ import annotations

import json
import time
from typing import Any

import agent
import httpx


class Patient(agent.Agent):
    """Does without what a tool cannot give."""

    async def answer(self, question: str) -> str:
        try:
            return await super().answer(question)
        except (TimeoutError, json.JSONDecodeError, agent.aiohttp.ClientError) as error:
            return f"I could not look everything up: {type(error).__name__}"


async def patient(question: str) -> str:
    return await Patient().answer(question)


class Steady(agent.Agent):
    """Measures a token's age on the clock that nobody sets."""

    def __init__(self) -> None:
        super().__init__()
        self._given = 0.0

    async def token(self) -> agent.Token:
        token = await super().token()
        self._given = time.monotonic()
        return token

    def check(self, token: agent.Token) -> None:
        if time.monotonic() - self._given > 3600:
            raise agent.TokenExpired("the token ended")


async def steady(question: str) -> str:
    return await Steady().answer(question)


class Curious(agent.Agent):
    """Asks one thing more, before anything fails."""

    async def token(self) -> agent.Token:
        async with httpx.AsyncClient() as client:
            news: dict[str, Any] = (await client.get(f"{self.services.tools}/news", params={"topic": "rates"})).json()
        self.say("user", str(news))
        return await super().token()


async def curious(question: str) -> str:
    return await Curious().answer(question)


async def spinning(question: str) -> str:
    """Never comes back, and never lets anybody else run."""
    while True:
        pass
