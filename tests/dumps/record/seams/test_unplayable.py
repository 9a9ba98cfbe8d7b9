"""What no replay can follow is said while it is recorded, once for each kind."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import platform
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from dumps.record.program import recording
from dumps.record.seams.tools import tool
from tests.loopback import Loopback
from tests.program_dumps import only_dump
from tests.small_programs import says

Program = Callable[[str], object]


def in_a_thread(function: Program, url: str) -> None:
    thread = threading.Thread(target=function, args=(url,), name="fetcher")
    thread.start()
    thread.join()


def by_urllib(url: str) -> None:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url) as answer:
        answer.read()


def by_httpx(url: str) -> None:
    httpx.get(url, trust_env=False)


async def by_a_task(url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.get(url)


def nothing(*_: object) -> None:
    """What another process does."""


def starts(_url: str = "") -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


@tool(replay="answer")
def answered() -> None:
    starts()


def forks(_url: str) -> None:
    process = multiprocessing.get_context("fork").Process(target=nothing)
    process.start()
    process.join()


def recorded(program: Program, folder: Path, *, level: str = "full", answers: int = 1) -> str:
    """What the dump's ledger says of the program."""
    with Loopback(*[says("a")] * answers) as server, recording(folder, level=level) as rec:
        program(server.url)
        rec.dump()
    return next((one.note for one in only_dump(folder).ledger if one.path == "program"), "")


@pytest.mark.parametrize(
    ("program", "note"),
    [
        (lambda url: in_a_thread(by_urllib, url), "a blocking HTTP client in the thread 'fetcher'"),
        (lambda url: in_a_thread(by_httpx, url), "a blocking HTTP client in the thread 'fetcher'"),
        (lambda url: asyncio.run(asyncio.to_thread(by_httpx, url)), "a blocking HTTP client in the thread 'asyncio_0'"),
        (starts, f"subprocess, '{os.path.basename(sys.executable)}'"),
        (lambda _: os.system("true"), "os.system"),
        (forks, "multiprocessing"),
        (lambda _: sqlite3.connect(os.devnull).close(), "a database file"),
    ],
    ids=["urllib", "httpx", "to-thread", "subprocess", "system", "multiprocessing", "sqlite"],
)
def test_it_is_said_once_and_noted_in_the_dump(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, program: Program, note: str
) -> None:
    def twice(url: str) -> None:
        program(url)
        program(url)

    assert note in recorded(twice, tmp_path, answers=2)
    (said,) = [one.getMessage() for one in caplog.records if "no replay will follow" in one.getMessage()]
    assert note in said
    assert "test_unplayable.py:" in said


@pytest.mark.parametrize(
    "program",
    [
        by_httpx,
        lambda url: in_a_thread(lambda url: asyncio.run(by_a_task(url)), url),
        lambda _: platform.processor(),
        lambda _: answered(),
        lambda _: sqlite3.connect(":memory:").close(),
    ],
    ids=["main-thread", "tasks-in-a-thread", "probe", "tool", "in-memory"],
)
def test_what_a_replay_follows_is_no_matter(tmp_path: Path, caplog: pytest.LogCaptureFixture, program: Program) -> None:
    assert recorded(program, tmp_path) == ""
    assert "no replay" not in caplog.text


def test_without_a_replay_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert recorded(starts, tmp_path, level="shape") == ""
    assert "no replay" not in caplog.text


def test_after_the_recording_all_is_as_it_was(tmp_path: Path) -> None:
    before = (subprocess.Popen.__init__, os.system, sqlite3.connect, multiprocessing.Process.start)
    recorded(nothing, tmp_path)
    assert (subprocess.Popen.__init__, os.system, sqlite3.connect, multiprocessing.Process.start) == before
