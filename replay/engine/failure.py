"""What went wrong in an engine step, as facts. Signatures are made of these; so are the failures in a dump."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum


class FailureKind(StrEnum):
    """The closed list of kinds that a signature can have."""

    SILENT_TRUNCATION = "silent-truncation"
    NON_FINITE = "non-finite"
    CONTAMINATION = "contamination"
    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    STALL = "stall"
    PROCESS_DEATH = "process-death"


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinitePlace:
    """Where the first non-finite value sits, searched by layer, then key before value, then block, then slot.

    ``where`` is "kv-cache" when the cache explains it, else "logits" or one of `SAMPLER_STAGES`, and the other fields
    are None.
    """

    where: str
    layer: int | None = None
    tensor: str | None = None
    block: int | None = None
    slot: int | None = None
    position: int | None = None
    written_by_step: int | None = None


SAMPLER_STAGES = ("temperature", "softmax")
"""Stages in which a sampler can make finite logits non-finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRead:
    """A slot that was about to be read, or a block about to be written, and was not what its request takes it for.

    ``writer`` is the id of the request whose token lies in the slot, ``writer_position`` that token's position; None
    where nothing was ever written, or the record does not go back that far.
    """

    block: int
    slot: int
    writer: str | None = None
    writer_position: int | None = None
    written_by_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """What a running request has of the pool."""

    request_id: str
    blocks: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """The KV pool when a request wanted ``blocks_needed`` of its ``num_blocks`` and did not get them.

    ``wait_reason`` says why it waits, None for one that runs. ``holders`` are all that run, in order of admission.
    """

    wait_reason: str | None = None
    blocks_needed: int
    blocks_free: int
    num_blocks: int
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failure. ``invariant`` says in one term what was violated; the rest is evidence.

    ``position`` is that of the token which could not be computed, or for non-finite logits not be drawn.
    ``seq_len_exceeded_at`` is the number of tokens the sequence had when it could not grow any more. ``frame`` is the
    innermost in-app frame of a program's exception, "agent/loop.py:Agent.run". ``pool`` is there where a request found
    no room in it; a dump has the same in its requests and steps.
    """

    kind: FailureKind
    invariant: str = ""
    exception_type: str = ""
    message: str = ""
    request_id: str | None = None
    step: int | None = None
    position: int | None = None
    kv_cache_used_bytes: int | None = None
    max_kv_cache_bytes: int | None = None
    seq_len_exceeded_at: int | None = None
    non_finite: NonFinitePlace | None = None
    read: SlotRead | None = None
    frame: str = ""
    pool: PoolState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """What an exception is about, as far as it is known: the evidence that its type and message leave out.

    ``block`` is the physical block that a pool was asked to do the impossible with.
    """

    request_id: str | None = None
    position: int | None = None
    non_finite: NonFinitePlace | None = None
    block: int | None = None


def blame(error: Exception, evidence: Blame) -> None:
    """Keep evidence with an exception that is raised on. What it has already stays: it was nearer to the cause."""
    if (known := blamed(error)) is not None:
        nearer = {field.name: getattr(known, field.name) for field in fields(Blame)}
        evidence = replace(evidence, **{name: value for name, value in nearer.items() if value is not None})
    setattr(error, _BLAME, evidence)


def blamed(error: Exception) -> Blame | None:
    """What `blame` kept."""
    evidence = getattr(error, _BLAME, None)
    return evidence if isinstance(evidence, Blame) else None


_BLAME = "pplx_blame"
