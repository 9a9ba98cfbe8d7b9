"""A folder for programs with files, and a virtual clock for programs on a loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from replay.runtime.clock import VirtualClock
from replay.runtime.loop import install
from tests.replay.runtime.real_time import STARTED, WALL, Real


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the program runs."""
    program = tmp_path / "program"
    program.mkdir()
    monkeypatch.chdir(program)
    return program


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(started_ns=STARTED, wall_minus_monotonic_ns=WALL - STARTED, look_ns=0)


@pytest.fixture
def installed(clock: VirtualClock) -> Iterator[VirtualClock]:
    undo_clock, undo_loop = clock.install(), install(clock)
    try:
        yield clock
    finally:
        undo_loop()
        undo_clock()


@pytest.fixture
def quick() -> Iterator[None]:
    """The test may not take long: all that is long in it is virtual."""
    began = Real.monotonic()
    yield
    assert Real.monotonic() - began < 5
