"""The live scheduler: continuous batching with chunked prefill, first come first served.

Each step first gives every running request its next token (or the next piece of its prefill), then admits waiting
requests while the token budget lasts. A request is admitted only when all blocks of its known tokens are free, and
takes them at once; so only decoding can find the pool empty, and `OnExhausted` says what happens then.

With a prefix cache, what is cached of a request's tokens is not computed again, except for its last one, whose logits
are wanted: it shares those blocks, and a block that it will write into it takes as a private copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from replay.engine.block_pool import BlockPool
from replay.engine.defects import NO_DEFECTS, Defects
from replay.engine.failure import Blame, blame
from replay.engine.prefix_cache import PrefixCache
from replay.engine.request import FinishCause, FinishReason, Request, Status
from replay.engine.schedule import (
    Chunk,
    EngineConfig,
    Exhausted,
    Finish,
    OnExhausted,
    Outcome,
    PrefixHit,
    Sample,
    StepPlan,
    StopCheck,
)
from replay.errors import KVCacheExhausted


@dataclass(frozen=True, slots=True)
class Cached:
    """What a waiting request can have: the blocks in ``shared``, and a copy of ``copied_from`` behind them."""

    num_tokens: int
    shared: tuple[int, ...]
    copied_from: int | None


class LiveScheduler:
    """Decides each step from the queues. Owns the requests' status, tokens and block tables, and the pool."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        eos_token_ids: Collection[int] = (),
        stop_check: StopCheck | None = None,
        first_step: int = 0,
        defects: Defects = NO_DEFECTS,
    ) -> None:
        self.config = config
        self.pool = BlockPool(config.num_blocks)
        self.cache = PrefixCache(config.block_size) if config.prefix_cache else None
        self.pool.cache = self.cache
        self.defects = defects
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.next_step = first_step
        self._eos = frozenset(eos_token_ids)
        self._stop_check = stop_check
        self._arrived: list[Request] = []
        self._aborted: list[Finish] = []
        self._abort_error: Exception | None = None
        self.unfinished = StepPlan(index=first_step)

    def add(self, request: Request) -> None:
        self.waiting.append(request)
        self._arrived.append(request)

    def abort(self, request: Request, cause: FinishCause) -> None:
        """End a request from outside. Does nothing when it has finished already.

        Under the defect ``abort_twice`` that is an error, as are blocks that were released before under the request.
        Errors are raised by the next `plan`, so that its step has the abort on record.
        """
        finish = Finish(request, FinishReason.ABORT, cause)
        try:
            if not request.finished:
                self._end(finish)
            elif self.defects.abort_twice:
                raise KeyError(request.id)
            else:
                return
        except (KeyError, ValueError) as error:
            blame(error, Blame(request_id=request.id))
            self._abort_error = self._abort_error or error
        self._aborted.append(finish)

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can run.

        Raises:
            KVCacheExhausted: the pool is empty and the policy is RAISE. `unfinished` holds the plan up to there.
        """
        plan = self._begin()
        budget = self.config.max_num_batched_tokens
        for request in list(self.running):
            if request.status is not Status.RUNNING:  # preempted or truncated a moment ago, for another one's sake
                continue
            budget -= self._schedule(plan, request, min(request.num_tokens - request.num_computed, budget))
        while budget > 0 and self._can_admit():
            request = self._admit(plan)
            budget -= self._schedule(plan, request, min(request.num_tokens - request.num_computed, budget))
        return self._close(plan)

    def commit(self, plan: StepPlan, samples: dict[str, Sample]) -> list[Finish]:
        """Append drawn tokens and end what they end. Returns what finished, in batch order.

        A sample that is not finite ends its request with an error and leaves its tokens as they were.
        """
        finished: list[Finish] = []
        for chunk in plan.chunks:
            request, draws = chunk.request, chunk.samples
            if request.finished:  # aborted between plan and commit
                continue
            request.num_computed = chunk.start + chunk.num_tokens
            sample = samples[request.id] if draws else None
            if self.cache is not None:
                self._remember(self.cache, chunk, spoilt=sample is not None and not sample.finite)
            if sample is None:
                continue
            if sample.finite:
                request.tokens.append(sample.token)
                finish = self._finish_by_token(request, sample)
            else:
                finish = Finish(request, FinishReason.ERROR, FinishCause.NON_FINITE)
            if finish is not None:
                self._end(finish)
                finished.append(finish)
        return finished

    @property
    def stuck(self) -> bool:
        """Whether requests wait and none of them will ever run: nothing runs, so every block is free that will be, and
        still the next one does not fit."""
        return bool(self.waiting) and not self.running and not self._can_admit()

    def check_integrity(self) -> None:
        """Raise AssertionError when an invariant of pool, tables or queues is broken."""
        self.pool.check_integrity(request.blocks for request in self.running)
        for request in self.waiting:
            assert not request.blocks, f"{request.id} waits and holds blocks"
        for request in self.running:
            assert request.num_computed <= len(request.blocks) * self.config.block_size, (
                f"{request.id} outran its blocks"
            )
            if self.cache is None:
                continue
            self.cache.check_table(request, written=not self.defects.register_early)
            for block in request.blocks[request.num_computed // self.config.block_size :]:
                assert self.pool.ref_counts[block] == 1 or self.defects.register_early, (
                    f"{request.id} will write block {block}, which others share"
                )

    # What both schedulers do, whoever decides.

    def _begin(self) -> StepPlan:
        plan = StepPlan(index=self.next_step, arrived=self._arrived, aborted=self._aborted)
        self._arrived, self._aborted = [], []
        self.unfinished = plan
        if self._abort_error is not None:
            raise self._abort_error
        return plan

    def _close(self, plan: StepPlan) -> StepPlan | None:
        """Count the step, unless nothing happened in it at all; then what had arrived is kept for the next one."""
        if not (plan.chunks or plan.finished or plan.aborted or plan.exhausted):
            self._arrived = plan.arrived + self._arrived
            return None
        self.next_step += 1
        return plan

    def _blocks_missing(self, request: Request, num_tokens: int) -> int:
        """Blocks beyond those the request holds that its first ``num_tokens`` tokens need."""
        return -(-num_tokens // self.config.block_size) - len(request.blocks)

    def _can_admit(self) -> bool:
        if not self.waiting or len(self.running) >= self.config.max_num_seqs:
            return False
        return self._fits(self.waiting[0])

    def _fits(self, request: Request) -> bool:
        """Whether all blocks of its known tokens are free, or can be shared with a request that runs."""
        missing = self._blocks_missing(request, request.num_tokens)
        if (cached := self._cached(request)) is not None:
            missing -= sum(self.pool.ref_counts[block] > 0 for block in cached.shared)
        return missing <= self.pool.num_free

    def _cached(self, request: Request) -> Cached | None:
        """What of a waiting request's tokens need not be computed; its last token always is. None for nothing."""
        if self.cache is None or not (found := self.cache.longest_prefix(request)):
            return None
        usable = min(len(found) * self.config.block_size, request.num_tokens - 1)
        whole, rest = divmod(usable, self.config.block_size)
        return Cached(usable, tuple(found[:whole]), found[whole] if rest else None) if usable else None

    def _admit(self, plan: StepPlan, request: Request | None = None) -> Request:
        """Move a request, by default the next one, from waiting to running."""
        request = self.waiting[0] if request is None else request
        self.waiting.remove(request)
        request.status = Status.RUNNING
        if (cached := self._cached(request)) is not None:
            self._share(plan, request, cached)
        self.running.append(request)
        plan.admitted.append(request)
        return request

    def _share(self, plan: StepPlan, request: Request, cached: Cached) -> None:
        """Begin a request with cached blocks. They are taken before any block is handed out, which would evict them.

        The block to be copied need not be held: copies are made before anything is computed, in order. Where it is
        itself what the pool hands out, source and target are one.
        """
        self.pool.share(cached.shared)
        own = self.pool.allocate(1) if cached.copied_from is not None else ()
        blocks = (*cached.shared, *own)
        request.blocks.extend(blocks)
        request.num_computed = cached.num_tokens
        plan.prefix_hits.append(PrefixHit(request, cached.num_tokens, blocks, cached.copied_from))

    def _remember(self, cache: PrefixCache, chunk: Chunk, *, spoilt: bool) -> None:
        """Register the blocks that a chunk has filled. Numbers that are not finite are not handed on: ``spoilt``."""
        request, size = chunk.request, self.config.block_size
        first, stop = chunk.start // size, request.num_computed // size
        if spoilt:
            for block in request.blocks:
                self.pool.evict(block)
        elif first < stop:
            cache.register(request, first, stop)

    def _schedule(self, plan: StepPlan, request: Request, num_tokens: int) -> int:
        """Plan ``num_tokens`` of a running request. Returns how many: 0 when none were wanted or no block was found."""
        if num_tokens <= 0:
            return 0
        missing = self._blocks_missing(request, request.num_tokens)
        while missing > self.pool.num_free:
            if not self._make_room(plan, request, missing):
                return 0
        new_blocks = self.pool.allocate(missing) if missing > 0 else ()
        request.blocks.extend(new_blocks)
        if new_blocks and self.cache is not None and self.defects.register_early:
            self.cache.register(request, len(request.blocks) - len(new_blocks), len(request.blocks))
        plan.chunks.append(Chunk(request, request.num_computed, num_tokens, new_blocks))
        return num_tokens

    def _make_room(self, plan: StepPlan, request: Request, missing: int) -> bool:
        """Apply the exhaustion policy. True when the request may ask again, False when it is out of this step."""
        policy = self.config.on_kv_exhausted
        victim = self.running[-1]
        outcome = {
            OnExhausted.TRUNCATE: Outcome.TRUNCATE,
            OnExhausted.RAISE: Outcome.RAISE,
            OnExhausted.PREEMPT: Outcome.PREEMPT_SELF if victim is request else Outcome.PREEMPT_OTHER,
        }[policy]
        plan.exhausted.append(
            Exhausted(
                request=request,
                blocks_needed=missing,
                blocks_free=self.pool.num_free,
                outcome=outcome,
                victim=victim if outcome is Outcome.PREEMPT_OTHER else None,
                before_chunk=len(plan.chunks),
            )
        )
        if outcome is Outcome.RAISE:
            raise KVCacheExhausted(
                f"request {request.id} needs {missing} more KV block(s) for token {request.num_tokens}, "
                f"{self.pool.num_free} of {self.pool.num_blocks} are free",
                remedy="give the pool more blocks, admit fewer requests, or choose the policy preempt",
            )
        if outcome is Outcome.TRUNCATE:
            finish = Finish(request, FinishReason.LENGTH, FinishCause.KV_POOL_EXHAUSTED)
            self._end(finish)
            plan.finished.append(finish)
            return False
        self._preempt(victim)
        return outcome is Outcome.PREEMPT_OTHER

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks; it waits at the head of the queue to be computed again from its first token."""
        self.pool.release(request.blocks)
        request.blocks = []
        request.num_computed = 0
        request.status = Status.PREEMPTED
        self.running.remove(request)
        self.waiting.appendleft(request)

    def _end(self, finish: Finish) -> None:
        request = finish.request
        if request in self.running:
            self.running.remove(request)
            self.pool.release(request.blocks)
            request.blocks = []
        elif request in self.waiting:
            self.waiting.remove(request)
        if self.cache is not None:
            self.cache.drop(request)
        request.status = Status.FINISHED
        request.finish_reason = finish.reason
        request.finish_cause = finish.cause

    def _finish_by_token(self, request: Request, sample: Sample) -> Finish | None:
        """What the request's last token ends, tried in the order in which a client would explain it."""
        sampling, token, drawn = request.sampling, request.tokens[-1], request.num_output
        if drawn >= sampling.min_tokens:
            if token in self._eos and not sampling.ignore_eos:
                return Finish(request, FinishReason.STOP, FinishCause.EOS)
            if token in sampling.stop_token_ids:
                return Finish(request, FinishReason.STOP, FinishCause.STOP_TOKEN)
            if self._stop_check is not None and (cause := self._stop_check(request)) is not None:
                return Finish(request, FinishReason.STOP, cause)
            if sample.early_exit:
                return Finish(request, FinishReason.STOP, FinishCause.EARLY_EXIT)
        if sampling.max_tokens and drawn >= sampling.max_tokens:
            return Finish(request, FinishReason.LENGTH, FinishCause.MAX_TOKENS)
        if request.num_tokens >= self.config.max_model_len:
            return Finish(request, FinishReason.LENGTH, FinishCause.MAX_MODEL_LEN)
        return None
