"""Replays that hang, die or are left: each ends alone, and the next one works."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.processes import is_gone
from tests.replay.server.server_process import Server, upload_headers

Client = aiohttp.ClientSession


async def upload(client: Client, server: Server, text: str, **options: Any) -> tuple[int, dict[str, Any]]:
    headers = upload_headers(server, **options)
    async with client.post(f"{server.url}/debug/replay", headers=headers, data=text.encode()) as answer:
        return answer.status, await answer.json()


async def events(answer: aiohttp.ClientResponse) -> list[tuple[str, Any]]:
    assert answer.headers["Content-Type"] == "text/event-stream"
    return [parsed async for parsed in each_event(answer)]


async def each_event(answer: aiohttp.ClientResponse) -> Any:
    name = ""
    async for line in answer.content:
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


def stream_headers(server: Server, **options: Any) -> dict[str, str]:
    return {**upload_headers(server, **options), "Accept": "text/event-stream"}


async def metric(client: Client, server: Server, name: str) -> int:
    async with client.get(f"{server.url}/metrics", headers=server.headers) as answer:
        lines = (await answer.text()).splitlines()
    return int(next((line.rpartition(" ")[2] for line in lines if line.startswith(name + " ")), "0"))


async def wait_metric(client: Client, server: Server, name: str, value: int) -> None:
    async with asyncio.timeout(30):
        while await metric(client, server, name) != value:
            await asyncio.sleep(0.01)


async def wait_gone(pid: int) -> None:
    async with asyncio.timeout(30):
        while not is_gone(pid):
            await asyncio.sleep(0.01)


async def test_a_report_is_200_whatever_its_verdict(strange_server: Server, client: Client) -> None:
    headers = upload_headers(strange_server, target="schedule", timeout="200ms", expect="not-reproduced")
    url = f"{strange_server.url}/debug/replay"
    async with client.post(url, headers=headers, data="ok ü".encode()) as answer:
        assert answer.status == 200
        assert answer.headers["X-PPLX-Exit-Code"] == "0"
        body = await answer.json()
    assert body["verdict"] == "not-reproduced"
    assert body["text"] == "ü"
    assert body["job"] == {"target": "schedule", "timeout_s": 0.2}


async def test_a_client_cannot_ask_for_more_time_than_the_server_gives(strange_server: Server, client: Client) -> None:
    _, body = await upload(client, strange_server, "ok", timeout="1h")
    assert body["job"]["timeout_s"] == 1


async def test_a_hang_is_ended_by_the_timeout_and_the_next_replay_works(strange_server: Server, client: Client) -> None:
    status, body = await upload(client, strange_server, "hang")
    assert status == 504
    assert body["verdict"] == "inconclusive"
    assert body["reason_code"] == "budget-spent"
    assert body["error"]["exit_code"] == 21
    await wait_gone(body["progress"]["done"])
    assert (await upload(client, strange_server, "ok"))[0] == 200
    assert await metric(client, strange_server, "pplx_replay_timeouts_total") == 1


async def test_a_death_is_an_answer_and_the_next_replay_works(strange_server: Server, client: Client) -> None:
    status, body = await upload(client, strange_server, "abort")
    assert status == 500
    assert body["error"]["class"] == "WorkerDied"
    assert "SIGABRT" in body["error"]["message"]
    assert "server_jobs.py" in body["evidence"]
    assert (await upload(client, strange_server, "ok"))[0] == 200


async def test_an_upload_is_private_and_gone_afterwards(strange_server: Server, client: Client) -> None:
    status, body = await upload(client, strange_server, "stat")
    assert status == 200
    assert body["modes"] == ["0o100600", "0o40700"]
    assert not Path(body["path"]).exists()
    assert not Path(body["path"]).is_relative_to(strange_server.dumps)


async def test_errors_do_not_tell_where_an_upload_lay(strange_server: Server, client: Client) -> None:
    status, body = await upload(client, strange_server, "message")
    assert status == 500
    assert "something about UPLOAD" in body["error"]["message"]
    assert "pplx-serve-" not in json.dumps(body)


async def test_an_upload_above_the_limit_is_refused(strange_server: Server, client: Client) -> None:
    async def chunks() -> Any:
        for _ in range(40):
            yield b"x" * (1 << 16)

    url, headers = f"{strange_server.url}/debug/replay", upload_headers(strange_server)
    async with client.post(url, headers=headers, data=chunks()) as answer:
        assert answer.status == 413
    with_length = {**headers, "Content-Length": str(1 << 40)}
    async with client.post(url, headers=with_length, data=chunks()) as answer:
        assert answer.status == 413
        assert answer.headers["Connection"] == "close"
    assert (await upload(client, strange_server, "ok"))[0] == 200


async def test_a_stream_tells_progress_and_ends_with_the_report(strange_server: Server, client: Client) -> None:
    url = f"{strange_server.url}/debug/replay"
    async with client.post(url, headers=stream_headers(strange_server), data=b"ok line\nbreak") as answer:
        seen = await events(answer)
    names = [name for name, _ in seen]
    assert names[-1] == "report"
    assert "step-started" in names
    assert "progress" in names
    assert seen[-1][1]["text"] == "line\nbreak"


async def test_a_stream_ends_with_the_error_and_its_status(strange_server: Server, client: Client) -> None:
    url = f"{strange_server.url}/debug/replay"
    async with client.post(url, headers=stream_headers(strange_server), data=b"hang") as answer:
        assert answer.status == 200
        name, data = (await events(answer))[-1]
    assert name == "error"
    assert data["status"] == 504
    assert data["error"]["class"] == "BudgetSpent"


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_goes_away_ends_its_replay(
    strange_server: Server, client: Client, tmp_path: Path, streaming: bool
) -> None:
    url = f"{strange_server.url}/debug/replay"
    held = tmp_path / "held"
    held.touch()
    headers = (stream_headers if streaming else upload_headers)(strange_server)
    task = asyncio.create_task(client.post(url, headers=headers, data=f"wait {held}".encode()).__aenter__())
    await wait_metric(client, strange_server, "pplx_replay_running", 1)
    if streaming:
        answer = await task
        answer.close()
    else:
        task.cancel()
        await asyncio.wait([task])
    await wait_metric(client, strange_server, "pplx_replay_running", 0)
    assert await metric(client, strange_server, "pplx_replay_abandoned_total") == 1
    assert await metric(client, strange_server, "pplx_replay_timeouts_total") == 0
    assert (await upload(client, strange_server, "ok"))[0] == 200


async def test_a_full_queue_says_so(strange_server: Server, client: Client, tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.touch()
    first = asyncio.create_task(upload(client, strange_server, f"wait {held}"))
    await wait_metric(client, strange_server, "pplx_replay_running", 1)
    second = asyncio.create_task(upload(client, strange_server, "ok"))
    await wait_metric(client, strange_server, "pplx_replay_admitted", 2)
    url = f"{strange_server.url}/debug/replay"
    async with client.post(url, headers=upload_headers(strange_server), data=b"ok") as answer:
        assert answer.status == 429
        assert int(answer.headers["Retry-After"]) > 0
    held.unlink()
    assert (await first)[0] == 200
    assert (await second)[0] == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_a_server_that_ends_takes_its_replays_along(
    strange_server: Server, client: Client, number: signal.Signals
) -> None:
    url = f"{strange_server.url}/debug/replay"
    async with client.post(url, headers=stream_headers(strange_server), data=b"hang") as answer:
        pid = 0
        async for name, data in each_event(answer):
            if name == "progress" and data["stage"] == "pid":
                pid = data["done"]
                break
        assert not is_gone(pid)
        strange_server.process.send_signal(number)
        began = time.monotonic()
        code = await asyncio.to_thread(strange_server.process.wait, 30)
        assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0)
        assert time.monotonic() - began < 20
    await wait_gone(pid)
