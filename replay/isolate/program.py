"""Runs a recorded program again: the program in a worker without torch, its model in a second one.

The program's worker asks for each answer of the model; the question goes on to the model's worker, which is started
with the first one, and the answer comes back the same way. Nothing but these questions passes between the two.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from replay.errors import BudgetSpent, WorkerDied
from replay.isolate.limits import DEFAULT_LIMITS, Limits
from replay.isolate.result import Result, describe_progress
from replay.isolate.stacks import first_app_place
from replay.isolate.supervisor import OnEvent, blocking, supervise
from replay.report import finding

PROGRAM_JOB = "replay.targets.app.job:run_program"
MODEL_JOB = "replay.serving.offline_job:answer_calls"
ANSWER_TIMEOUT_S = 600.0
CLOSE_S = 5.0
_STEPS = "the replayed steps"


async def supervise_program(
    job: Mapping[str, Any], *, on_event: OnEvent | None = None, limits: Limits = DEFAULT_LIMITS
) -> Result:
    """Replay the program of a dump and return how that ended. As `supervise`; the model's time is not the program's.

    With ``repeat`` in the job, so many times, each in a worker of its own; the report counts them.

    A report that holds ``restart`` asks for another worker with the environment variables in it, such as the hash seed
    that the program was recorded with: the dump is opened in the worker only, so nobody knows them before.
    """
    environment: dict[str, str] = {}
    results: list[Result] = []
    repeat = int(job.get("repeat", 1))
    async with ModelWorker(
        {name: job[name] for name in ("model", "device") if job.get(name)},
        on_event=on_event,
        limits=replace(limits, timeout_s=None),
    ) as model:
        while len(results) < repeat:
            before = model.seconds
            result = await supervise(
                {**job, "restarted": bool(environment)},
                on_event=_numbered(on_event, len(results) + 1) if repeat > 1 else on_event,
                limits=limits,
                job_function=PROGRAM_JOB,
                on_ask=model.ask,
                environment=environment,
            )
            restart = result.report.get("restart") if result.report else None
            if not environment and isinstance(restart, dict) and restart:
                environment = {str(name): str(value) for name, value in restart.items()}
                continue
            if result.report is None:
                return _in_terms_of_a_program(result)
            _add_model_time(result.report, model.seconds - before)
            results.append(result)
    return _counted(results)


run_program = blocking(supervise_program)


def _numbered(on_event: OnEvent | None, run: int) -> OnEvent | None:
    """``on_event`` for one of several runs: its events say which."""
    return None if on_event is None else lambda event: on_event({**event, "run": run})


def _in_terms_of_a_program(result: Result) -> Result:
    """A spent budget in words for a program: where it stood, and what to do. So a death: a program has no steps."""
    error = result.error
    if error is not None and error.kind == WorkerDied.__name__ and result.step_started:
        message = error.message.replace(describe_progress(result.progress), "while the program ran")
        return replace(result, error=replace(error, message=message))
    if error is None or error.kind != BudgetSpent.__name__ or not result.step_started:
        return result
    message = error.message.partition("; ended ")[0].replace(_STEPS, "the program")
    if stood := first_app_place(error.evidence):
        message += f"; it stood in {stood}"
    remedy = "raise --timeout; the evidence says where each of its threads stood"
    return replace(result, error=replace(error, message=message, remedy=remedy))


def _add_model_time(report: dict[str, Any], seconds: float) -> None:
    if isinstance(timings := report.get("timings"), dict):
        timings["model_s"] = round(seconds, 4)


def _counted(results: list[Result]) -> Result:
    """The first result that reproduced, else the first, with how many of all did."""
    verdicts = [result.report.get("verdict") if result.report else None for result in results]
    chosen = results[verdicts.index("reproduced") if "reproduced" in verdicts else 0]
    if chosen.report is not None:
        chosen.report["repeat"] = {"n": len(results), "reproduced": verdicts.count("reproduced")}
        if len(set(verdicts)) > 1:
            counted = ", ".join(f"{verdicts.count(one)} x {one}" for one in dict.fromkeys(verdicts))
            message = f"{len(verdicts)} replays of one dump disagree: {counted}"
            chosen.report["findings"].append(finding("not-deterministic", message))
    return chosen


class ModelWorker:
    """The model's side: a worker that answers one request after another. Belongs to one event loop.

    It is started with the first request. Once it has failed to answer it is ended and not started again: each further
    request gets the same error at once.
    """

    def __init__(
        self,
        job: Mapping[str, Any],
        *,
        on_event: OnEvent | None = None,
        limits: Limits = DEFAULT_LIMITS,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        job_function: str = MODEL_JOB,
    ) -> None:
        self._job = job
        self._on_event = on_event
        self._limits = limits
        self._answer_timeout_s = answer_timeout_s
        self._job_function = job_function
        self._worker: asyncio.Task[Result] | None = None
        self._questions: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._problem: dict[str, str] | None = None
        self.seconds = 0.0

    async def __aenter__(self) -> ModelWorker:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._close(0.0 if kind is not None else CLOSE_S)

    async def ask(self, question: dict[str, Any]) -> Mapping[str, Any]:
        """The model's answer, or ``{"error": {"class", "message", "remedy"}}`` where there is none."""
        if self._problem is not None:
            return {"error": self._problem}
        began = time.perf_counter()
        limit = self._answer_timeout_s
        if self._worker is None:
            self._worker = asyncio.create_task(self._run())
            limit += self._limits.load_timeout_s
            self._tell("loading the model")
        else:
            self._tell("the model answers")
        self._answer = asyncio.get_running_loop().create_future()
        self._questions.put_nowait(question)
        waiting: set[asyncio.Future[Any]] = {self._worker, self._answer}
        done, _ = await asyncio.wait(waiting, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        self.seconds += time.perf_counter() - began
        if self._answer in done:
            return self._answer.result()
        self._problem = _why_silent(self._worker, limit)
        await self._close(0.0)
        return {"error": self._problem}

    async def _close(self, grace_s: float) -> None:
        if self._worker is None:
            return
        self._questions.put_nowait({"end": True})
        _, late = await asyncio.wait({self._worker}, timeout=grace_s)
        if late:
            self._worker.cancel()
            await asyncio.wait({self._worker})

    async def _run(self) -> Result:
        return await supervise(self._job, limits=self._limits, job_function=self._job_function, on_ask=self._next)

    async def _next(self, answer: dict[str, Any]) -> Mapping[str, Any]:
        """The worker's side of the exchange: it hands over its last answer and waits for the next question."""
        if self._answer is not None and not self._answer.done() and answer:
            self._answer.set_result(answer)
        return await self._questions.get()

    def _tell(self, stage: str) -> None:
        if self._on_event is not None:
            self._on_event({"event": "progress", "stage": stage, "done": 0, "total": None})


def _why_silent(worker: asyncio.Task[Result], limit_s: float) -> dict[str, str]:
    if not worker.done():
        return {"class": "BudgetSpent", "message": f"the model did not answer within {limit_s:g} s", "remedy": ""}
    if (raised := worker.exception()) is not None:
        return {"class": type(raised).__name__, "message": f"its worker failed: {raised}", "remedy": ""}
    error = worker.result().error
    if error is None:
        return {"class": "WorkerDied", "message": "the model's worker ended without an answer", "remedy": ""}
    return {"class": error.kind, "message": error.message, "remedy": error.remedy}
