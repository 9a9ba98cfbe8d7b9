"""Decisions of early exit in a replay: whether answers ended where they had, and whether those to go on are the same.

Both are derived from the replay's own logits. An answer that ends otherwise is another run, so it is a divergence; a
decision that only looks otherwise (its candidates, its reason) is a finding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dumps.schema import state_pb2 as pb
from dumps.trace import FALLBACK, FallbackEvent, read_fallback
from replay.divergence import NOISE
from replay.engine import early_exit
from replay.engine.early_exit import Fallback
from replay.engine.engine import StepOutcome
from replay.engine.fast_forward import TokenCheck
from replay.engine.recorded import GOES_ON
from replay.engine.request import FinishCause, Request
from replay.engine.schedule import Sample, StepPlan
from replay.report import finding
from replay.targets.rebuild import RebuiltOutputs, RecordedOutput

# What ends an answer with the token it has just drawn, besides its confidence; the first three before that is asked.
_BEFORE_CONFIDENCE = frozenset({FinishCause.EOS, FinishCause.STOP_TOKEN, FinishCause.STOP_STRING})
_BY_TOKEN = _BEFORE_CONFIDENCE | {FinishCause.MAX_TOKENS, FinishCause.MAX_MODEL_LEN}

Place = tuple[str, int]  # request id, index in its answer


@dataclass(frozen=True, slots=True)
class ExitDifference:
    """An answer that ended for its confidence in one run and went on in the other. ``noise``: rounding explains it."""

    recorded: str
    replayed: str
    noise: bool


def exit_difference(
    request: Request, output: RecordedOutput, index: int, sample: Sample, *, dtype: str
) -> ExitDifference | None:
    """Compare whether the answer's token ``index`` ended it. None where both runs agree, or nothing can be compared."""
    last = index == output.num_tokens - 1
    if last and output.cause is None and index < output.drawn_before:
        return None  # drawn before the record begins, and with it any end that it made
    recorded = last and output.cause is FinishCause.EARLY_EXIT
    replayed = _exits(request, index, sample)
    if recorded == replayed or (last and output.cause in _BEFORE_CONFIDENCE):
        return None
    words = {True: FinishCause.EARLY_EXIT.value, False: GOES_ON}
    threshold, seen = request.flags.early_exit, sample.confidence
    if threshold is None or seen is None:
        return ExitDifference(words[recorded], f"{words[replayed]} (no threshold)", noise=False)
    noise = early_exit.explained(seen, threshold, NOISE[dtype])
    return ExitDifference(words[recorded], f"{words[replayed]} (confidence {seen.top:.6g})", noise)


def _exits(request: Request, index: int, sample: Sample) -> bool:
    return sample.early_exit and index + 1 >= request.sampling.min_tokens


class FallbackTrace:
    """The recorded decisions to go on, and the replay's own. An `EngineHooks` for the steps that the replay draws.

    ``compare`` is False when settings make other decisions on purpose: then the replay's own are only collected.
    """

    def __init__(
        self, state: pb.RuntimeState, outputs: RebuiltOutputs, *, strict: bool, dtype: str, compare: bool
    ) -> None:
        self.own: dict[Place, Fallback] = {}
        self.recorded: dict[Place, FallbackEvent] = {}
        self.unreadable = 0
        self._outputs, self._strict, self._dtype, self._compare = outputs, strict, dtype, compare
        self._drawn: set[Place] = set()
        # A recorder leaves out what it has no room for, and says so.
        self._whole = all(entry.path != "trace_events" for entry in state.ledger)
        for message in (event for event in state.trace_events if event.name == FALLBACK):
            try:
                event = read_fallback(message)
                recorded = state.requests[event.request]
            except (ValueError, IndexError):
                self.unreadable += 1
                continue
            self.recorded[recorded.id, event.position - recorded.num_prompt_tokens] = event

    def planned(self, plan: StepPlan) -> None:
        """Nothing is decided yet."""

    def stepped(self, outcome: StepOutcome) -> None:
        """Take a step's decisions."""
        for chunk in outcome.plan.chunks:
            sample = outcome.samples.get(chunk.request.id)
            if sample is not None and sample.confidence is not None and sample.finite:
                drawn = chunk.start + chunk.num_tokens - chunk.request.num_prompt
                self._drawn.add((chunk.request.id, drawn))
        for decision in outcome.fallbacks:
            self._add(decision)

    def checked(self, request: Request, checks: Iterable[TokenCheck]) -> None:
        """Take the decisions at tokens that were drawn again in a fast-forward. The record tells which went on."""
        output = self._outputs[request.id]
        for check in checks:
            index, sample = check.position - request.num_prompt, check.sample
            if sample.confidence is None or not sample.finite:
                continue
            self._drawn.add((request.id, index))
            if (index == output.num_tokens - 1 and output.cause in _BY_TOKEN) or _exits(request, index, sample):
                continue
            step = output.step_of(index)
            decision = early_exit.fallback(
                request, step=-1 if step is None else step, position=check.position, sample=sample
            )
            if decision is not None:
                self._add(decision)

    def _add(self, decision: Fallback) -> None:
        self.own[decision.request.id, decision.position - decision.request.num_prompt] = decision

    def compared(self) -> list[Place]:
        """Places where the replay drew and the record could hold a decision, in step order."""
        if not self._compare:
            return []
        kept = [
            (step, *place)
            for place in self._drawn & (self.recorded.keys() | (self.own.keys() if self._whole else set()))
            if (output := self._outputs[place[0]]) and (step := output.step_of(place[1])) is not None
        ]
        return [(name, index) for _, name, index in sorted(kept)]

    def differences(self) -> list[tuple[Place, str, str]]:
        """Places at which both runs decided otherwise, and what each did."""
        found = []
        for place in self.compared():
            theirs, ours = self.recorded.get(place), self.own.get(place)
            if not self._same(theirs, ours):
                found.append((place, _recorded_words(theirs), _own_words(ours)))
        return found

    def _same(self, theirs: FallbackEvent | None, ours: Fallback | None) -> bool:
        if theirs is None or ours is None:
            return theirs is None and ours is None
        if not self._strict:  # rounding moves every probability, and the token was fed
            threshold = ours.request.flags.early_exit
            near = threshold is not None and early_exit.explained(ours.confidence, threshold, NOISE[self._dtype])
            return theirs.reason == ours.reason or near
        if (theirs.reason, theirs.confidence) != (ours.reason, ours.confidence.top):
            return False
        if theirs.token is None:  # record level "shape"
            return True
        return (theirs.token, theirs.candidates) == (ours.token, ours.confidence.candidates)

    def findings(self) -> list[dict[str, Any]]:
        """The first decision that differs, and events that nothing could be read from."""
        found = []
        if self.unreadable:
            message = f"{self.unreadable} recorded fallback decisions cannot be read"
            found.append(finding("fallback-unreadable", message, remedy="pplx-state verify names each"))
        if different := self.differences():
            (name, index), theirs, ours = different[0]
            step = self._outputs[name].step_of(index)
            message = f"{len(different)} fallback decisions differ, the first at request {name}, output token {index}"
            message += f", step {step}: recorded {theirs}; replayed {ours}"
            found.append(
                finding(
                    "fallback-differs",
                    message,
                    request_id=name,
                    output_index=index,
                    step=step,
                    recorded=theirs,
                    replayed=ours,
                    differ=len(different),
                )
            )
        return found

    def to_json(self) -> dict[str, Any] | None:
        """Counts for the report, and each of the replay's decisions; None when nobody asked for any."""
        if not (self.recorded or self.own or self.unreadable):
            return None
        compared = self.compared()
        return {
            "recorded": len(self.recorded) + self.unreadable,
            "replayed": len(self.own),
            "compared": len(compared),
            "differ": len(self.differences()),
            "decisions": [_entry(self.own[place]) for place in sorted(self.own)],
        }


def _recorded_words(event: FallbackEvent | None) -> str:
    return _words(event.reason, event.confidence, event.token) if event else "no decision"


def _own_words(decision: Fallback | None) -> str:
    return _words(decision.reason.value, decision.confidence.top, decision.token) if decision else "no decision"


def _words(reason: str, confidence: float, token: int | None) -> str:
    drawn = "" if token is None else f", token {token}"
    return f"{reason} at confidence {confidence:.17g}{drawn}"


def _entry(decision: Fallback) -> dict[str, Any]:
    return {
        "request_id": decision.request.id,
        "step": decision.step if decision.step >= 0 else None,
        "position": decision.position,
        "token": decision.token,
        "confidence": decision.confidence.top,
        "candidates": [list(pair) for pair in decision.confidence.candidates],
        "reason": decision.reason.value,
    }
