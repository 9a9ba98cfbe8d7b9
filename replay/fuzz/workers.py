"""Worker processes that are kept for the examples of a search."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from replay.isolate.limits import Limits
from replay.isolate.result import Result
from replay.isolate.warm import WarmWorkers

GRACE_S = 2.0
"""What a worker gets beyond the time of an example, which looks at its clock between two steps."""

MAX_JOBS = 2_000
"""A new worker now and then: what one job leaves behind may not decide many others."""

IDLE_S = 3600.0


class Workers:
    """One worker of a job function at a time. A job that hangs or dies ends its worker and nothing else."""

    def __init__(self, job_function: str, *, seconds: float, load_s: float) -> None:
        self._limits = Limits(timeout_s=seconds + GRACE_S, load_timeout_s=load_s)
        # With a factory the runner does not make its loop the thread's own.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._pool = WarmWorkers(at_most=1, idle_s=IDLE_S, max_jobs=MAX_JOBS, job_function=job_function)

    def run(self, job: Mapping[str, Any]) -> Result:
        return self._runner.run(self._pool.run(job, limits=self._limits))

    def close(self) -> None:
        with self._runner:
            self._runner.run(self._pool.close())
