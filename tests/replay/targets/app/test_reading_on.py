"""A program that reads on in an answer which the recorded one had let go of: what would have come, nobody knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.loopback import Loopback, Script
from tests.small_programs import SmallPrograms

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECES = [HEAD + b"1\r\na\r\n", b"1\r\nb\r\n", b"1\r\nc\r\n", b"0\r\n\r\n"]

READS = """
    import aiohttp, httpx

    def look(piece, mended):
        if "b" in piece and not mended:
            raise ValueError(piece)

    def blocking(url, mended=False, limit=5):
        with httpx.Client(trust_env=False, timeout=limit) as client, client.stream("GET", url) as answer:
            for piece in answer.iter_text():
                look(piece, mended)

    async def in_tasks(url, mended=False, limit=5):
        client = httpx.AsyncClient(trust_env=False, timeout=limit)
        async with client, client.stream("GET", url) as answer:
            async for piece in answer.aiter_text():
                look(piece, mended)

    async def aio(url, mended=False, limit=5):
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=limit))
        async with session, session.get(url) as answer:
            async for piece in answer.content.iter_any():
                look(piece.decode(), mended)

    def mended_blocking(url, limit=5): blocking(url, True, limit)
    async def mended_in_tasks(url, limit=5): await in_tasks(url, True, limit)
    async def mended_aio(url, limit=5): await aio(url, True, limit)
    def patient_blocking(url, limit): blocking(url, limit=60)
    async def patient_in_tasks(url, limit): await in_tasks(url, limit=60)
    async def patient_aio(url, limit): await aio(url, limit=60)
"""
CLIENTS = ["blocking", "in_tasks", "aio"]


def replayed(programs: SmallPrograms, dump: Path, entry: str) -> dict[str, Any]:
    report = programs.replay(dump, entry).report
    assert report is not None
    return report


@pytest.fixture
def programs(tmp_path: Path) -> SmallPrograms:
    return SmallPrograms(tmp_path)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_stream_that_the_failure_broke_off(programs: SmallPrograms, client: str) -> None:
    """It was taken for silent for ever: the mended program ran into its own timeout, "another failure"."""
    name = programs.write(READS)
    with Loopback(Script(PIECES), pause=0.15) as server:
        dump = programs.record(name, client, url=server.url)
    assert replayed(programs, dump, f"{name}:{client}")["verdict"] == "reproduced"
    report = replayed(programs, dump, f"{name}:mended_{client}")
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "beyond-the-record")
    told = report["findings"][0]
    assert "more of the answer to x1 GET" in told["message"]
    assert "the recorded program had let go of it after" in told["message"]
    assert "Record the program anew" in told["remedy"]


@pytest.mark.parametrize("client", CLIENTS)
def test_an_answer_that_the_clients_timeout_broke_off(programs: SmallPrograms, client: str) -> None:
    name = programs.write(READS)
    dump, _ = programs.record_served(name, Script(PIECES[:1], end="silence"), entry=client, limit=0.3)
    assert replayed(programs, dump, f"{name}:{client}")["verdict"] == "reproduced"
    report = replayed(programs, dump, f"{name}:patient_{client}")
    assert (report["verdict"], report["reason_code"]) == ("inconclusive", "beyond-the-record")
    assert report["timings"]["virtual_s"] < 10
