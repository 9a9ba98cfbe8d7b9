"""The engine's loop: plan, execute, commit, one step at a time. Torch-free: the executor brings the model.

A server and a replay drive the same object; they differ in the scheduler and the executor they hand in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from replay.engine.early_exit import Fallback, fallbacks
from replay.engine.failure import Failure, FailureKind, blamed
from replay.engine.live import LiveScheduler
from replay.engine.request import FinishCause, Request
from replay.engine.schedule import Executor, Finish, Sample, StepPlan
from replay.engine.shortage import pool_state
from replay.errors import KVCacheExhausted


@dataclass(slots=True)
class StepOutcome:
    """What a step did. ``finished`` holds everything that ended in it except aborts, which came from outside;
    ``fallbacks`` the decisions to go on that its requests asked to be traced."""

    plan: StepPlan
    samples: dict[str, Sample] = field(default_factory=dict)
    finished: list[Finish] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)


class EngineHooks(Protocol):
    """Watches an engine. Called in its thread, so a hook's time is the step's time."""

    def planned(self, plan: StepPlan) -> None:
        """The step is decided and not yet computed. Called even when planning raised, with what was decided by then."""
        ...

    def stepped(self, outcome: StepOutcome) -> None:
        """The step is over and its blocks may be handed out again by the next one."""
        ...


class FailureWatch(Protocol):
    """Adds evidence to a failure while the blocks of its request still hold their contents."""

    def explain(self, failure: Failure, request: Request) -> Failure: ...


class Engine:
    """Runs steps. Not thread-safe: one thread owns it.

    ``bytes_per_block`` turns block counts into the two numbers that an operator knows, ``kv_cache_used_bytes`` and
    ``max_kv_cache_bytes``; 0 says that it is not known, and then no failure has them.
    """

    def __init__(
        self,
        *,
        scheduler: LiveScheduler,
        executor: Executor,
        bytes_per_block: int = 0,
        hooks: Sequence[EngineHooks] = (),
        watch: FailureWatch | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.bytes_per_block = bytes_per_block
        self._hooks = tuple(hooks)
        self._watch = watch

    def add(self, request: Request) -> None:
        self.scheduler.add(request)

    def abort(self, request: Request, cause: FinishCause) -> None:
        self.scheduler.abort(request, cause)

    @property
    def has_work(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running)

    def step(self) -> StepOutcome | None:
        """Run one step. None when there was nothing to do.

        Whatever planning or the executor raises leaves as it is, after the hooks saw the plan; the scheduler's state is
        then that of the moment before the tokens were committed.
        """
        try:
            plan = self.scheduler.plan()
        except Exception:
            self._show(self.scheduler.unfinished)
            raise
        if plan is None:
            return None
        self._show(plan)
        outcome = StepOutcome(plan)
        outcome.failures.extend(self._truncation(finish, plan) for finish in plan.finished)
        if plan.chunks:
            outcome.samples = self.executor.execute(plan)
        outcome.failures.extend(self._non_finite(outcome))
        used = self.scheduler.pool.num_used
        committed = self.scheduler.commit(plan, outcome.samples)
        outcome.finished = plan.finished + committed
        outcome.fallbacks = fallbacks(plan, outcome.samples)
        outcome.failures.extend(
            self._truncation(finish, plan, used) for finish in committed if finish.cause.truncates_silently
        )
        for hook in self._hooks:
            hook.stepped(outcome)
        return outcome

    def failure_of(self, error: Exception) -> Failure:
        """The failure that an exception out of `step` is. Call it before the scheduler is touched again."""
        plan = self.scheduler.unfinished
        attempt = plan.exhausted[-1] if isinstance(error, KVCacheExhausted) and plan.exhausted else None
        known = blamed(error)
        pool = self.scheduler.pool
        return Failure(
            kind=FailureKind.EXCEPTION,
            invariant="kv-pool-exhausted" if attempt else "",
            exception_type=f"{type(error).__module__}.{type(error).__qualname__}",
            message=str(error),
            request_id=attempt.request.id if attempt else known.request_id if known else None,
            step=plan.index,
            position=attempt.request.num_computed if attempt else known.position if known else None,
            non_finite=known.non_finite if known else None,
            kv_cache_used_bytes=self._bytes(pool.num_used),
            max_kv_cache_bytes=self._bytes(pool.num_blocks),
            seq_len_exceeded_at=attempt.request.num_tokens if attempt else None,
            pool=pool_state(self.scheduler, needed=attempt.blocks_needed) if attempt else None,
        )

    def _bytes(self, blocks: int) -> int | None:
        return blocks * self.bytes_per_block if self.bytes_per_block else None

    def _show(self, plan: StepPlan) -> None:
        for hook in self._hooks:
            hook.planned(plan)

    def _truncation(self, finish: Finish, plan: StepPlan, used_blocks: int | None = None) -> Failure:
        """The failure that a client saw as nothing but ``finish_reason: length``.

        A request cut while planning found the pool full, so all blocks but the free ones it could not use were taken.
        """
        request = finish.request
        if used_blocks is None:
            free = next((e.blocks_free for e in plan.exhausted if e.request is request), 0)
            used_blocks = self.scheduler.pool.num_blocks - free
        return Failure(
            kind=FailureKind.SILENT_TRUNCATION,
            invariant=finish.cause.value,
            message=f"answer cut after {request.num_output} tokens: {finish.cause.value}",
            request_id=request.id,
            step=plan.index,
            position=request.num_computed,
            kv_cache_used_bytes=self._bytes(used_blocks),
            max_kv_cache_bytes=self._bytes(self.scheduler.pool.num_blocks),
            seq_len_exceeded_at=request.num_tokens,
        )

    def _non_finite(self, outcome: StepOutcome) -> list[Failure]:
        failures: list[Failure] = []
        if all(sample.finite for sample in outcome.samples.values()):
            return failures
        for chunk in outcome.plan.chunks:
            request = chunk.request
            sample = outcome.samples.get(request.id)
            if sample is None or sample.finite:
                continue
            failure = Failure(
                kind=FailureKind.NON_FINITE,
                invariant="finite-logits",
                exception_type="replay.errors.NonFiniteLogits",
                message=f"logits of request {request.id} are not finite at position {request.num_tokens}",
                request_id=request.id,
                step=outcome.plan.index,
                position=request.num_tokens,
            )
            failures.append(self._watch.explain(failure, request) if self._watch else failure)
        return failures
