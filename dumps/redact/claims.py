"""Which verdicts a redacted dump can still give.

Kinds that lengths, blocks and the equality of tokens decide survive the mapping of token ids. What needs the model's
numbers does not: the mapped ids mean other words.
"""

from __future__ import annotations

from dataclasses import dataclass

from dumps.schema import state_pb2 as pb
from dumps.validate.manifest import FAILURE_KINDS

_WITHOUT_IDS = {
    "silent-truncation": (True, "lengths, blocks and limits decide it"),
    "stall": (True, "lengths, blocks and limits decide it"),
    "contamination": (True, "the block checks ask whether tokens are equal, and equal ids stay equal"),
    "exception": (True, "where scheduler or block pool raise it: exhausted, released twice, aborted after its end"),
    "timeout": (True, "a deadline comes from outside of the steps"),
    "process-death": (True, "a death comes from outside of the steps"),
    "non-finite": (False, "it needs the model's numbers, and the mapped ids mean other words"),
}


@dataclass(frozen=True, slots=True)
class Claim:
    """Whether verdicts on failures of this ``kind`` survive, and why. ``own``: it is that of the dump's failure."""

    kind: str
    kept: bool
    why: str
    own: bool = False


def claims_of(original: pb.RuntimeState, redacted: pb.RuntimeState, *, prompt: bool) -> tuple[Claim, ...]:
    """A claim for each kind of failure, that of the dump's own, last, failure decided by what became of it."""
    own = original.failures[-1] if original.failures else None
    found = []
    for kind in FAILURE_KINDS:
        kept, why = _WITHOUT_IDS.get(kind, (False, "not known")) if prompt else (True, "what it rests on is kept")
        is_own = own is not None and own.kind == kind
        if is_own and own is not None:
            kept, why = _own(original, own, redacted.failures[-1], kept, why, prompt=prompt)
        found.append(Claim(kind, kept, why, own=is_own))
    return tuple(found)


def _own(
    original: pb.RuntimeState, failure: pb.Failure, after: pb.Failure, kept: bool, why: str, *, prompt: bool
) -> tuple[bool, str]:
    if prompt and original.HasField("program"):
        return False, "it is a program's, which cannot run again without what the world told it"
    if prompt and failure.HasField("non_finite"):
        return False, _WITHOUT_IDS["non-finite"][1]
    identity = ("kind", "invariant", "exception_type", "frame")
    if any(getattr(failure, name) != getattr(after, name) for name in identity):
        return False, "a part of its identity was not a word of the format, and is removed"
    if failure.message and not after.message:
        return False, "its message may hold text of people and is removed, and a verdict compares messages"
    return kept, why
