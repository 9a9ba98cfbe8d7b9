"""POST and GET /debug/replay of the command itself, with real dumps and broken ones."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dumps.schema.writer import write_dump
from tests.replay.server.server_process import ROOT, Server, make_state, started, upload_headers

Client = aiohttp.ClientSession


async def post(client: Client, server: Server, body: Any) -> tuple[int, dict[str, Any]]:
    async with client.post(f"{server.url}/debug/replay", headers=server.headers, json=body) as answer:
        return answer.status, await answer.json()


async def upload(client: Client, server: Server, data: bytes, **options: Any) -> tuple[int, dict[str, Any]]:
    headers = upload_headers(server, **options)
    async with client.post(f"{server.url}/debug/replay", headers=headers, data=data) as answer:
        return answer.status, await answer.json()


async def listed(client: Client, server: Server) -> dict[str, dict[str, Any]]:
    async with client.get(f"{server.url}/debug/replay", headers=server.headers) as answer:
        assert answer.status == 200
        return {entry["file"]: entry for entry in (await answer.json())["dumps"]}


async def test_the_list_names_what_failed(server: Server, client: Client) -> None:
    entry = (await listed(client, server))["good.pplx"]
    assert entry["id"] == "00000000000000aa"
    assert entry["reason"] == "silent-truncation"
    assert entry["created_ns"] == "1700000000000000000"
    assert entry["failure"]["kind"] == "silent-truncation"
    assert entry["size"] == (server.dumps / "good.pplx").stat().st_size
    assert entry["error"] is None


async def test_broken_dumps_are_listed_with_their_error(server: Server, client: Client) -> None:
    (server.dumps / "cut.pplx").write_bytes((server.dumps / "good.pplx").read_bytes()[:-20])
    (server.dumps / "other.pplx").write_bytes(b"\x89PNG not a dump at all")
    entries = await listed(client, server)
    assert entries["other.pplx"]["error"]["class"] == "BadMagic"
    assert entries["cut.pplx"]["error"]["class"] == "TornDump"
    assert entries["cut.pplx"]["error"]["offset"] is not None
    assert str(server.dumps) not in json.dumps(entries)
    status, body = await post(client, server, {"dump": entries["cut.pplx"]["id"]})
    assert (status, body["error"]["class"]) == (422, "TornDump")


async def test_a_file_that_is_replaced_is_described_anew(server: Server, client: Client) -> None:
    path = server.dumps / "changing.pplx"
    write_dump(path, make_state("00000000000000b1"))
    assert (await listed(client, server))["changing.pplx"]["id"] == "00000000000000b1"
    path.unlink()
    write_dump(path, make_state("00000000000000b2"))
    assert (await listed(client, server))["changing.pplx"]["id"] == "00000000000000b2"


async def test_links_folders_and_other_files_are_not_listed(server: Server, client: Client, tmp_path: Path) -> None:
    outside = tmp_path / "outside.pplx"
    write_dump(outside, make_state("00000000000000cc"))
    (server.dumps / "link.pplx").symlink_to(outside)
    (server.dumps / "folder.pplx").mkdir()
    (server.dumps / "notes.txt").write_text("not a dump")
    entries = await listed(client, server)
    assert not {"link.pplx", "folder.pplx", "notes.txt"} & set(entries)
    assert (await post(client, server, {"dump": "00000000000000cc"}))[0] == 404


async def test_an_id_that_stands_twice_means_one_file_only(server: Server, client: Client) -> None:
    (server.dumps / "copy.pplx").write_bytes((server.dumps / "good.pplx").read_bytes())
    entries = await listed(client, server)
    (server.dumps / "copy.pplx").unlink()
    assert entries["copy.pplx"]["id"] != entries["good.pplx"]["id"]


@pytest.mark.parametrize(
    "dump_id",
    ["../good", "..%2fgood", "/etc/passwd", "good.pplx", "good", "00000000000000AA", "00000000000000aa\n", "",
     "http://127.0.0.1/x", "00000000000000aa/../00000000000000aa", "\u0660" * 16],
)  # fmt: skip
async def test_what_is_no_id_is_refused(server: Server, client: Client, dump_id: str) -> None:
    status, body = await post(client, server, {"dump": dump_id})
    assert (status, body["error"]["class"]) == (400, "BadId")


async def test_an_unknown_id_is_not_found(server: Server, client: Client) -> None:
    assert (await post(client, server, {"dump": "f" * 16}))[0] == 404


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mod": "auto"}, "mode"),
        ({"mode": "fast"}, "strict"),
        ({"mode": ["auto"]}, "mode"),
        ({"set": {"kv.num_block": 3}}, "kv.num_blocks"),
        ({"set": {"kv.num_blocks": True}}, "integer"),
        ({"set": ["kv.num_blocks=3"]}, "object"),
        ({"repeat": 0}, "1000"),
        ({"repeat": True}, "1000"),
        ({"full": "yes"}, "true or false"),
        ({"timeout": -1}, "duration"),
        ({"timeout": "soon"}, "duration"),
        ({"expect": "maybe"}, "reproduced"),
        ({"model": "/etc"}, "not accepted"),
        ({"signature": "/etc/passwd"}, "not accepted"),
        ({"dump": "/etc/passwd"}, "not accepted"),
        ({"target": "endpoint=http://10.0.0.1"}, "not accepted"),
        ({"target": "app=os:system"}, "not accepted"),
        ([], "object"),
    ],
)
async def test_options_are_checked_like_those_of_the_command(
    server: Server, client: Client, options: Any, says: str
) -> None:
    status, body = await post(client, server, {"dump": "00000000000000aa", "options": options})
    assert (status, body["error"]["class"]) == (400, "UsageError")
    assert says in body["error"]["message"] + body["error"]["remedy"]


async def test_options_of_an_upload_are_checked_before_it_is_read(server: Server, client: Client) -> None:
    status, body = await upload(client, server, b"PPLX", modee="auto")
    assert status == 400
    assert "mode" in body["error"]["remedy"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"dump": "a", "dump": "b"}', b'{"dump": NaN}', b"[" * 50_000, b'{"dump": 1}', b'{"dmp": "a"}',
     b'{"dump": "00000000000000aa", "options": {"repeat": ' + b"9" * 5000 + b"}}", b"\xff\xfe"],
)  # fmt: skip
async def test_a_body_that_is_not_strict_json_is_refused(server: Server, client: Client, body: bytes) -> None:
    headers = {**server.headers, "Content-Type": "application/json"}
    async with client.post(f"{server.url}/debug/replay", headers=headers, data=body) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["remedy"]


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"])
async def test_types_a_form_can_send_are_refused(server: Server, client: Client, kind: str) -> None:
    headers = {**server.headers, "Content-Type": kind}
    async with client.post(f"{server.url}/debug/replay", headers=headers, data=b"PPLX") as answer:
        assert answer.status == 415


async def test_query_parameters_are_refused(server: Server, client: Client) -> None:
    url = f"{server.url}/debug/replay?target=schedule"
    async with client.post(url, headers=upload_headers(server), data=b"PPLX") as answer:
        assert answer.status == 400


async def test_a_broken_upload_gets_its_offset_and_remedy(server: Server, client: Client) -> None:
    data = bytearray((server.dumps / "good.pplx").read_bytes())
    data[40] ^= 1
    status, body = await upload(client, server, bytes(data))
    assert status == 422
    assert body["error"]["exit_code"] == 4
    assert body["error"]["offset"] is not None
    assert body["error"]["remedy"]


@pytest.mark.parametrize("data", [b"", b"P", b"PPLX", b"PPLX\x00\x09", b"x" * 1000])
async def test_uploads_that_are_no_dump(server: Server, client: Client, data: bytes) -> None:
    status, body = await upload(client, server, data)
    assert status == 422
    assert "/" not in body["error"]["message"]


async def test_broken_uploads_at_the_same_time(server: Server, client: Client) -> None:
    answers = await asyncio.gather(*(upload(client, server, b"PPLX\x00\x09" + bytes([i])) for i in range(4)))
    assert [status for status, _ in answers] == [422] * 4


@pytest.mark.parametrize("options", [(), ("--dumps", "crashes")], ids=["default", "relative"])
async def test_the_folder_may_be_named_from_where_the_server_is_started(
    client: Client, tmp_path: Path, options: tuple[str, ...]
) -> None:
    folder = tmp_path / "crashes"
    folder.mkdir()
    shutil.copy(ROOT / "fixtures" / "kv-overflow" / "dump.pplx", folder / "one.pplx")
    command = ["-m", "replay.cli", "replay", "serve", "--port", "0", "--json", *options]
    with started(command, folder, cwd=tmp_path if options else folder) as server:
        entry = (await listed(client, server))["one.pplx"]
        assert entry["error"] is None
        status, report = await post(client, server, {"dump": entry["id"], "options": {"target": "schedule"}})
    assert (status, report["target"]) == (200, "schedule")
