"""Drives an engine along a record: which step to stop at, and what to remember of the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from replay.engine.block_checks import BlockChecks
from replay.engine.engine import Engine, EngineHooks, FailureWatch, StepOutcome
from replay.engine.failure import Failure, FailureKind
from replay.engine.quirks import code_hooks, defects_of
from replay.engine.recorded import RecordedScheduler
from replay.engine.request import FinishCause, Request
from replay.engine.schedule import Executor, Sample, StepPlan, StopCheck
from replay.engine.shortage import stall_failure
from replay.errors import BudgetSpent
from replay.targets.late_aborts import late_aborts
from replay.targets.rebuild import UNKNOWN_TOKEN, Rebuilt, RebuiltOutputs, RecordedOutput

Emit = Callable[[dict[str, Any]], None]

RECORDED_STOPS = frozenset({FinishCause.EOS, FinishCause.STOP_TOKEN, FinishCause.STOP_STRING})


class Deadline:
    """A budget of time that starts when the first step is replayed. ``clock`` gives seconds."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._seconds = seconds
        self._end: float | None = None

    def start(self) -> None:
        if self._end is None and self._seconds is not None:
            self._end = self.clock() + self._seconds

    def check(self, where: str) -> None:
        """Raises `BudgetSpent`."""
        if self._end is not None and self.clock() > self._end:
            raise BudgetSpent(
                f"the replay did not end within {self._seconds:g} s; it had reached {where}",
                remedy="raise --timeout; loading does not count",
            )


class RecordedTokens:
    """An executor without a model: a request draws what it drew when it was recorded.

    One whose logits were not finite then has none that are now, so that its blocks come back as they did. That it
    failed is the record's word and no evidence: see `shown_without_a_model`. One whose answer ended early, by the
    confidence in its last token, ends there again.

    A request that outlives its record, since it found a block where it had found none, is taken to run to its limit.
    ``guessed_from`` is the first step with such a token: what fails after it may never have happened.
    """

    def __init__(self, outputs: RebuiltOutputs) -> None:
        self.guessed_from: int | None = None
        self._outputs = outputs
        self._plain: dict[int, Sample] = {}  # a hundred thousand draws are of a few tokens

    def execute(self, plan: StepPlan) -> dict[str, Sample]:
        drawn = {}
        for chunk in plan.chunks:
            if chunk.samples:
                request = chunk.request
                place, output = request.num_output, self._outputs[request.id]
                sample = drawn[request.id] = self._sample(output, place)
                if self.guessed_from is None and place >= output.num_tokens and sample.finite:
                    self.guessed_from = plan.index
        return drawn

    def _sample(self, output: RecordedOutput, place: int) -> Sample:
        """What was drawn as the answer's token number ``place``."""
        if output.cause is FinishCause.NON_FINITE and place == output.num_tokens:
            return Sample(UNKNOWN_TOKEN, finite=False)
        tokens = output.tokens
        token = tokens[place] if tokens is not None and place < len(tokens) else UNKNOWN_TOKEN
        if output.cause is FinishCause.EARLY_EXIT and place + 1 == output.num_tokens:
            return Sample(token, early_exit=True)
        sample = self._plain.get(token)
        if sample is None:
            sample = self._plain[token] = Sample(token)
        return sample


def shown_without_a_model(failures: list[Failure]) -> list[Failure]:
    """The failures that a replay from recorded tokens has shown by itself."""
    return [failure for failure in failures if failure.kind is not FailureKind.NON_FINITE]


def recorded_stops(outputs: RebuiltOutputs) -> StopCheck:
    """Ends a request where the record says that its text ended it, since without a model nothing else tells."""

    def check(request: Request) -> FinishCause | None:
        output = outputs[request.id]
        ends = request.num_output == output.num_tokens and output.cause in RECORDED_STOPS
        return output.cause if ends else None

    return check


@dataclass(slots=True)
class Trail:
    """What a drive has seen so far. ``ends`` has the step and the cause of each end by request id."""

    failures: list[Failure] = field(default_factory=list)
    steps: int = 0
    peak_used_blocks: int = 0
    exception: Exception | None = None
    ends: dict[str, tuple[int, str]] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)


class Drive:
    """An engine on a record. `run_to` and `run_out` advance it; `trail` remembers."""

    def __init__(
        self,
        rebuilt: Rebuilt,
        *,
        executor: Executor,
        stop_check: StopCheck,
        deadline: Deadline,
        emit: Emit,
        bytes_per_block: int,
        rederive: bool = False,
        watch: FailureWatch | None = None,
        hooks: Sequence[EngineHooks] = (),
        checks: bool = False,
    ) -> None:
        """``hooks`` come after the quirks in force and the ``checks`` of blocks."""
        self.rebuilt = rebuilt
        self.scheduler = RecordedScheduler(
            rebuilt.config,
            rebuilt.steps,
            start=rebuilt.start,
            eos_token_ids=rebuilt.eos_token_ids,
            stop_check=stop_check,
            rederive=rederive,
            defects=defects_of(rebuilt.quirks),
            late=rebuilt.late,
        )
        self.checks = BlockChecks(self.scheduler) if checks else None
        checking = (self.checks,) if self.checks is not None else ()
        self.engine = Engine(
            scheduler=self.scheduler,
            executor=executor,
            bytes_per_block=bytes_per_block,
            watch=watch,
            hooks=(*code_hooks(rebuilt.quirks, self.scheduler), *checking, *hooks),
        )
        self.trail = Trail()
        self._goal = len(rebuilt.steps)
        self._deadline = deadline
        self._emit = emit

    def aim(self, last: int) -> None:
        """Progress counts up to this step."""
        if self.rebuilt.steps:
            self._goal = last + 1 - self.rebuilt.steps[0].index

    def run_to(self, step: int, parted: Callable[[], bool] = lambda: False, *, beside: bool = False) -> None:
        """Follow the record up to, and not including, ``step``, or to where the replay leaves it or has ``parted``.

        ``beside`` goes on also where the schedule is the replay's own, as long as there is a record.
        """
        scheduler = self.scheduler
        while not self.ended and not parted() and scheduler.next_step < step:
            if not (scheduler.following or (beside and not scheduler.record_exhausted)):
                return
            self._step()

    def run_out(self, last: int, request: Request | None, parted: Callable[[], bool] = lambda: False) -> None:
        """Run through step ``last`` of the record, and if a ``request`` is given, on until that has ended.

        Stops at once when this is another run by now, as ``parted`` says.
        """
        self.aim(last)
        while not self.ended and not parted():
            past = self.scheduler.record_exhausted or self.scheduler.next_step > last
            if past and self.rebuilt.stalls and self._at_a_standstill():
                return
            if past and (request is None or request.finished):
                return
            if self._step() is None and self.scheduler.record_exhausted:
                self._stalled()
                return

    def _at_a_standstill(self) -> bool:
        """Whether nothing can go on at the end of the record, all who had come by then counted."""
        self.scheduler.come_late()
        return self._stalled()

    def _stalled(self) -> bool:
        """Note it when nothing runs and the next request fits into no state of the pool: it waits for ever."""
        if self.ended or not self.scheduler.stuck:
            return False
        self.trail.failures.append(stall_failure(self.scheduler.waiting[0], self.scheduler))
        return True

    @property
    def ended(self) -> bool:
        return self.trail.exception is not None

    def _step(self) -> StepOutcome | None:
        before = self.scheduler.next_step
        self._deadline.check(f"step {before}")
        try:
            outcome = self.engine.step()
        except Exception as error:
            self.trail.failures.append(self.engine.failure_of(error))
            if self.checks is not None:
                self.trail.failures.extend(self.checks.untold)
            self.trail.exception = error
            self.trail.findings += late_aborts(self.scheduler.unfinished, self.trail.ends)
            return None
        self.trail.steps += outcome is not None
        self.trail.peak_used_blocks = max(self.trail.peak_used_blocks, self.scheduler.pool.num_used)
        if outcome is not None:
            self.trail.failures.extend(outcome.failures)
            for end in outcome.finished:
                self.trail.ends[end.request.id] = (outcome.plan.index, end.cause.value)
        done = self.scheduler.next_step - (self.rebuilt.steps[0].index if self.rebuilt.steps else 0)
        # Past the record nobody knows how long the failing request will go on.
        total = self._goal if done <= self._goal else None
        self._emit({"event": "progress", "stage": "step", "done": done, "total": total})
        return outcome
