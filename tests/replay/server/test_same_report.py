"""A real crash of a tiny model: the command and the server give the same report, by id and by upload."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from tests.mixing import random_tokens
from tests.recordings import record
from tests.replay.server.server_process import ROOT, Server, upload_headers
from tests.reports import without_times
from tests.tiny import make_tiny_model

Client = aiohttp.ClientSession


@pytest.fixture(scope="module")
def dumps_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dump of three requests that outgrew their pool, and the weights beside it."""
    folder = tmp_path_factory.mktemp("crash")
    recording = record(
        make_tiny_model(folder / "model"),
        folder,
        [random_tokens(9 + index, 256, seed=index) for index in range(3)],
        sampling=SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=60),
        kv_blocks=24,
        block_size=4,
        on_kv_exhausted=OnExhausted.TRUNCATE,
    )
    assert len(recording.dumps) == 1
    return folder


def only_dump(server: Server) -> Path:
    (dump,) = server.dumps.glob("*.pplx")
    return dump


def by_command(dump: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    words = [sys.executable, "-m", "replay.cli", "replay", "run", str(dump), "--json", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("target", ["schedule", "inference"])
async def test_command_id_and_upload_agree(server: Server, client: Client, target: str) -> None:
    dump = only_dump(server)
    extra = ["--model", str(server.dumps / "model")] if target == "inference" else []
    code, expected = by_command(dump, "--target", target, *extra)
    assert code == 0
    assert expected["verdict"] == "reproduced"
    for name in ("kv_cache_used_bytes", "max_kv_cache_bytes", "seq_len_exceeded_at"):
        assert expected["kv"][name]

    url = f"{server.url}/debug/replay"
    body = {"dump": dump.stem, "options": {"target": target}}
    async with client.post(url, headers=server.headers, json=body) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["X-PPLX-Exit-Code"] == "0"
        assert without_times(await answer.json()) == without_times(expected)
    if target == "inference":
        return  # an upload has no weights beside it
    headers = upload_headers(server, target=target)
    async with client.post(url, headers=headers, data=dump.read_bytes()) as answer:
        assert answer.status == 200, await answer.text()
        assert without_times(await answer.json()) == without_times(expected)


async def test_more_blocks_do_not_reproduce(server: Server, client: Client) -> None:
    dump = only_dump(server)
    options = {"target": "schedule", "set": {"kv.num_blocks": 96}}
    code, expected = by_command(dump, "--target", "schedule", "--set", "kv.num_blocks=96")
    assert code == 10
    body = {"dump": dump.stem, "options": options}
    async with client.post(f"{server.url}/debug/replay", headers=server.headers, json=body) as answer:
        assert answer.status == 200
        assert answer.headers["X-PPLX-Exit-Code"] == "10"
        assert (await answer.json())["verdict"] == expected["verdict"] == "not-reproduced"


async def test_an_upload_without_weights_here_is_inconclusive(server: Server, client: Client) -> None:
    data = only_dump(server).read_bytes()
    async with client.post(f"{server.url}/debug/replay", headers=upload_headers(server), data=data) as answer:
        assert answer.status == 200
        report = await answer.json()
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "weights-unavailable")


async def test_a_stream_of_a_real_replay_tells_its_steps(server: Server, client: Client) -> None:
    data = only_dump(server).read_bytes()
    headers = {**upload_headers(server, target="schedule"), "Accept": "text/event-stream"}
    async with client.post(f"{server.url}/debug/replay", headers=headers, data=data) as answer:
        names = [line[7:].strip().decode() async for line in answer.content if line.startswith(b"event: ")]
    assert "step-started" in names
    assert "progress" in names
    assert names[-1] == "report"


async def test_the_second_replay_of_a_dump_finds_its_model_loaded(server: Server, client: Client) -> None:
    body = {"dump": only_dump(server).stem, "options": {"set": {"model.dtype": "bfloat16"}}}
    reports = []
    for _ in range(2):
        async with client.post(f"{server.url}/debug/replay", headers=server.headers, json=body) as answer:
            assert answer.status == 200, await answer.text()
            reports.append(await answer.json())
    first, second = reports
    assert without_times(first) == without_times(second)
    assert second["timings"]["load_s"] < first["timings"]["load_s"] / 3
