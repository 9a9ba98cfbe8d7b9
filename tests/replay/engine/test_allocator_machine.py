"""Scheduler, block pool and prefix cache keep their invariants in any order of events; a broken one is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from replay.engine.block_pool import BlockPool
from replay.engine.live import LiveScheduler
from replay.engine.request import FinishReason, Status
from replay.engine.schedule import OnExhausted
from tests.replay.engine.allocator_machine import AllocatorMachine

IN_CI, ALL = 2_000, 20_000
RULES = 25
"""Rules taken in a run."""

EVENTS = {
    *("hit", "copy", "share", "evict", "eos", "non-finite"),
    *("abort of one that is waiting", "abort of one that is running"),
    *("abort between plan and commit", "abort after the end"),
}
OF_POLICY = {
    OnExhausted.TRUNCATE: {"truncate"},
    OnExhausted.PREEMPT: {"preempt-self", "preempt-other", "abort of one that is preempted"},
}


def run(steps: int, chosen: OnExhausted, *phases: Phase) -> Counter[str]:
    """Take so many steps, or fail before. Returns what was met."""

    class Counted(AllocatorMachine):
        policy = chosen
        seen: ClassVar[Counter[str]] = Counter()

    how = settings(
        max_examples=steps * 6 // 5 // RULES,  # a run may end early
        stateful_step_count=RULES,
        phases=phases or [Phase.generate, Phase.shrink],
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Counted, settings=how)
    return Counted.seen


@pytest.mark.parametrize("steps", [IN_CI, pytest.param(ALL, marks=pytest.mark.long)])
@pytest.mark.parametrize("policy", OF_POLICY)
def test_the_invariants_hold_in_any_order_of_events(steps, policy):
    seen = run(steps // len(OF_POLICY), policy)
    assert seen["steps"] >= steps // len(OF_POLICY)
    assert not {event for event in EVENTS | OF_POLICY[policy] if not seen[event]}


def frees_without_counting_down(patch: pytest.MonkeyPatch) -> None:
    def release(self: BlockPool, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.free[block] = None

    patch.setattr(BlockPool, "release", release)


def frees_what_others_hold(patch: pytest.MonkeyPatch) -> None:
    real = BlockPool.release

    def release(self: BlockPool, blocks: list[int]) -> None:
        real(self, blocks)
        self.free.update(dict.fromkeys(reversed(blocks)))

    patch.setattr(BlockPool, "release", release)


def forgets_the_blocks_of_an_abort(patch: pytest.MonkeyPatch) -> None:
    real = LiveScheduler._end

    def end(self, finish):
        if finish.reason is FinishReason.ABORT:
            finish.request.blocks = []
        real(self, finish)

    patch.setattr(LiveScheduler, "_end", end)


def shares_blocks_that_are_not_full(patch: pytest.MonkeyPatch) -> None:
    def remember(self, cache, chunk, *, spoilt):
        if not spoilt:
            cache.register(chunk.request, 0, len(chunk.request.blocks))

    patch.setattr(LiveScheduler, "_remember", remember)


def does_not_count_a_hit(patch: pytest.MonkeyPatch) -> None:
    def share(self: BlockPool, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            self.free.pop(block, None)

    patch.setattr(BlockPool, "share", share)


def hands_out_a_block_twice(patch: pytest.MonkeyPatch) -> None:
    real = BlockPool.allocate

    def allocate(self: BlockPool, count: int) -> tuple[int, ...]:
        before = dict(self.free)
        blocks = real(self, count)
        if count == 1:
            self.free.clear()
            self.free.update(before)
        return blocks

    patch.setattr(BlockPool, "allocate", allocate)


def shares_a_block_that_will_be_written(patch: pytest.MonkeyPatch) -> None:
    real = LiveScheduler._share

    def share(self, plan, request, cached):
        if cached.copied_from is None:
            real(self, plan, request, cached)
            return
        blocks = (*cached.shared, cached.copied_from)
        self.pool.share(blocks)
        request.blocks.extend(blocks)
        request.num_computed = cached.num_tokens

    patch.setattr(LiveScheduler, "_share", share)


def keeps_the_hash_of_a_block_that_it_hands_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "evict", lambda self, block: None)


def loses_whom_it_preempts(patch: pytest.MonkeyPatch) -> None:
    def preempt(self, request):
        self.pool.release(request.blocks)
        request.blocks, request.num_computed = [], 0
        request.status = Status.PREEMPTED
        self.running.remove(request)

    patch.setattr(LiveScheduler, "_preempt", preempt)


def never_gets_to_the_last_token(patch: pytest.MonkeyPatch) -> None:
    real = LiveScheduler._schedule

    def schedule(self, plan, request, num_tokens):
        return real(self, plan, request, min(num_tokens, request.num_tokens - 1 - request.num_computed))

    patch.setattr(LiveScheduler, "_schedule", schedule)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (frees_without_counting_down, "reference counts"),
        (frees_what_others_hold, "free list|aliasing"),
        (forgets_the_blocks_of_an_abort, "leak"),
        (shares_blocks_that_are_not_full, "cache"),
        (does_not_count_a_hit, "reference counts|released more often"),
        (hands_out_a_block_twice, "aliasing|free list"),
        (shares_a_block_that_will_be_written, "aliasing"),
        (keeps_the_hash_of_a_block_that_it_hands_out, "cache|slot"),
        (loses_whom_it_preempts, "queues"),
        (never_gets_to_the_last_token, "never ends"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_broken_invariant_is_found_and_named(monkeypatch, broken: Callable[[pytest.MonkeyPatch], None], told):
    broken(monkeypatch)
    with pytest.raises((AssertionError, ValueError), match=told):  # noqa: PT012 - one policy shows what the other one does not
        for policy in OF_POLICY:
            run(IN_CI // len(OF_POLICY), policy, Phase.generate)
