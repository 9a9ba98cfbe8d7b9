"""Functions of the standard library as a job of their own: no frame of the program stands between it and the thread."""

from __future__ import annotations

import asyncio
import os
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest

from replay.runtime.clock import VirtualClock
from replay.runtime.loop import install
from tests.replay.runtime.file_programs import record, replay


@pytest.fixture
def recorded(folder: Path) -> Path:
    path = folder / "limits.json"
    path.write_text("recorded")
    return path


def replayed_now(calls: Any, program: Any, path: Path, clock: VirtualClock) -> Any:
    """In a replay whose machine has another file of that name."""
    path.write_text("of today")
    (path.parent / "another").touch()
    undo_clock, undo_loop = clock.install(), install(clock)
    try:
        return replay(calls, program)
    finally:
        undo_loop()
        undo_clock()


def test_a_file_read_in_a_thread_of_the_loop_is_the_recorded_one(recorded: Path, clock: VirtualClock) -> None:
    async def main() -> Any:
        return await asyncio.to_thread(Path("limits.json").read_text), await asyncio.to_thread(os.listdir, ".")

    seen, calls = record(lambda: asyncio.run(main()))
    assert seen == ("recorded", ["limits.json"])
    assert replayed_now(calls, lambda: asyncio.run(main()), recorded, clock) == seen


def test_a_file_read_in_a_pool_of_threads_is_the_recorded_one(recorded: Path, clock: VirtualClock) -> None:
    def program() -> Any:
        with ThreadPool(1) as pool:
            return pool.apply(Path("limits.json").read_text), pool.map(os.path.getsize, ["limits.json"])

    seen, calls = record(program)
    assert seen == ("recorded", [8])
    assert replayed_now(calls, program, recorded, clock) == seen
