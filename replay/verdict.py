"""From what a replay showed to one word about it.

The rules, in order:

1. What a replay needs and does not have makes it `inconclusive`, and the reason code names it.
2. An unmodified replay that parts from the record is `diverged`: whatever failed after that point failed in another
   run.
3. A failure with the expected identity, and on an unmodified dump at the expected location, is `reproduced`.
4. Any other failure is `different-failure`; the same kind elsewhere in the same dump is one, too.
5. A run that came to its end without a failure is `not-reproduced`, unless there was nothing to look for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from replay.divergence import Divergence
from replay.engine.failure import FailureKind
from replay.signature import Signature, compare


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not-reproduced"
    DIFFERENT_FAILURE = "different-failure"
    DIVERGED = "diverged"
    INCONCLUSIVE = "inconclusive"


class Reason(StrEnum):
    """Why a verdict is what it is, where the word alone does not say it."""

    NONE = ""
    TOKENS_ABSENT = "tokens-absent"
    STEPS_ABSENT = "steps-absent"
    WEIGHTS_UNAVAILABLE = "weights-unavailable"
    MODEL_UNSUPPORTED = "model-unsupported"
    ENGINE_NOT_INSTALLED = "engine-not-installed"
    DEVICE_UNAVAILABLE = "device-unavailable"
    KV_CONTENTS_ABSENT = "kv-contents-absent"
    NEEDS_INFERENCE = "needs-inference"
    NEEDS_CHECKS = "needs-checks"
    NOTHING_RECORDED = "no-failure-recorded"
    PROCESS_DEATH = "process-death"
    PROGRAM_ABSENT = "program-absent"
    PROGRAM_SHAPE_ONLY = "program-without-text"
    PROGRAM_UNSUPPORTED = "program-unsupported"
    NOTHING_ASKED = "nothing-asked"
    BEYOND_THE_RECORD = "beyond-the-record"
    COMPUTING = "computing-takes-no-time"
    NOT_VISIBLE = "not-visible-from-outside"
    ENDPOINT_UNREACHABLE = "endpoint-unreachable"
    ENDPOINT_NO_MODEL = "endpoint-without-model"
    ENDPOINT_REFUSED = "endpoint-refused"
    ENDPOINT_SILENT = "endpoint-silent"
    ENDPOINT_UNCOUNTED = "endpoint-uncounted"
    EXTERNAL_CAUSE = "external-cause"
    KIND_UNSUPPORTED = "kind-unsupported"
    RECORD_ENDS = "record-ends"
    RAN_ALONE = "ran-alone"
    SAME_KIND_ELSEWHERE = "same-kind-elsewhere"
    NOISE = "rounding-noise"
    BUDGET = "budget-spent"


SHOWN_BY_A_REPLAY = frozenset(FailureKind)
"""A kind that is not listed cannot be looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a replay showed.

    ``modified`` says that settings were changed or that only part of the dump ran, so that locations need not agree.
    ``foreign`` says that the expected signature is not the dump's own. ``on_a_virtual_clock`` says that a deadline
    which was seen to pass did so on the program's own clock. A stall that was seen is a proof of no progress in either
    case: nothing could have gone on, for however long.
    """

    seen: Sequence[Signature]
    divergence: Divergence | None = None
    modified: bool = False
    foreign: bool = False
    missing: Reason = Reason.NONE
    on_a_virtual_clock: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    reason: Reason = Reason.NONE
    seen: Signature | None = None
    match: dict[str, bool] = field(default_factory=dict)


def decide(expected: Signature | None, evidence: Evidence) -> Decision:
    """Apply the rules above."""
    locate = not (evidence.modified or evidence.foreign)
    seen = _closest(expected, evidence.seen, location=locate)
    match = compare(expected, seen, location=locate) if expected and seen else {}
    if evidence.missing:
        return Decision(Verdict.INCONCLUSIVE, evidence.missing, seen, match)
    if evidence.divergence is not None and not evidence.modified:
        reason = Reason.NOISE if evidence.divergence.cause == "noise" else Reason.NONE
        return Decision(Verdict.DIVERGED, reason, seen, match)
    if expected is not None and expected.identity.kind not in SHOWN_BY_A_REPLAY:
        return Decision(Verdict.INCONCLUSIVE, Reason.KIND_UNSUPPORTED, seen, match)
    if expected is None or expected.identity.kind == FailureKind.PROCESS_DEATH:
        if seen is not None:
            return Decision(Verdict.DIFFERENT_FAILURE, Reason.NONE, seen, match)
        reason = Reason.NOTHING_RECORDED if expected is None else Reason.PROCESS_DEATH
        return Decision(Verdict.INCONCLUSIVE, reason)
    if expected.identity.kind == FailureKind.TIMEOUT and not (evidence.foreign or evidence.on_a_virtual_clock):
        # A deadline on a wall clock is outside of what the engine replays; the mocked runtime's clock is for that.
        return Decision(Verdict.INCONCLUSIVE, Reason.EXTERNAL_CAUSE, seen, match)
    if seen is None:
        return Decision(Verdict.NOT_REPRODUCED)
    if all(match.values()):
        return Decision(Verdict.REPRODUCED, Reason.NONE, seen, match)
    same_kind = all(holds for key, holds in match.items() if key.startswith("identity."))
    return Decision(Verdict.DIFFERENT_FAILURE, Reason.SAME_KIND_ELSEWHERE if same_kind else Reason.NONE, seen, match)


def _closest(expected: Signature | None, seen: Sequence[Signature], *, location: bool) -> Signature | None:
    """The seen signature that agrees with the expected one in most fields, identity first; the first one without
    any."""
    if not seen:
        return None
    if expected is None:
        return seen[0]

    def agreement(signature: Signature) -> tuple[int, int]:
        match = compare(expected, signature, location=location)
        identity = sum(holds for key, holds in match.items() if key.startswith("identity."))
        return identity, sum(match.values())

    return max(seen, key=agreement)
