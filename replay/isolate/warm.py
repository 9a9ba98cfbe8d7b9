"""Workers that outlive their job, so that the next one finds Python, torch and perhaps its model loaded already.

What jobs of one worker share is the process: code, the model's weights and tokenizer, and what a library keeps for
itself. A job gets state of its own for all else: the dump, KV cache, refused attempts, progress and time. A dump that
takes over the process would meet the dumps after it; where that matters, keep no workers. So only a job that ended with
a report leaves its worker alive, and a kept one may read the whole folder that its first dump lay in.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay.isolate import protocol
from replay.isolate.driver import may_use_gpu
from replay.isolate.limits import DEFAULT_LIMITS, Limits
from replay.isolate.process import WorkerProcess
from replay.isolate.result import Result
from replay.isolate.supervisor import EXIT_GRACE_S, OnEvent, Session
from replay.isolate.warm_job import WARM_FUNCTION

IDLE_S = 600.0
MAX_JOBS = 100
MAX_REMEMBERED = 1000
_OF_THE_MODEL = ("model", "kernels", "device", "target")
_SETTINGS_OF_THE_MODEL = "model."


@dataclass(frozen=True, slots=True)
class _Place:
    """What a worker is started for and cannot change: room for a GPU's driver, the folder that it may read, and the
    most memory that it may hold."""

    gpu: bool
    folder: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What can be told of a job before its dump is open. ``model`` is what it says of the model, ``dump`` that and
    which dump it is."""

    place: _Place
    model: str
    dump: str

    @classmethod
    def of(cls, job: Mapping[str, Any], limits: Limits) -> _Wish:
        said = {name: job.get(name) for name in _OF_THE_MODEL}
        said |= {key: value for key, value in (job.get("set") or {}).items() if key.startswith(_SETTINGS_OF_THE_MODEL)}
        model = json.dumps(said, sort_keys=True, default=str)
        path = str(job["dump"])
        place = _Place(may_use_gpu(job), str(Path(path).parent), limits.memory_bytes)
        return cls(place=place, model=model, dump=f"{path} {model}")


@dataclass(slots=True, eq=False)
class _Worker:
    process: WorkerProcess
    place: _Place
    jobs: int = 0
    wanted: str = ""
    loaded: str | None = None  # the key of its model, as it said itself
    idle: asyncio.Task[None] | None = None


class WarmWorkers:
    """At most ``at_most`` workers, busy or idle. Belongs to one event loop.

    A worker is ended after ``idle_s`` without a job, after ``max_jobs`` jobs, and after any job that did not end with a
    report. Its memory is watched as long as it lives.
    """

    def __init__(
        self,
        *,
        at_most: int,
        idle_s: float = IDLE_S,
        max_jobs: int = MAX_JOBS,
        job_function: str = WARM_FUNCTION,
    ) -> None:
        self._at_most = at_most
        self._idle_s = idle_s
        self._max_jobs = max_jobs
        self._job_function = job_function
        self._idle: list[_Worker] = []  # the most recently used one last
        self._busy = 0
        self._closing = False
        # Which model a dump led to is known only after a worker opened it.
        self._led_to: dict[str, str] = {}

    async def run(
        self, job: Mapping[str, Any], *, on_event: OnEvent | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> Result:
        """As `supervise`, in a worker that may have run other jobs. Cancelling ends the worker."""
        frame = protocol.encode(job)
        wish = _Wish.of(job, limits)
        self._busy += 1
        try:
            while True:
                worker = await self._take(wish)
                session, kept = Session(worker.process, on_event=on_event, limits=limits), False
                try:
                    await session.run(frame)
                    worker.jobs += 1
                    kept = self._may_stay(worker, session)
                finally:
                    if not kept:
                        leaves_itself = worker.jobs == self._max_jobs and session.ended_well
                        await worker.process.end(EXIT_GRACE_S if leaves_itself else 0.0)
                if worker.jobs > 1 and session.never_began:
                    continue  # it ended between two jobs: not this one's doing
                self._note(wish, worker, session)
                result = session.result()
                if kept:
                    self._rest(worker)
                return result
        finally:
            self._busy -= 1

    async def close(self) -> None:
        """End the idle ones, and keep no more."""
        self._closing = True
        while self._idle:
            await self._retire(self._idle[-1])

    async def _take(self, wish: _Wish) -> _Worker:
        """An idle worker that is likely to have the model, else a new one while there is room, else any."""
        known = self._led_to.get(wish.dump)
        here = [worker for worker in reversed(self._idle) if worker.place == wish.place]
        best = [worker for worker in here if worker.loaded == known] if known else []
        if not known:
            best = [worker for worker in here if worker.wanted == wish.model]
        full = self._busy + len(self._idle) > self._at_most
        if best or (here and full):
            worker = (best or here)[0]
            self._idle.remove(worker)
            assert worker.idle is not None
            worker.idle.cancel()
            await asyncio.wait([worker.idle])
            return worker
        while self._idle and self._busy + len(self._idle) > self._at_most:
            await self._retire(self._idle[0])
        process = await WorkerProcess.start(
            self._job_function,
            memory_limit=wish.place.memory_bytes,
            gpu=wish.place.gpu,
            jobs=self._max_jobs,
            readable=[wish.place.folder],
        )
        return _Worker(process, wish.place)

    def _may_stay(self, worker: _Worker, session: Session) -> bool:
        well = session.reported and not session.went_on and worker.process.memory_seen is None
        return well and worker.jobs < self._max_jobs and not self._closing

    def _note(self, wish: _Wish, worker: _Worker, session: Session) -> None:
        worker.wanted = wish.model
        if session.loaded:
            worker.loaded = self._led_to[wish.dump] = session.loaded
            if len(self._led_to) > MAX_REMEMBERED:
                del self._led_to[next(iter(self._led_to))]

    def _rest(self, worker: _Worker) -> None:
        self._idle.append(worker)
        worker.idle = asyncio.create_task(self._until_it_goes(worker))

    async def _until_it_goes(self, worker: _Worker) -> None:
        """Wait for the end of an idle worker's time; one that says something unasked, or ends, goes at once."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._idle_s):
                await worker.process.read()
        self._idle.remove(worker)
        await worker.process.end()

    async def _retire(self, worker: _Worker) -> None:
        self._idle.remove(worker)
        assert worker.idle is not None
        worker.idle.cancel()
        await asyncio.wait([worker.idle])
        await worker.process.end()
