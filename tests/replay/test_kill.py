"""``kill -9`` under load: what the dead process recorded is recovered, replayed, and found equal."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dumps.schema.reader import open_dump
from dumps.validate import validate
from tests.servers import ServerProcess, kill_under_load, running_server
from tests.tiny import make_tiny_model

CLIENTS = 6


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("weights") / "tiny")


async def load_and_kill(server: ServerProcess, steps: int) -> None:
    """Keep the server busy with chats of all lengths for ``steps`` steps, then SIGKILL it in mid-flight."""

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        for turn in range(10_000):
            body = {
                "model": "tiny",
                "messages": [{"role": "user", "content": f"client {number}, turn {turn} " + "x" * (7 * number)}],
                "max_tokens": 20 + 9 * ((number + turn) % 7),
                "temperature": 0.9,
                "seed": 1000 * number + turn,
                "ignore_eos": True,
            }
            async with session.post(f"{server.url}/v1/chat/completions", json=body) as response:
                await response.read()

    await kill_under_load(server, client, clients=CLIENTS, metric="pplx_steps_total", count=steps)


def command(*arguments: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "replay.cli", *map(str, arguments), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    assert "error" not in document, document
    return document


def test_the_window_of_a_killed_server_equals_what_it_recorded(tiny, tmp_path):
    threads = min(2, len(os.sched_getaffinity(0)))  # the replay takes as many, whatever its environment says
    options = ["--record", "tokens", "--ring-size", "64", "--kv-blocks", "64", "--block-size", "4"]
    options += ["--threads", str(threads)]
    with running_server(tiny, tmp_path / "dumps", "--served-model-name", "tiny", *options, debug=2) as server:
        asyncio.run(load_and_kill(server, steps=1500))
        ring = server.ring
    command("state", "recover", ring, "-o", tmp_path / "recovered.pplx")
    with open_dump(tmp_path / "recovered.pplx") as dump:
        dump.verify()
        state = dump.state
    assert validate(state) == []
    kept = len(state.steps)
    assert state.steps[0].index > 3 * kept, "the ring has not wrapped three times"
    assert len(state.scheduler.running) > 1, "nothing was in flight"
    assert state.engine.num_threads == threads

    report = command("replay", "run", tmp_path / "recovered.pplx", "--model", tiny)
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "process-death")
    assert report["mode"] == "strict"
    assert report["divergence"] is None
    assert report["compared"]["window_steps"] == 32
    known = sum(r.num_output_tokens for r in state.requests if r.HasField("output_token_ids"))
    assert report["compared"]["tokens"] == known
    assert report["compared"]["digests"] > 32
    assert [f["code"] for f in report["findings"]] == ["process-death"]
