"""The event loop is found from whatever thread asks."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dumps.record.loops import running_loop


def ask_elsewhere() -> asyncio.AbstractEventLoop | None:
    found: list[asyncio.AbstractEventLoop | None] = []
    thread = threading.Thread(target=lambda: found.append(running_loop()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.asyncio
async def test_the_own_one_and_from_another_thread_that_of_the_main_thread():
    loop = asyncio.get_running_loop()
    assert running_loop() is loop
    assert ask_elsewhere() is loop


async def beside(other: asyncio.AbstractEventLoop) -> None:
    """The main thread's comes first."""
    assert ask_elsewhere() is asyncio.get_running_loop() is not other


def test_one_that_runs_in_another_thread_and_none_when_none_does():
    assert running_loop() is None
    began, over = threading.Event(), threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        began.set()
        await asyncio.to_thread(over.wait, 10)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert began.wait(10)
    try:
        assert running_loop() is loops[0]
        asyncio.run(beside(loops[0]))
    finally:
        over.set()
        thread.join()
    assert running_loop() is None
