"""Replays of whole dumps, each isolated, timed and never done twice: the check of what is taken out of a dump, and the
first and last word on any."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from replay.isolate.limits import Limits
from replay.isolate.program import supervise_program
from replay.isolate.result import Result
from replay.isolate.supervisor import supervise
from replay.isolate.warm import WarmWorkers
from replay.minimise.pieces import Content
from replay.minimise.trials import Counts, TimeIsUp
from replay.minimise.work import Work
from replay.targets.app.options import is_app
from replay.verdict import Verdict

GRACE_S = 5.0
IDLE_S = 3600.0


class Replays:
    """``job`` is that of `run_job` or `run_program` without its dump. ``seconds`` is the budget of each replay.

    Use it as a context manager: it has a worker process.
    """

    def __init__(
        self,
        job: Mapping[str, Any],
        work: Work,
        counts: Counts,
        *,
        seconds: float,
        load_s: float,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = dict(job)
        self._work, self._counts = work, counts
        self._seconds, self._load_s = seconds, load_s
        self._deadline, self._clock = deadline, clock
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._kept = WarmWorkers(at_most=1, idle_s=IDLE_S)

    def __enter__(self) -> Replays:
        return self

    def __exit__(self, *_: object) -> None:
        with self._runner:
            self._runner.run(self._kept.close())

    def replay(self, dump: Path, repeat: int, *, kept: bool = False) -> Result:
        """As ``pplx-replay run --repeat``: in a new worker, or in one that is ``kept`` for the next, if it is no
        program's."""
        job = {**self.job, "dump": str(dump.absolute()), "repeat": repeat}
        program = is_app(job.get("target"))
        if program:
            limits = Limits(load_timeout_s=self._load_s, timeout_s=self._seconds)
            return self._runner.run(supervise_program(job, limits=limits))
        job["timeout_s"] = self._seconds * repeat
        limits = Limits(load_timeout_s=self._load_s, timeout_s=job["timeout_s"] + GRACE_S)
        return self._runner.run(self._kept.run(job, limits=limits) if kept else supervise(job, limits=limits))

    def reproduces(self, content: Content) -> bool:
        """Whether a replay of it says so. A worker that dies or hangs says no. Raises TimeIsUp."""
        if self._deadline is not None and self._clock() >= self._deadline:
            raise TimeIsUp
        key = f"replay {content.digest}"
        if (told := self._work.trials.get(key)) is not None:
            self._counts.known += 1
            return told.get("verdict") == Verdict.REPRODUCED
        self._counts.played += 1
        path = self._work.folder / "trial.pplx"
        content.write(path)
        try:
            result = self.replay(path, 1, kept=True)
        finally:
            path.unlink(missing_ok=True)
        if result.report is None:
            self._counts.lost += 1
            return False
        verdict = str(result.report.get("verdict"))
        self._work.tried(key, {"verdict": verdict})
        return verdict == Verdict.REPRODUCED
