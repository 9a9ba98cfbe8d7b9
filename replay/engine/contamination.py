"""A slot or block that was not what its request takes it for, as a failure: the rule that it broke, and evidence."""

from __future__ import annotations

from replay.engine.failure import Failure, FailureKind, SlotRead
from replay.engine.request import Request


def misread(request: Request, step: int, position: int, read: SlotRead, *, free: bool, unwritten: bool) -> Failure:
    """``free``: nothing refers to its block; ``unwritten``: not since its block was handed out."""
    where = _reads(request, position, read)
    if free:
        return _failure("slot-freed", f"{where}, and the block is free", request, step, position, read)
    if unwritten:
        message = f"{where}, not written since the block was handed out"
        return _failure("slot-unwritten", message, request, step, position, read)
    message = f"{where}, which holds position {read.writer_position} of request {read.writer}"
    return _failure("slot-foreign", message, request, step, position, read)


def written_over(request: Request, step: int, position: int, read: SlotRead, *, free: bool) -> Failure:
    """``free``: nothing refers to the block that is written; else others have it in their tables."""
    where = f"request {request.id} writes position {position} to block {read.block}"
    if free:
        return _failure("block-freed", f"{where}, which is free", request, step, position, read)
    return _failure("block-shared", f"{where}, which is in another table too", request, step, position, read)


def not_computed(request: Request, step: int, position: int, read: SlotRead) -> Failure:
    """By the plans the slot is right, and the cache holds something else."""
    message = f"{_reads(request, position, read)}, which was not computed for that position"
    return _failure("slot-not-computed", message, request, step, position, read)


def _reads(request: Request, position: int, read: SlotRead) -> str:
    return f"request {request.id} reads position {position} in block {read.block}, slot {read.slot}"


def _failure(invariant: str, message: str, request: Request, step: int, position: int, read: SlotRead) -> Failure:
    return Failure(
        kind=FailureKind.CONTAMINATION,
        invariant=invariant,
        message=message,
        request_id=request.id,
        step=step,
        position=position,
        read=read,
    )
