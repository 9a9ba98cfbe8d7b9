"""Real server processes: the command itself, and one whose replays go wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from dumps.schema.writer import write_dump
from tests.replay.server.server_jobs import TOKEN
from tests.replay.server.server_process import HERE, Server, make_state, started


@pytest.fixture(scope="module")
def dumps_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    write_dump(folder / "good.pplx", make_state("00000000000000aa"))
    return folder


@pytest.fixture(scope="module")
def server(dumps_folder: Path) -> Iterator[Server]:
    """The command as a person starts it."""
    command = ["-m", "replay.cli", "replay", "serve", "--port", "0", "--dumps", str(dumps_folder), "--json"]
    with started(command, dumps_folder) as running:
        yield running


@pytest.fixture
def strange_server(tmp_path: Path) -> Iterator[Server]:
    """A server whose replays do what the upload's first word says; timeout 1 s, room for one that waits."""
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    with started([str(HERE / "server_jobs.py"), str(dumps), "1", "1"], dumps, TOKEN) as running:
        yield running


@pytest_asyncio.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session
