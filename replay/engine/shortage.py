"""Requests that find no room in the KV pool, and what the pool was like at that moment."""

from __future__ import annotations

from replay.engine.failure import Failure, FailureKind, Holder, PoolState
from replay.engine.live import LiveScheduler
from replay.engine.request import Request

POOL_TOO_SMALL = "kv-pool-too-small"
"""Why a request waits that needs more blocks than there are."""


def stall_failure(request: Request, scheduler: LiveScheduler) -> Failure:
    """A scheduler that is `LiveScheduler.stuck`, and the ``request`` that is next and waits for ever.

    The step is the last one that ended, None before the first.
    """
    needed = -(-request.num_tokens // scheduler.config.block_size)
    return Failure(
        kind=FailureKind.STALL,
        invariant="admission-possible",
        message=f"request needs {needed} KV blocks, the whole pool has {scheduler.pool.num_blocks}",
        request_id=request.id,
        step=scheduler.next_step - 1 if scheduler.next_step else None,
        position=request.num_tokens,
        seq_len_exceeded_at=request.num_tokens,
        pool=pool_state(scheduler, needed=needed, wait_reason=POOL_TOO_SMALL),
    )


def pool_state(scheduler: LiveScheduler, *, needed: int, wait_reason: str | None = None) -> PoolState:
    """Who holds what of the pool while a request wants ``needed`` blocks of it."""
    return PoolState(
        wait_reason=wait_reason,
        blocks_needed=needed,
        blocks_free=scheduler.pool.num_free,
        num_blocks=scheduler.pool.num_blocks,
        holders=tuple(
            Holder(request_id=request.id, blocks=len(request.blocks), tokens=request.num_tokens)
            for request in scheduler.running
        ),
    )
