"""Searches in this process: the same jobs, without the seconds that workers take to start."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from replay.fuzz import engine_subject, load_subject, shrink
from replay.fuzz.fuzz import fuzz
from replay.fuzz.options import Options
from replay.fuzz.outcome import Outcome
from replay.fuzz.workers import Workers
from replay.isolate.result import Result
from replay.isolate.worker import load_function
from replay.minimise import minimise as minimiser
from replay.minimise.replays import Replays
from tests.fixture_folders import FIXTURES
from tests.replay.minimise.runs import Here as TrialsHere

KV_OVERFLOW = FIXTURES / "kv-overflow" / "dump.pplx"


EMIT: Any = lambda event: None  # noqa: E731


class WorkersHere(Workers):
    def __init__(self, job_function: str, *, seconds: float, load_s: float) -> None:
        self._function = load_function(job_function)

    def run(self, job: Any) -> Result:
        return Result(report=dict(self._function(dict(job), EMIT)))

    def close(self) -> None: ...


class ReplaysHere(Replays):
    """Replays of whole dumps by the job alone."""

    def replay(self, dump: Path, repeat: int, *, kept: bool = False) -> Result:
        from replay.targets.job import run_job

        return Result(report=run_job({**self.job, "dump": str(dump), "repeat": repeat}, lambda event: None))

    def __exit__(self, *_: object) -> None:
        with self._runner:
            self._runner.run(asyncio.sleep(0))


def stand_in(patch: pytest.MonkeyPatch) -> None:
    for module in (engine_subject, load_subject, shrink):
        patch.setattr(module, "Workers", WorkersHere)
    patch.setattr(minimiser, "Trials", TrialsHere)
    patch.setattr(minimiser, "Replays", ReplaysHere)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def options(folder: Path, *dumps: Path, **changes: Any) -> Options:
    values: dict[str, Any] = {"examples": 30, "seed": 4, **changes}
    return Options(dumps=dumps, out=folder / "found", database=folder / "examples", **values)


def searched(folder: Path, *dumps: Path, **changes: Any) -> Outcome:
    return fuzz(options(folder, *dumps, **changes))
