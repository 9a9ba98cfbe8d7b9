"""Runs one job in a child process and turns everything that can happen to it into a Result.

The asynchronous `supervise` is for the server, `run` is the same for a command. Either way the child is gone when they
return, whatever ended them: a report, an error, a limit, cancellation, or Ctrl-C.
"""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, ParamSpec, TypeVar

from replay.errors import BudgetSpent, ReplayError, WorkerDied
from replay.isolate import protocol
from replay.isolate.driver import may_use_gpu
from replay.isolate.items import BEGUN, item_event
from replay.isolate.limits import DEFAULT_LIMITS, Limits
from replay.isolate.process import WorkerProcess
from replay.isolate.result import (
    Result,
    RunError,
    describe_progress,
    from_error_event,
    from_exception,
    progress_event,
    state_isolation,
)

JOB_FUNCTION = "replay.targets.job:run_job"
MAX_KEY = 100  # characters
EXIT_GRACE_S = 5.0  # from the last frame to the end of the process

OnEvent = Callable[[dict[str, Any]], None]
OnAsk = Callable[[dict[str, Any]], Awaitable[Mapping[str, Any]]]

P = ParamSpec("P")
T = TypeVar("T")


def blocking(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """``function`` for code outside of any event loop. Ctrl-C cancels it, then raises KeyboardInterrupt."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return asyncio.run(function(*args, **kwargs))

    return call


async def supervise(
    job: Mapping[str, Any],
    *,
    on_event: OnEvent | None = None,
    limits: Limits = DEFAULT_LIMITS,
    job_function: str = JOB_FUNCTION,
    items: int = 0,
    on_ask: OnAsk | None = None,
    environment: Mapping[str, str] | None = None,
) -> Result:
    """Run ``job`` in a worker and return how it ended.

    ``on_event`` gets the progress and step-started events as they come, on this thread. ``job_function`` is
    "module:function".

    A job of several ``items`` may tell how each of them ended before its last frame: ``on_event`` gets those item
    events as they come, and each new item that ended gives the others ``limits.timeout_s`` again.

    ``on_ask`` answers what the job asks (`replay.isolate.worker.Channel.ask`); no time of the job's passes meanwhile.
    ``environment`` is added to the worker's variables, as far as `replay.isolate.environment.added` lets it.

    Nothing the worker does is raised: a timeout is the error BudgetSpent, with the stacks it was ended in as evidence,
    a death WorkerDied. Raises ProtocolError when ``job`` cannot be written as JSON, and what ``on_event`` raises.
    """
    frame = protocol.encode(job)
    worker = await WorkerProcess.start(
        job_function, memory_limit=limits.memory_bytes, gpu=may_use_gpu(job), environment=environment
    )
    session = Session(worker, on_event=on_event, limits=limits, items=items, on_ask=on_ask)
    try:
        await session.run(frame)
    finally:
        await worker.end(EXIT_GRACE_S if session.ended_well else 0.0)
    return session.result()


run = blocking(supervise)


class Session:
    """One job in a worker: everything that is said about it, and what it comes to. The worker watches its memory."""

    def __init__(
        self,
        worker: WorkerProcess,
        *,
        on_event: OnEvent | None,
        limits: Limits,
        items: int = 0,
        on_ask: OnAsk | None = None,
    ) -> None:
        self._worker = worker
        self._on_event = on_event
        self._limits = limits
        self._progress: dict[str, Any] | None = None
        self._step_started = False
        self._items = items
        self._on_ask = on_ask
        self._items_ended: set[int] = set()
        self._last: dict[str, Any] | None = None
        self._problem: ReplayError | None = None
        self.went_on = False  # it said more after its last word
        self.loaded: str | None = None
        """The key of the model that the worker holds now, where it said so: see `replay.isolate.warm_job`."""

    @property
    def ended_well(self) -> bool:
        """Whether the last frame came and nothing was wrong up to it."""
        return self._last is not None and self._problem is None

    @property
    def reported(self) -> bool:
        return self.ended_well and self._last is not None and self._last["event"] == "report"

    @property
    def never_began(self) -> bool:
        """Whether the worker ended before it said anything about the job."""
        return not (self._last or self._problem or self._progress or self._step_started)

    async def run(self, frame: bytes) -> None:
        """Send the job and follow it to its last frame, its death or the end of its time. The worker is left as it is.

        Raises what ``on_event`` and ``on_ask`` raise.
        """
        try:
            async with asyncio.timeout(self._limits.load_timeout_s) as clock:
                await self._worker.send(frame)
                await self._converse(clock)
        except TimeoutError:
            if not clock.expired():
                raise
            self._problem = self._budget_spent()
            await self._worker.ask_stack()
        except protocol.ProtocolError as error:
            self._problem = error

    async def _converse(self, clock: asyncio.Timeout) -> None:
        """Read frames until the last one or the end of the stream."""
        decoder = protocol.FrameDecoder()
        while data := await self._worker.read():
            for event in decoder.feed(data):
                if self._last is not None:
                    self.went_on = True
                    return
                if event.get("event") == "ask":
                    await self._answer(event, clock)
                else:
                    self._take(event, clock)
            if self._last is not None:
                self.went_on = decoder.pending > 0
                return

    async def _answer(self, event: dict[str, Any], clock: asyncio.Timeout) -> None:
        question = event.get("question")
        if self._on_ask is None or not isinstance(question, dict):
            raise protocol.ProtocolError("the worker asked something that nobody answers here")
        loop = asyncio.get_running_loop()
        until = clock.when()
        left = None if until is None else until - loop.time()
        clock.reschedule(None)
        answer = await self._on_ask(question)
        clock.reschedule(None if left is None else loop.time() + left)
        await self._worker.send(protocol.encode({"answer": answer}))

    def _take(self, event: dict[str, Any], clock: asyncio.Timeout) -> None:
        match event.get("event"):
            case "progress" if (progress := progress_event(event)) is not None:
                self._progress = progress
                self._tell(progress)
            case "step-started":
                if not self._step_started:
                    self._step_started = True
                    self._restart(clock)
                    self._tell({"event": "step-started"})
            case "item" if (item := item_event(event, self._items)) is not None:
                if item["state"] != BEGUN and item["index"] not in self._items_ended:
                    self._items_ended.add(item["index"])
                    if self._step_started:
                        self._restart(clock)
                self._tell(item)
            case "loaded" if isinstance(key := event.get("key"), str) and len(key) <= MAX_KEY:
                self.loaded = key
            case "report" if isinstance(event.get("report"), dict):
                self._last = event
            case "error":
                self._last = event
            case other:
                raise protocol.ProtocolError(f"the worker sent an event that is not one of ours: {other!r:.80}")

    def _restart(self, clock: asyncio.Timeout) -> None:
        """From now on the steps have their time."""
        now, timeout_s = asyncio.get_running_loop().time(), self._limits.timeout_s
        clock.reschedule(None if timeout_s is None else now + timeout_s)

    def _tell(self, event: dict[str, Any]) -> None:
        if self._on_event is not None:
            self._on_event(event)

    def result(self) -> Result:
        """What the job came to. A worker that did not end it well has to be gone by then."""
        problem = self._problem
        report: dict[str, Any] | None = None
        error: RunError | None = None
        guard: dict[str, Any] = {}
        evidence = self._worker.evidence
        if problem is not None:
            error = from_exception(problem, evidence=evidence)
        elif self._last is None:
            error = from_exception(self._death(), evidence=evidence)
        elif self._last["event"] == "report":
            report = self._last["report"]
        else:
            error = from_error_event(self._last)
        if self._last is not None and isinstance(self._last.get("guard"), dict):
            guard = self._last["guard"]
        if report is not None:
            state_isolation(report, guard)
        return Result(report=report, error=error, guard=guard, progress=self._progress, step_started=self._step_started)

    def _budget_spent(self) -> BudgetSpent:
        reached = describe_progress(self._progress)
        if self._step_started:
            return BudgetSpent(
                f"the replayed steps took longer than {self._limits.timeout_s:g} s; ended {reached}",
                remedy="raise --timeout, or replay less with --scope request",
            )
        return BudgetSpent(
            f"loading took longer than {self._limits.load_timeout_s:g} s; ended {reached}",
            remedy="raise --load-timeout",
        )

    def _death(self) -> WorkerDied:
        reached = describe_progress(self._progress)
        code = self._worker.returncode
        if self._worker.memory_seen is not None:
            return WorkerDied(
                f"the worker was ended {reached}: it held {self._worker.memory_seen >> 20} MiB, "
                f"the limit is {self._worker.memory_limit >> 20} MiB",
                remedy="replay less with --scope request, or allow more memory",
            )
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            hint = " (the system may have run out of memory)" if -code == signal.SIGKILL else ""
            return WorkerDied(
                f"the worker was ended by {name}{hint} {reached}", remedy="the evidence holds the end of its stderr"
            )
        return WorkerDied(
            f"the worker exited with code {code} and no report {reached}",
            remedy="the evidence holds the end of its stderr",
        )
