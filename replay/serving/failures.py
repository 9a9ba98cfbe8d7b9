"""The failures that the serving side itself states. Those of a step come from the engine."""

from __future__ import annotations

from replay.engine.failure import Failure, FailureKind
from replay.engine.live import LiveScheduler
from replay.engine.request import Request


def timeout_failure(request: Request, scheduler: LiveScheduler) -> Failure:
    """A request that ran past its deadline. The step is the last one that ended."""
    return Failure(
        kind=FailureKind.TIMEOUT,
        invariant="request-timeout",
        message=f"request ran past its deadline after {request.num_output} tokens",
        request_id=request.id,
        step=scheduler.next_step - 1 if scheduler.next_step else None,
        position=request.num_tokens,
    )


def stall_failure(request: Request, scheduler: LiveScheduler) -> Failure:
    """A waiting request that can never be admitted, although nothing else runs."""
    needed = -(-request.num_tokens // scheduler.config.block_size)
    return Failure(
        kind=FailureKind.STALL,
        invariant="admission-possible",
        message=f"request needs {needed} KV blocks, the whole pool has {scheduler.pool.num_blocks}",
        request_id=request.id,
        step=scheduler.next_step - 1 if scheduler.next_step else None,
        position=request.num_tokens,
        seq_len_exceeded_at=request.num_tokens,
    )
