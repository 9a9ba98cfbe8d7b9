"""The queue of replays: how many run at once, how many may wait, and what they came to.

Workers on other machines, priorities and tenants belong behind this class; the HTTP side only admits and runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from replay.isolate.limits import LOAD_TIMEOUT_S, Limits, default_memory_limit
from replay.isolate.result import Result
from replay.isolate.supervisor import JOB_FUNCTION, OnEvent, supervise
from replay.isolate.warm import WarmWorkers
from replay.isolate.warm_job import WARM_FUNCTION
from replay.server.problems import problem
from replay.verdict import Verdict

RETRY_AFTER_S = 2
GRACE_S = 0.5  # a worker notices its deadline between two steps and tells where; only one that hangs is killed

log = logging.getLogger(__name__)

_VERDICTS = frozenset(verdict.value for verdict in Verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``workers`` replays run at once and ``queue`` more wait; times are seconds, ``memory_limit`` bytes per worker.

    ``warm``: workers are kept for the next replay, see `replay.isolate.warm` for what replays share then.
    """

    timeout_s: float
    load_timeout_s: float = LOAD_TIMEOUT_S
    workers: int = 1
    queue: int = 8
    memory_limit: int | None = None
    warm: bool = True
    job_function: str | None = None


@dataclass(slots=True)
class Counts:
    """``outcomes`` by verdict, or by "error" and its class where there was no report."""

    running: int = 0
    admitted: int = 0
    rejected: int = 0
    abandoned: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)


class Replays:
    """Runs replays in worker processes, bounded. Belongs to one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counts = Counts()
        self._memory_limit = settings.memory_limit or default_memory_limit() // settings.workers
        self._warm: WarmWorkers | None = None
        if settings.warm:
            self._warm = WarmWorkers(at_most=settings.workers, job_function=settings.job_function or WARM_FUNCTION)
        self._free = asyncio.Semaphore(settings.workers)
        self._tasks: set[asyncio.Task[Result]] = set()
        self._closing = False

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """A place in the queue, held from before an upload is read. Raises Problem: 429 when full, 503 when ending."""
        if self._closing:
            raise _ending()
        if self.counts.admitted >= self.settings.workers + self.settings.queue:
            self.counts.rejected += 1
            raise problem(
                429,
                "Busy",
                f"{self.counts.admitted} replays run or wait already",
                remedy="try again later, or start the server with more --workers",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        self.counts.admitted += 1
        try:
            yield
        finally:
            self.counts.admitted -= 1

    async def run(self, job: Mapping[str, Any], *, timeout_s: float, on_event: OnEvent | None = None) -> Result:
        """Wait for a free worker and run ``job`` in it. Cancelling ends the worker. Call it inside `admitted`."""
        task = asyncio.create_task(self._run(job, timeout_s, on_event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            result = await task
        except asyncio.CancelledError:
            # Either `close` cancelled the replay, or somebody cancelled us; then the replay was cancelled along.
            current = asyncio.current_task()
            if current is not None and not current.cancelling():
                raise _ending() from None
            self.counts.abandoned += 1
            raise
        self._count(result)
        return result

    async def close(self) -> None:
        """End every replay, running or waiting, and admit no more."""
        self._closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._warm is not None:
            await self._warm.close()

    async def _run(self, job: Mapping[str, Any], timeout_s: float, on_event: OnEvent | None) -> Result:
        limits = Limits(
            load_timeout_s=self.settings.load_timeout_s,
            timeout_s=timeout_s + GRACE_S,
            memory_bytes=self._memory_limit,
        )
        async with self._free:
            self.counts.running += 1
            try:
                if self._warm is not None:
                    return await self._warm.run(job, on_event=on_event, limits=limits)
                return await supervise(
                    job,
                    on_event=on_event,
                    limits=limits,
                    job_function=self.settings.job_function or JOB_FUNCTION,
                )
            finally:
                self.counts.running -= 1

    def _count(self, result: Result) -> None:
        if result.error is not None:
            outcome = f"error-{result.error.exit_code}"
        else:
            verdict = result.report.get("verdict") if result.report else None
            outcome = verdict if verdict in _VERDICTS else "unknown"
        self.counts.outcomes[outcome] += 1
        log.info("a replay ended: %s", outcome)


def _ending() -> Exception:
    return problem(503, "Ending", "the server is ending", remedy="start it again")
