"""The engine in its own thread: commands in through a queue, updates out to the event loop.

Only this thread touches scheduler, executor and recorder, so none of them needs a lock. A step's updates cross to the
loop in one call. Whatever goes wrong in a step ends requests, never the thread.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from replay.engine.engine import StepOutcome
from replay.engine.failure import Failure
from replay.engine.request import FinishCause, FinishReason, Request
from replay.serving.dumping import PastFailure
from replay.serving.failures import stall_failure, timeout_failure
from replay.serving.jobs import Ended, Job, Update, ended
from replay.serving.metrics import Metrics
from replay.serving.session import Session

log = logging.getLogger("pplx.server")

TRACE = 5
"""Log level of PPLX_DEBUG=3: one line for each step."""


class EngineThread:
    """Runs steps while there is work. The public methods may be called from any thread."""

    def __init__(
        self, *, open_session: Callable[[], Session], metrics: Metrics, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._open_session = open_session
        self._session = open_session()
        self._metrics = metrics
        self._loop = loop
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._jobs: dict[Request, Job] = {}
        self._stopping = False
        self._abort_unseen = False
        self._kept_ring = False
        self._past: PastFailure | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._set_gauges()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def session(self) -> Session:
        """The current session. Reading its ring file from another thread is safe, calling into it is not."""
        return self._session

    def start(self) -> None:
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        self._inbox.put(lambda: self._add(jobs))

    def abort(self, jobs: Sequence[Job], cause: FinishCause) -> None:
        """End jobs that have not ended yet. With cause TIMEOUT a dump shows them as they were."""
        self._inbox.put(lambda: self._abort(jobs, cause))

    def dump(self, reason: str) -> Future[str | None]:
        """Write a dump between two steps. The result is its id, None when it could not be written."""
        result: Future[str | None] = Future()
        self._inbox.put(lambda: result.set_result(self._dump(reason)))
        return result

    def stop(self, message: str, dump_id: str | None = None) -> None:
        """Let the thread end. What is in flight ends with an error that says ``message``."""

        def stopping() -> None:
            self._stopping = True
            self._end_all(list(self._jobs.values()), dump_id, message=message, status=503)

        self._inbox.put(stopping)

    def join(self, timeout: float) -> bool:
        """Wait for the thread. False when a step is still running after ``timeout`` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._read_inbox(wait=not (self._session.engine.has_work or self._abort_unseen))
                if not self._stopping:
                    self._step()
        except BaseException:
            log.critical("the engine's thread died", exc_info=True)
            self._end_all(list(self._jobs.values()), None)
            raise
        self._session.close()

    def _read_inbox(self, *, wait: bool) -> None:
        try:
            command = self._inbox.get(block=wait)
            while True:
                command()
                if self._abort_unseen:  # it has to be on record before whatever comes next
                    return
                command = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._jobs[job.request] = job
            self._session.add(job)
            self._metrics.add("pplx_prompt_tokens_total", job.request.num_prompt)
        self._set_gauges()

    def _abort(self, jobs: Iterable[Job], cause: FinishCause) -> None:
        live = []
        for job in jobs:
            if job.request in self._jobs:
                live.append(job)
            else:
                self._abort_unseen |= self._session.abort_again(job.request, cause)
        if not live:
            return
        dump_id = None
        if cause is FinishCause.TIMEOUT:
            # The dump comes before the abort, so that it shows the request with its blocks.
            for job in live:
                self._note_failure(timeout_failure(job.request, self._session.scheduler))
            dump_id = self._session.dump("timeout")
        for job in live:
            self._session.engine.abort(job.request, cause)
        self._abort_unseen = True
        self._finish((job, ended(FinishReason.ABORT, cause, dump_id=dump_id)) for job in live)

    def _step(self) -> None:
        self._abort_unseen = False
        try:
            outcome = self._session.engine.step()
        except Exception as error:
            self._recover(error)
            return
        if outcome is not None:
            self._after_step(outcome)
        elif self._session.scheduler.stuck:
            self._stalled()

    def _after_step(self, outcome: StepOutcome) -> None:
        dump_id = None
        if outcome.failures:
            for failure in outcome.failures:
                self._count_failure(failure)
            dump_id = self._session.dump(outcome.failures[-1].kind.value)
        self._metrics.add("pplx_steps_total")
        if log.isEnabledFor(TRACE):
            _trace(outcome)
        self._metrics.add("pplx_preemptions_total", sum("preempt" in e.outcome for e in outcome.plan.exhausted))
        self._deliver(outcome, dump_id)
        self._set_gauges()

    def _deliver(self, outcome: StepOutcome, dump_id: str | None) -> None:
        failed = {failure.request_id for failure in outcome.failures}
        ends = {
            finish.request: ended(finish.reason, finish.cause, dump_id=dump_id if finish.request.id in failed else None)
            for finish in outcome.finished
        }
        updates: list[tuple[Job, Update]] = []
        for chunk in outcome.plan.chunks:
            sample, job = outcome.samples.get(chunk.request.id), self._jobs.get(chunk.request)
            if sample is not None and sample.finite and job is not None:
                updates.append((job, Update(job.choice, sample.token, ends.pop(chunk.request, None))))
        for request, end in ends.items():
            if (job := self._jobs.get(request)) is not None:
                updates.append((job, Update(job.choice, None, end)))
        self._metrics.add("pplx_output_tokens_total", sum(update.token is not None for _, update in updates))
        self._send(updates)

    def _stalled(self) -> None:
        """End the request that waits for ever, so that those behind it need not."""
        scheduler = self._session.scheduler
        request = scheduler.waiting[0]
        self._note_failure(stall_failure(request, scheduler))
        dump_id = self._session.dump("stall")
        self._session.engine.abort(request, FinishCause.ENGINE_ERROR)
        self._abort_unseen = True
        self._end_all([self._jobs[request]], dump_id, message="The request needs more KV blocks than the server has.")

    def _dump(self, reason: str) -> str | None:
        if self._past is not None:
            log.warning("asked for a dump: %s", self._past.note)
        return self._session.dump(reason, past=self._past)

    def _recover(self, error: Exception) -> None:
        """An exception left the step: dump, end what was running, and begin anew with what was still waiting.

        Scheduler and ring start fresh, so that later dumps never hold a step that has no end.
        """
        log.error("the engine failed: %s", type(error).__name__, exc_info=error)
        session = self._session
        dump_id = session.dump(self._note_exception(error), exception=error)
        self._past = PastFailure.of(error, dump_id)
        untouched = {request for request in session.scheduler.waiting if not request.num_output}
        waiting = [job for request, job in self._jobs.items() if request in untouched]
        lost = [job for request, job in self._jobs.items() if request not in untouched]
        # Of failures that repeat and cannot be dumped one is kept, or their rings would fill the disk.
        keep_ring = dump_id is None and not self._kept_ring
        self._kept_ring |= keep_ring
        session.close(keep_ring=keep_ring)
        self._session = self._open_session()
        for job in waiting:
            self._session.add(job)
        self._end_all(lost, dump_id)
        self._set_gauges()

    def _note_exception(self, error: Exception) -> str:
        """Note the failure that an exception is, then the failed check that it follows from, since the last failure of
        a dump is the one that a replay must show. Returns the kind of that one: the dump's reason."""
        failure = self._session.engine.failure_of(error)
        self._note_failure(failure)
        for failure in self._session.untold():
            self._note_failure(failure)
        cause = self._session.behind(error)
        if cause is not None and cause != failure:  # noted when it was found; its place is the last one
            log.warning("which follows from %s of request %s: %s", cause.kind.value, cause.request_id, cause.message)
            self._session.failed(cause)
            failure = cause
        return failure.kind.value

    def _note_failure(self, failure: Failure) -> None:
        self._count_failure(failure)
        self._session.failed(failure)

    def _count_failure(self, failure: Failure) -> None:
        self._metrics.add("pplx_failures_total", kind=failure.kind.value)
        where = f" of request {failure.request_id}" if failure.request_id else ""
        name = f"{failure.exception_type}: " if failure.exception_type else ""
        log.warning("failure: %s%s: %s%s", failure.kind.value, where, name, failure.message)

    def _end_all(self, jobs: Iterable[Job], dump_id: str | None, *, message: str = "", status: int = 500) -> None:
        end = ended(FinishReason.ERROR, FinishCause.ENGINE_ERROR, message=message, dump_id=dump_id)
        end = replace(end, status=status)
        self._finish((job, end) for job in jobs)

    def _finish(self, ends: Iterable[tuple[Job, Ended]]) -> None:
        self._send([(job, Update(job.choice, None, end)) for job, end in ends])

    def _send(self, updates: list[tuple[Job, Update]]) -> None:
        """Hand updates to the loop, and forget the jobs that end with them."""
        for job, update in updates:
            if (end := update.ended) is not None:
                self._jobs.pop(job.request, None)
                self._session.forget(job.request)
                self._metrics.add("pplx_requests_finished_total", reason=end.reason.value, cause=end.cause.value)
        if not updates:
            return
        try:
            self._loop.call_soon_threadsafe(_put_all, updates)
        except RuntimeError:  # the loop has closed: nobody waits for these any more
            log.debug("dropped %d updates after the loop had closed", len(updates))

    def _set_gauges(self) -> None:
        scheduler = self._session.scheduler
        used, total = scheduler.pool.num_used, scheduler.pool.num_blocks
        self._metrics.set(
            {
                "pplx_requests_running": len(scheduler.running),
                "pplx_requests_waiting": len(scheduler.waiting),
                "pplx_kv_blocks_used": used,
                "pplx_kv_blocks_total": total,
                "pplx_kv_usage_ratio": used / total,
            }
        )


def _trace(outcome: StepOutcome) -> None:
    plan = outcome.plan
    chunks = " ".join(f"{chunk.request.id}[{chunk.start}+{chunk.num_tokens}]" for chunk in plan.chunks)
    log.log(TRACE, "step %d: %s; %d ended", plan.index, chunks or "nothing", len(outcome.finished))


def _put_all(updates: list[tuple[Job, Update]]) -> None:
    for job, update in updates:
        job.sink.put_nowait(update)
