"""The flight recorder as a watcher of the engine: plans and outcomes into its records."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from dumps.record.recorder import (
    ExhaustedRecord,
    FallbackRecord,
    FlightRecorder,
    HitRecord,
    KeyframeRecord,
    RunningRecord,
    StepEnd,
    StepStart,
)
from replay.engine.early_exit import Fallback
from replay.engine.engine import StepOutcome
from replay.engine.failure import Failure
from replay.engine.live import LiveScheduler
from replay.engine.request import NO_FLAGS, Request
from replay.engine.schedule import Finish, StepPlan
from replay.serving.jobs import Job

log = logging.getLogger("pplx.server")


class RecorderHook:
    """An `EngineHooks` that records. Requests are known to the recorder by serial numbers.

    A recorder that fails is switched off for good: losing the record must not lose the requests, too.
    """

    def __init__(self, recorder: FlightRecorder, scheduler: LiveScheduler, *, keep_text: bool) -> None:
        self._recorder = recorder
        self._scheduler = scheduler
        self._keep_text = keep_text
        self._serials: dict[Request, int] = {}
        if scheduler.cache is not None:
            scheduler.cache.log = []
        self.broken = False

    def arrived(self, job: Job) -> None:
        """A job was queued. Its serial counts from here on."""
        self._guarded(lambda: self._add(job))

    def planned(self, plan: StepPlan) -> None:
        self._guarded(lambda: self._recorder.begin_step(self._start(plan)))

    def stepped(self, outcome: StepOutcome) -> None:
        def record() -> None:
            self._recorder.end_step(self._end(outcome))
            for failure in outcome.failures:
                self._recorder.failure(self._facts(failure))
            if self._recorder.keyframe_due():
                self._recorder.keyframe(self._keyframe())

        self._guarded(record)
        # Not before the end: if the step raises, its failure is to name the request.
        self._forget((*outcome.plan.aborted, *outcome.finished))

    def failed(self, failure: Failure) -> None:
        """A failure outside of a step's outcome."""
        self._guarded(lambda: self._recorder.failure(self._facts(failure)))

    def close(self, *, clean: bool) -> None:
        self._guarded(lambda: self._recorder.close(clean=clean))

    def knows(self, request: Request) -> bool:
        """Whether a record can still name the request."""
        return request in self._serials

    def _forget(self, finishes: Iterable[Finish]) -> None:
        if self._scheduler.defects.abort_twice:  # one that has ended may still be aborted
            return
        for finish in finishes:
            self._serials.pop(finish.request, None)

    def _guarded(self, record: Callable[[], None]) -> None:
        if self.broken:
            return
        try:
            record()
        except Exception:
            self.broken = True
            log.exception("the flight recorder failed and is off from here on")

    def _add(self, job: Job) -> None:
        request = job.request
        header: dict[str, Any] = {
            "id": request.id,
            "arrival_ns": job.arrival_ns,
            "endpoint": job.endpoint,
            "stream": job.stream,
            "sample_index": request.sample_index,
            "sampling": self._sampling(request),
        }
        if request.flags != NO_FLAGS:
            header["flags"] = {name: value for name, value in asdict(request.flags).items() if value is not None}
        if self._keep_text and job.prompt_text is not None:
            header["prompt_text"] = job.prompt_text
        self._serials[request] = self._recorder.add_request(header, request.tokens[: request.num_prompt])

    def _sampling(self, request: Request) -> Mapping[str, Any]:
        sampling = asdict(request.sampling)
        sampling["logit_bias"] = [{"token_id": token, "bias": bias} for token, bias in request.sampling.logit_bias]
        return sampling

    def _start(self, plan: StepPlan) -> StepStart:
        serials = self._serials
        chunks = plan.chunks
        return StepStart(
            index=plan.index,
            start_ns=time.monotonic_ns(),
            serials=[serials[chunk.request] for chunk in chunks],
            starts=[chunk.start for chunk in chunks],
            counts=[chunk.num_tokens for chunk in chunks],
            new_blocks=[(row, block) for row, chunk in enumerate(chunks) for block in chunk.new_blocks],
            arrived=[serials[request] for request in plan.arrived],
            admitted=[serials[request] for request in plan.admitted],
            aborted=self._ends(plan.aborted),
            exhausted=[
                ExhaustedRecord(
                    serial=serials[entry.request],
                    blocks_needed=entry.blocks_needed,
                    blocks_free=entry.blocks_free,
                    outcome=entry.outcome.value,
                    victim=None if entry.victim is None else serials[entry.victim],
                    before_chunk=entry.before_chunk,
                )
                for entry in plan.exhausted
            ],
            finished=self._ends(plan.finished),
            hits=[HitRecord(serials[h.request], h.num_tokens, h.blocks, h.copied_from) for h in plan.prefix_hits],
        )

    def _end(self, outcome: StepOutcome) -> StepEnd:
        samples = [outcome.samples.get(chunk.request.id) for chunk in outcome.plan.chunks]
        digests = [0 if sample is None or sample.digest is None else sample.digest for sample in samples]
        return StepEnd(
            index=outcome.plan.index,
            tokens=[sample.token if sample is not None and sample.finite else -1 for sample in samples],
            digests=digests if any(sample is not None and sample.digest is not None for sample in samples) else None,
            finished=self._ends(finish for finish in outcome.finished if finish not in outcome.plan.finished),
            fallbacks=[self._fallback(decision) for decision in outcome.fallbacks],
            cached=self._scheduler.cache.take_log() if self._scheduler.cache is not None else (),
        )

    def _fallback(self, decision: Fallback) -> FallbackRecord:
        return FallbackRecord(
            serial=self._serials[decision.request],
            position=decision.position,
            reason=decision.reason.value,
            confidence=decision.confidence.top,
            token=decision.token,
            candidates=decision.confidence.candidates,
        )

    def _ends(self, finishes: Iterable[Finish]) -> list[tuple[int, str, str]]:
        return [(self._serials[end.request], end.reason.value, end.cause.value) for end in finishes]

    def _facts(self, failure: Failure) -> dict[str, Any]:
        facts = asdict(failure)
        request_id = facts.pop("request_id")
        del facts["pool"]  # the requests and steps on record say the same
        facts["kind"] = failure.kind.value
        facts["request"] = next((serial for request, serial in self._serials.items() if request.id == request_id), None)
        return {name: value for name, value in facts.items() if value is not None}

    def _keyframe(self) -> KeyframeRecord:
        scheduler = self._scheduler
        return KeyframeRecord(
            before_step=scheduler.next_step,
            free_blocks=list(scheduler.pool.free),
            running=[
                RunningRecord(self._serials[r], r.num_computed, r.num_output, list(r.blocks)) for r in scheduler.running
            ],
            waiting=[self._serials[request] for request in scheduler.waiting],
            cached=scheduler.cache.entries if scheduler.cache is not None else (),
            outputs=[(self._serials[r], r.num_output) for r in scheduler.waiting if r.num_output],
        )
