"""The failures that the serving side states between two steps. Those of a step come from the engine."""

from __future__ import annotations

from replay.engine.failure import Failure, FailureKind
from replay.engine.live import LiveScheduler
from replay.engine.request import Request
from replay.engine.shortage import stall_failure

__all__ = ["stall_failure", "timeout_failure"]


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
