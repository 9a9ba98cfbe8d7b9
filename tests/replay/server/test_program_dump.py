"""A recorded program's dump at the replay server: no code runs there, and the answer says where it does."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from dumps.schema import state_pb2 as pb
from dumps.schema.writer import write_dump
from tests.replay.server.server_process import Server, upload_headers


@pytest.fixture
def program_dump(tmp_path: Path) -> bytes:
    state = pb.RuntimeState()
    state.manifest.id = "00000000000000c0"
    state.manifest.record_level = "full"
    state.program.entry = "agent:answer"
    state.failures.add(kind="exception", exception_type="ValueError", message="no number")
    path = tmp_path / "program.pplx"
    write_dump(path, state)
    return path.read_bytes()


@pytest.mark.parametrize("options", [{}, {"target": "schedule"}])
async def test_the_answer_names_the_command_that_replays_it(
    server: Server, client: aiohttp.ClientSession, program_dump: bytes, options: dict[str, str]
) -> None:
    headers = upload_headers(server, **options)
    async with client.post(f"{server.url}/debug/replay", headers=headers, data=program_dump) as answer:
        status, body = answer.status, await answer.json()
    assert (status, body["error"]["class"]) == (400, "ProgramDump")
    assert body["error"]["message"].startswith("the dump is that of a program")
    assert body["error"]["remedy"].endswith("--target app=agent:answer")


async def test_a_client_names_no_code_to_run(
    server: Server, client: aiohttp.ClientSession, program_dump: bytes
) -> None:
    for options in ({"target": "app=os:abort"}, {"app_path": ["/tmp"]}, {"handlers": "os:abort"}, {"fork": True}):
        headers = upload_headers(server, **options)
        async with client.post(f"{server.url}/debug/replay", headers=headers, data=program_dump) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["class"] == "UsageError"


async def test_it_is_listed_like_any_other(server: Server, client: aiohttp.ClientSession, program_dump: bytes) -> None:
    path = server.dumps / "program.pplx"
    path.write_bytes(program_dump)
    try:
        async with client.get(f"{server.url}/debug/replay", headers=server.headers) as answer:
            entries = {entry["file"]: entry for entry in (await answer.json())["dumps"]}
        assert entries["program.pplx"]["failure"]["kind"] == "exception"
        assert entries["program.pplx"]["error"] is None
    finally:
        path.unlink()
