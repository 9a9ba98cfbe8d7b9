"""What an incident is: how its failure is recorded, and what replays of the dump must say."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from replay.models.locate import locate
from tests.servers import running_server
from tests.tiny import make_tiny_model
from tests.tiny_models import make_model

REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE = "reproduced", "not-reproduced", "inconclusive"

SMALLEST = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
}
"""A model of 50 KB, for a fixture that brings its weights."""


class Incident(Protocol):
    """``replays`` are (options, verdict) pairs: the first comes to ``reproduced``, the neighbours change one thing
    each. ``shows`` are report paths whose values are kept with the fixture."""

    @property
    def note(self) -> str: ...

    @property
    def replays(self) -> Sequence[tuple[Mapping[str, Any], str]]: ...

    @property
    def shows(self) -> Sequence[str]: ...

    def record(self, folder: Path, scratch: Path) -> None:
        """Run into the failure and put ``dump.pplx`` into ``folder``, with ``model/`` beside it if replays need it."""
        ...


@dataclass(slots=True)
class Client:
    """A running server, as a load sees it."""

    url: str
    model: str
    session: aiohttp.ClientSession
    dumps: Callable[[], Sequence[Path]]

    def post(self, prompt: str, **body: Any) -> Any:
        """A chat, to be entered as a context. A request that fails is the point; a connection that breaks is not."""
        content = {"messages": [{"role": "user", "content": prompt}], "model": self.model, "temperature": 0, **body}
        return self.session.post(f"{self.url}/v1/chat/completions", json=content)

    async def chat(self, prompt: str, **body: Any) -> int:
        """The status of a chat that is read to its end."""
        async with self.post(prompt, **body) as response:
            await response.read()
            return int(response.status)

    async def steps(self) -> int:
        """Engine steps that were taken so far."""
        async with self.session.get(f"{self.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        return next((int(float(line.split()[-1])) for line in lines if line.startswith("pplx_steps_total ")), 0)


Load = Callable[[Client], Awaitable[None]]


def together(prompts: Sequence[str], **body: Any) -> Load:
    """All chats at once."""

    async def load(client: Client) -> None:
        await asyncio.gather(*(client.chat(prompt, **body) for prompt in prompts))

    return load


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIncident:
    """An incident of the reference server under a load.

    ``model`` names real weights; without it a tiny random model is made, ``architecture`` with ``tiny`` changed in its
    config.json. Replays of its dump need it unless they are all of target `schedule`: ``brings_model``.
    """

    note: str
    server: tuple[str, ...]
    load: Load
    replays: tuple[tuple[Mapping[str, Any], str], ...]
    shows: tuple[str, ...]
    model: str = ""
    architecture: str = "llama"
    tiny: Mapping[str, Any] = field(default_factory=dict)
    brings_model: bool = False

    def record(self, folder: Path, scratch: Path) -> None:
        home = folder if self.brings_model else scratch
        model = locate(self.model) if self.model else self._make(home / "model")
        name = self.model or "tiny"
        with running_server(model, scratch / "dumps", "--served-model-name", name, *self.server) as server:
            asyncio.run(self._run(server.url, name, server.dump_files))
            dumps = server.dump_files()
        assert dumps, "the server wrote no dump"
        shutil.copy(dumps[0], folder / "dump.pplx")

    def _make(self, folder: Path) -> Path:
        if self.architecture == "llama":
            return make_tiny_model(folder, **self.tiny)
        return make_model(folder, self.architecture, **self.tiny)

    async def _run(self, url: str, name: str, dumps: Callable[[], Sequence[Path]]) -> None:
        async with aiohttp.ClientSession() as session:
            await self.load(Client(url, name, session, dumps))
