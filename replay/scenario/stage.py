"""One play: an engine on a scenario, driven as the reference server's engine thread drives it. Torch-free.

Keep it in step with `replay.serving.engine_thread` and `replay.serving.session`: what they do about exceptions, stalls
and aborts, and the order of an engine's hooks, decide which failure comes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from replay.engine.block_checks import BlockChecks
from replay.engine.engine import Engine
from replay.engine.failure import Failure
from replay.engine.live import LiveScheduler
from replay.engine.quirks import code_hooks, defects_of
from replay.engine.request import FinishCause, Request
from replay.scenario.answers import stood_in
from replay.scenario.played import Answered, Ended, Parts, Recorder
from replay.scenario.scenario import Scenario, Visit
from replay.serving.failures import stall_failure, timeout_failure
from replay.signature import Identity, Signature


class Stage:
    """Holds one engine. `run` plays until something says stop, and leaves it as it was at that moment."""

    def __init__(
        self, scenario: Scenario, parts: Parts, recording: Callable[[LiveScheduler], Recorder] | None = None
    ) -> None:
        self.scheduler = LiveScheduler(
            scenario.config,
            eos_token_ids=scenario.eos_token_ids,
            stop_check=parts.stop_check,
            defects=defects_of(scenario.quirks),
        )
        self.recorder = recording(self.scheduler) if recording is not None else None
        self.watch = parts.watching(self.scheduler.running) if parts.watching is not None else None
        self.checks = BlockChecks(self.scheduler, parts.kv) if scenario.checks else None
        self.failures: list[Failure] = []
        self.wanted: Failure | None = None
        self.steps = 0
        self.peak_used_blocks = 0
        hooks = (
            self.watch,
            *code_hooks(scenario.quirks, self.scheduler),
            self.checks,
            *parts.hooks,
            self.recorder,
            *parts.damage,
        )
        self._engine = Engine(
            scheduler=self.scheduler,
            executor=parts.executor,
            bytes_per_block=parts.bytes_per_block,
            hooks=[hook for hook in hooks if hook is not None],
            watch=self.watch,
        )
        self._scenario = scenario
        self._requests: dict[str, Request] = {}
        self._coming = deque(scenario.visits)
        self._leaving = deque(_departures(scenario.visits))
        self._skipped = 0
        self._abort_unseen = False
        self.raised = False
        self._compared = 0

    def run(self, *, wanted: Identity | None, max_steps: int, late: Callable[[], bool]) -> Ended:
        """Play until a failure with the ``wanted`` identity was seen, an exception left a step, nothing is left to do,
        ``max_steps`` were taken, or `late` says so, which is asked before each step."""
        while True:
            self._come()
            self._note_timeouts()
            if self._seen(wanted):
                return Ended.WANTED
            self._leave()
            if not (self._engine.has_work or self._abort_unseen):
                if not self._skip_to_the_next():
                    return Ended.DONE
                continue
            if self.steps >= max_steps:
                return Ended.MAX_STEPS
            if late():
                return Ended.DEADLINE
            stalled = self._step()
            if self._seen(wanted):
                return Ended.WANTED
            if self.raised:
                return Ended.EXCEPTION
            if stalled is not None:
                self._abort(stalled, FinishCause.ENGINE_ERROR)

    @property
    def answers(self) -> tuple[Answered, ...]:
        return tuple(
            Answered(id=request.id, output=tuple(request.output), cause=request.finish_cause)
            for request in self._requests.values()
        )

    @property
    def _now(self) -> int:
        return self.scheduler.next_step + self._skipped

    def _come(self) -> None:
        while self._coming and self._coming[0].arrives <= self._now:
            visit = self._coming.popleft()
            request = Request(
                id=visit.id,
                tokens=stood_in(visit.prompt, self._scenario.vocab_size),
                num_prompt=len(visit.prompt),
                sampling=visit.sampling,
                sample_index=visit.sample_index,
                flags=visit.flags,
            )
            self._requests[visit.id] = request
            if self.recorder is not None:
                self.recorder.came(visit, request)
            self._engine.add(request)

    def _note_timeouts(self) -> None:
        """As a server does before it ends those that are late, so that a dump shows them with their blocks."""
        for step, request_id, cause in self._leaving:
            if step > self._now:
                return
            request = self._requests[request_id]
            if cause is FinishCause.TIMEOUT and not request.finished:
                self._note(timeout_failure(request, self.scheduler))

    def _leave(self) -> None:
        while self._leaving and self._leaving[0][0] <= self._now:
            _, request_id, cause = self._leaving.popleft()
            request = self._requests[request_id]
            if not request.finished or self.scheduler.defects.abort_twice:
                self._abort(request, cause)

    def _abort(self, request: Request, cause: FinishCause) -> None:
        self._engine.abort(request, cause)
        self._abort_unseen = True

    def _skip_to_the_next(self) -> bool:
        """Let idle time pass. False when nobody comes or leaves any more."""
        events = [visit.arrives for visit in list(self._coming)[:1]] + [step for step, _, _ in list(self._leaving)[:1]]
        if not events:
            return False
        self._skipped += min(events) - self._now
        return True

    def _step(self) -> Request | None:
        """Take a step. Returns the request that stalled in it."""
        self._abort_unseen = False
        try:
            outcome = self._engine.step()
        except Exception as error:
            self._note_exception(error)
            self.raised = True
            return None
        if outcome is None:
            if not self._engine.has_work:
                return None
            assert self.scheduler.stuck, "a step did nothing, and there was something to do"
            request = self.scheduler.waiting[0]
            self._note(stall_failure(request, self.scheduler))
            return request
        self.steps += 1
        self.peak_used_blocks = max(self.peak_used_blocks, self.scheduler.pool.num_used)
        self.failures.extend(outcome.failures)
        return None

    def _note_exception(self, error: Exception) -> None:
        """The exception, the failed checks of its step, and last the one that it follows from."""
        failure = self._engine.failure_of(error)
        self._note(failure)
        if self.checks is None:
            return
        for untold in self.checks.untold:
            self._note(untold)
        cause = self.checks.behind(error)
        if cause is not None and cause != self.failures[-1]:
            self._note(cause)

    def _note(self, failure: Failure) -> None:
        self.failures.append(failure)
        if self.recorder is not None:
            self.recorder.failed(failure)

    def _seen(self, wanted: Identity | None) -> bool:
        new, self._compared = self.failures[self._compared :], len(self.failures)
        if wanted is not None:
            self.wanted = next((one for one in reversed(new) if Signature.of(one).identity == wanted), None)
        return self.wanted is not None


def _departures(visits: Sequence[Visit]) -> list[tuple[int, str, FinishCause]]:
    """(step, id, cause) of all aborts from outside, in their order."""
    found = []
    for place, visit in enumerate(visits):
        if visit.leaves is not None:
            found.append(((visit.leaves, visit.leave_rank, place), visit.id, visit.leave_cause))
        if visit.leaves_again is not None:
            found.append(((visit.leaves_again, visit.leave_rank, place), visit.id, FinishCause.CLIENT_GONE))
    return [(key[0], request_id, cause) for key, request_id, cause in sorted(found, key=lambda entry: entry[0])]
