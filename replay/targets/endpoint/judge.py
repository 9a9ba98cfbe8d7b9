"""From what an endpoint said to one word about it.

An outside view knows the kind of a failure, and of the rest only what the server states. So the kind decides, in any
request: which one it meets depends on a batch that is not ours to set. Location, exception type and violated invariant
are not compared. The rules of one try, in order:

1. A failure of the wanted kind is `reproduced`.
2. A request that did not get through (nobody there, no such model, refused) makes it `inconclusive`: the load was not
   the recorded one.
3. A failure of another kind is `different-failure`.
4. Silence while something else was looked for, or an answer whose tokens nobody counted, is `inconclusive`.
5. Else `not-reproduced`.

Of several tries one that reproduces decides, then one with another failure, then one without any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from replay.engine.failure import Failure, FailureKind
from replay.signature import Signature, normalise
from replay.targets.endpoint.plan import Call, Plan
from replay.targets.endpoint.play import Heard, Outcome
from replay.verdict import Decision, Reason, Verdict

# What servers that name a failure call it; ours says the cause of a finish.
_NAMED = {"non-finite": FailureKind.NON_FINITE, "timeout": FailureKind.TIMEOUT}
_TIMEOUTS = (408, 504)
_LATE = (FailureKind.TIMEOUT, FailureKind.STALL)

# Wanted kind: kinds that look like it. A server that met NaN need not say so.
_LIKE = {
    FailureKind.NON_FINITE: (FailureKind.NON_FINITE, FailureKind.EXCEPTION),
    FailureKind.TIMEOUT: _LATE,
    FailureKind.STALL: (FailureKind.STALL,),
}

_ORDER = (Verdict.REPRODUCED, Verdict.DIFFERENT_FAILURE, Verdict.NOT_REPRODUCED, Verdict.INCONCLUSIVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One run of the plan. ``failures`` are all that were seen, those of the wanted kind first; ``heard`` is by call.

    ``hopeless`` says that another try would end the same way.
    """

    decision: Decision
    failures: tuple[Failure, ...]
    heard: tuple[Heard, ...]

    @property
    def hopeless(self) -> bool:
        return self.decision.reason in (
            Reason.ENDPOINT_UNREACHABLE,
            Reason.ENDPOINT_NO_MODEL,
            Reason.ENDPOINT_REFUSED,
        )


def judge(plan: Plan, heard: Sequence[Heard]) -> Try:
    assert plan.kind is not None, "nothing is sent where nothing is looked for"
    like = _LIKE.get(plan.kind, (plan.kind,))
    failures = [
        failure for call, one in zip(plan.calls, heard, strict=True) for failure in failures_in(call, one, plan.kind)
    ]
    failures.sort(key=lambda failure: failure.kind not in like)
    first = failures[0] if failures else None
    if first is not None and first.kind in like:
        decision = _decision(plan, Verdict.REPRODUCED, Reason.NONE, first)
    elif reason := _not_through(heard):
        decision = _decision(plan, Verdict.INCONCLUSIVE, reason, first)
    elif first is not None:
        decision = _decision(plan, Verdict.DIFFERENT_FAILURE, Reason.NONE, first)
    elif any(one.outcome is Outcome.SILENT for one in heard):
        decision = Decision(Verdict.INCONCLUSIVE, Reason.ENDPOINT_SILENT)
    elif plan.kind is FailureKind.SILENT_TRUNCATION and any(map(_uncounted, plan.calls, heard)):
        decision = Decision(Verdict.INCONCLUSIVE, Reason.ENDPOINT_UNCOUNTED)
    else:
        decision = Decision(Verdict.NOT_REPRODUCED)
    return Try(decision=decision, failures=tuple(failures), heard=tuple(heard))


def deciding(tries: Sequence[Try]) -> Try:
    """The one that the report is about."""
    return min(tries, key=lambda one: _ORDER.index(one.decision.verdict))


def failures_in(call: Call, heard: Heard, wanted: FailureKind) -> list[Failure]:
    """What went wrong with one request, as its client sees it. Silence is a failure only where it is looked for: a
    busy server is silent, too."""
    words = heard.error.message or f"HTTP {heard.status}"
    match heard.outcome:
        case Outcome.FAILED:
            kind = FailureKind.TIMEOUT if heard.status in _TIMEOUTS else FailureKind.EXCEPTION
            return [_failure(_NAMED.get(heard.error.code, kind), words, call)]
        case Outcome.DROPPED:
            return [_failure(FailureKind.EXCEPTION, words, call)]
        case Outcome.LATE:
            return [_failure(FailureKind.TIMEOUT, words, call)]
        case Outcome.SILENT if wanted in _LATE:
            return [_failure(wanted, words, call)]
        case Outcome.ANSWERED:
            return [cut for index in range(call.n) if (cut := _cut(call, heard, index)) is not None]
    return []


def _cut(call: Call, heard: Heard, index: int) -> Failure | None:
    if not heard.reply.is_cut(index, call.asked):
        return None
    tokens = heard.reply.tokens(index)
    counted = "fewer" if tokens is None else str(tokens)
    asked = "and no limit was asked for" if call.asked is None else f"of {call.asked} that were asked for"
    return _failure(FailureKind.SILENT_TRUNCATION, f"answer cut after {counted} tokens {asked}", call, index)


def _failure(kind: FailureKind, message: str, call: Call, index: int = 0) -> Failure:
    name = call.recorded[index].id if index < len(call.recorded) else ""
    return Failure(kind=kind, message=message, request_id=name or None)


def _not_through(heard: Sequence[Heard]) -> Reason:
    if any(one.outcome is Outcome.UNREACHABLE for one in heard):
        return Reason.ENDPOINT_UNREACHABLE
    refused = [one for one in heard if one.outcome is Outcome.REFUSED]
    if any(names_no_model(one) for one in refused):
        return Reason.ENDPOINT_NO_MODEL
    return Reason.ENDPOINT_REFUSED if refused else Reason.NONE


def names_no_model(heard: Heard) -> bool:
    """Whether a request was refused for its model's name. Another 404 is a path that the server does not have."""
    named = heard.status == 404 and "model" in heard.error.message.lower()
    return named or heard.error.code == "model_not_found" or heard.error.param == "model"


def _uncounted(call: Call, heard: Heard) -> bool:
    return heard.outcome is Outcome.ANSWERED and any(
        heard.reply.is_cut(index, call.asked) is None for index in range(call.n)
    )


def _decision(plan: Plan, verdict: Verdict, reason: Reason, failure: Failure | None) -> Decision:
    if failure is None:
        return Decision(verdict, reason)
    seen = Signature.of(failure)
    expected = plan.expected.identity if plan.expected else None
    match = {"identity.kind": verdict is Verdict.REPRODUCED}
    if expected is not None and expected.message and normalise(failure.message) == expected.message:
        # Earned where it agrees. Where not, a server may have kept the words to itself, or put others for them.
        match["identity.message"] = True
    return Decision(verdict, reason, seen, match)
