"""Runs one job in a child process and turns everything that can happen to it into a Result.

The asynchronous `supervise` is for the server, `run` is the same for a command. Either way the child is gone when they
return, whatever ended them: a report, an error, a limit, cancellation, or Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from typing import Any

from replay.errors import BudgetSpent, ReplayError, WorkerDied
from replay.isolate import limits, protocol
from replay.isolate.driver import may_use_gpu
from replay.isolate.environment import child_environment
from replay.isolate.items import BEGUN, item_event
from replay.isolate.result import (
    Result,
    RunError,
    describe_progress,
    from_error_event,
    from_exception,
    printable_lines,
    progress_event,
    state_isolation,
)

JOB_FUNCTION = "replay.targets.job:run_job"
LOAD_TIMEOUT_S = 120.0
READ_BYTES = 1 << 16
TAIL_BYTES = 1 << 14
EXIT_GRACE_S = 5.0  # from the last frame to the end of the process
DRAIN_S = 1.0  # for the rest of stderr once the process is dead

OnEvent = Callable[[dict[str, Any]], None]


def run(
    job: Mapping[str, Any],
    *,
    on_event: OnEvent | None = None,
    load_timeout_s: float = LOAD_TIMEOUT_S,
    timeout_s: float | None = None,
    memory_limit: int | None = None,
    job_function: str = JOB_FUNCTION,
    items: int = 0,
) -> Result:
    """`supervise` for code outside of any event loop. Ctrl-C ends the child, then raises KeyboardInterrupt."""
    return asyncio.run(
        supervise(
            job,
            on_event=on_event,
            load_timeout_s=load_timeout_s,
            timeout_s=timeout_s,
            memory_limit=memory_limit,
            job_function=job_function,
            items=items,
        )
    )


async def supervise(
    job: Mapping[str, Any],
    *,
    on_event: OnEvent | None = None,
    load_timeout_s: float = LOAD_TIMEOUT_S,
    timeout_s: float | None = None,
    memory_limit: int | None = None,
    job_function: str = JOB_FUNCTION,
    items: int = 0,
) -> Result:
    """Run ``job`` in a worker and return how it ended.

    ``on_event`` gets the progress and step-started events as they come, on this thread. ``timeout_s`` counts from the
    first replayed step (None: no limit), ``load_timeout_s`` until then. ``memory_limit`` is in bytes of memory that
    the worker alone holds; None takes a share of the machine. ``job_function`` is "module:function".

    A job of several ``items`` may tell how each of them ended before its last frame: ``on_event`` gets those item
    events as they come, and each new item that ended gives the others ``timeout_s`` again.

    Nothing the worker does is raised: a timeout is the error BudgetSpent, a death WorkerDied. Raises ProtocolError
    when ``job`` cannot be written as JSON, and what ``on_event`` raises.
    """
    frame = protocol.encode(job)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # a folder the user happens to stand in must not provide modules
        "-X",
        "faulthandler",  # a segmentation fault leaves its stack in the evidence
        "-m",
        "replay.isolate.worker",
        "--job",
        job_function,
        "--parent",
        str(os.getpid()),
        *(["--gpu"] if may_use_gpu(job) else []),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=child_environment(os.environ),
        # A group of its own: Ctrl-C in the terminal reaches us only, and one kill reaches all of it.
        start_new_session=True,
    )
    session = _Session(
        process, on_event, timeout_s, limits.default_memory_limit() if memory_limit is None else memory_limit, items
    )
    return await session.result(frame, load_timeout_s)


class _Session:
    """One worker from its start to its end."""

    def __init__(
        self, process: Process, on_event: OnEvent | None, timeout_s: float | None, memory_limit: int, items: int
    ) -> None:
        self._process = process
        self._on_event = on_event
        self._timeout_s = timeout_s
        self._memory_limit = memory_limit
        self._memory_seen: int | None = None  # set when it was above the limit
        self._tail = bytearray()
        self._progress: dict[str, Any] | None = None
        self._step_started = False
        self._items = items
        self._items_ended: set[int] = set()
        self._last: dict[str, Any] | None = None

    async def result(self, frame: bytes, load_timeout_s: float) -> Result:
        drain = asyncio.create_task(self._keep_tail())
        watch = asyncio.create_task(self._watch_memory())
        problem: ReplayError | None = None
        try:
            async with asyncio.timeout(load_timeout_s) as clock:
                await self._send(frame)
                await self._converse(clock)
        except TimeoutError:
            if not clock.expired():
                raise
            problem = self._budget_spent(load_timeout_s)
        except protocol.ProtocolError as error:
            problem = error
        finally:
            watch.cancel()
            await self._end()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(drain, DRAIN_S)
        return self._conclude(problem)

    async def _send(self, frame: bytes) -> None:
        assert self._process.stdin is not None
        # A worker that dies while it starts shows in the conversation; here it is only a closed pipe.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(frame)
            await self._process.stdin.drain()

    async def _converse(self, clock: asyncio.Timeout) -> None:
        """Read frames until the last one or the end of the stream."""
        assert self._process.stdout is not None
        decoder = protocol.FrameDecoder()
        while data := await self._process.stdout.read(READ_BYTES):
            for event in decoder.feed(data):
                self._take(event, clock)
                if self._last is not None:
                    return

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
            case "report" if isinstance(event.get("report"), dict):
                self._last = event
            case "error":
                self._last = event
            case other:
                raise protocol.ProtocolError(f"the worker sent an event that is not one of ours: {other!r:.80}")

    def _restart(self, clock: asyncio.Timeout) -> None:
        """From now on the steps have their time."""
        now = asyncio.get_running_loop().time()
        clock.reschedule(None if self._timeout_s is None else now + self._timeout_s)

    def _tell(self, event: dict[str, Any]) -> None:
        if self._on_event is not None:
            self._on_event(event)

    async def _keep_tail(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(READ_BYTES):
            self._tail += data
            del self._tail[:-TAIL_BYTES]

    async def _watch_memory(self) -> None:
        while self._process.returncode is None:
            held = limits.held_memory(self._process.pid)
            if held is not None and held > self._memory_limit:
                self._memory_seen = held
                self._kill()
                return
            await asyncio.sleep(limits.WATCH_INTERVAL_S)

    async def _end(self) -> None:
        """Make sure that the process is gone. One that gave its last frame gets a moment to go by itself."""
        if self._last is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), EXIT_GRACE_S)
        self._kill()
        await self._process.wait()

    def _kill(self) -> None:
        # Only while it is not reaped: afterwards the number may belong to somebody else.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _conclude(self, problem: ReplayError | None) -> Result:
        report: dict[str, Any] | None = None
        error: RunError | None = None
        guard: dict[str, Any] = {}
        evidence = printable_lines(self._tail.decode("utf-8", errors="replace"))
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

    def _budget_spent(self, load_timeout_s: float) -> BudgetSpent:
        reached = describe_progress(self._progress)
        if self._step_started:
            return BudgetSpent(
                f"the replayed steps took longer than {self._timeout_s:g} s; ended {reached}",
                remedy="raise --timeout, or replay less with --scope request",
            )
        return BudgetSpent(
            f"loading took longer than {load_timeout_s:g} s; ended {reached}", remedy="raise --load-timeout"
        )

    def _death(self) -> WorkerDied:
        reached = describe_progress(self._progress)
        code = self._process.returncode
        if self._memory_seen is not None:
            return WorkerDied(
                f"the worker was ended {reached}: it held {self._memory_seen >> 20} MiB, "
                f"the limit is {self._memory_limit >> 20} MiB",
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
