"""Replays of one dump with changes, each isolated and timed as those of ``pplx-replay run``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from replay.isolate.limits import Limits
from replay.isolate.program import supervise_program
from replay.isolate.result import Result
from replay.isolate.supervisor import OnEvent
from replay.isolate.warm import WarmWorkers
from replay.targets.app.options import is_app
from replay.why.change import Change
from replay.why.options import Options
from replay.why.worker_job import NUMBERS, WORKER_FUNCTION

GRACE_S = 5.0
"""What a worker gets beyond the time of its steps, which it looks at itself between two of them."""

IDLE_S = 3600.0
MAX_JOBS = 100_000


class TimeIsUp(Exception):
    """The time for all replays is used. What they said stands."""


class Trials:
    """Replays until the time of ``options`` is used. Use it as a context manager: it has a worker process.

    All replays of an engine run in one worker, one after another: they are of one dump and one model. A worker that
    dies or hangs costs its own replay only. A program gets a worker of its own each time.
    """

    def __init__(
        self,
        options: Options,
        *,
        on_event: OnEvent | None = None,
        clock: Callable[[], float] = time.monotonic,
        job_function: str = WORKER_FUNCTION,
    ) -> None:
        self.options = options
        self.clock = clock
        self._on_event = on_event
        self._deadline = None if options.time_s is None else clock() + options.time_s
        # With a factory the runner does not make its loop the thread's own.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._workers = WarmWorkers(at_most=1, idle_s=IDLE_S, max_jobs=MAX_JOBS, job_function=job_function)

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        with self._runner:
            self._runner.run(self._workers.close())

    def check_time(self) -> None:
        """Raises TimeIsUp."""
        if self._deadline is not None and self.clock() >= self._deadline:
            raise TimeIsUp

    def as_recorded(self, target: str) -> Result:
        """The dump without a change, so often as it must reproduce."""
        return self.replay({**self.options.job(target), "repeat": self.options.repeat}, self.options.repeat)

    def changed(self, target: str, changes: Sequence[Change]) -> Result:
        """Raises TimeIsUp."""
        self.check_time()
        job = self.options.job(target)
        for change in changes:
            job = change.applied(job)
        return self.replay(job)

    def numbers(self) -> Result:
        """What `replay.why.numbers_job` computes. Raises TimeIsUp."""
        self.check_time()
        return self.replay({**self.options.job("inference"), NUMBERS: True})

    def replay(self, job: dict[str, Any], times: int = 1) -> Result:
        load_s = self.options.load_s
        if is_app(job["target"]):
            # The time of a program is that of each of its runs.
            limits = Limits(load_timeout_s=load_s, timeout_s=self.options.trial_s)
            return self._runner.run(supervise_program(job, on_event=self._on_event, limits=limits))
        limits = Limits(load_timeout_s=load_s, timeout_s=self.options.trial_s * times + GRACE_S)
        job = {**job, "timeout_s": self.options.trial_s}
        return self._runner.run(self._workers.run(job, on_event=self._on_event, limits=limits))
