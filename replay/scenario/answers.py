"""Answers without a model: what each visit's request drew when it was recorded, and filler after that. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from replay.engine.engine import StepOutcome
from replay.engine.failure import FailureKind
from replay.engine.request import FinishCause, Request
from replay.engine.schedule import Sample, StepPlan
from replay.scenario.played import Parts
from replay.scenario.scenario import UNKNOWN_TOKEN, Scenario, Visit

_FROM_TEXT = frozenset({FinishCause.EOS, FinishCause.STOP_TOKEN, FinishCause.STOP_STRING})


class RecordedAnswers:
    """An executor, and with `stop_check` what ends requests by the record.

    A request whose logits were not finite has none that are, so that its blocks come back as they did; that is the
    record's word and no evidence. One that outlives its record goes on with `filler`, to whatever limit it has.
    ``guessed_from`` is the first step with filler in it, and ``guessed`` the ids of requests that got some: what
    happens from there on rests on nothing that was seen.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.guessed_from: int | None = None
        self.guessed: set[str] = set()
        self.used = False
        self._scenario = scenario
        self._answers = {visit.id: _Answer(visit, scenario) for visit in scenario.visits}
        self._plain: dict[int, Sample] = {}

    def parts(self) -> Parts:
        """For a play on these answers alone."""
        return Parts(
            executor=self,
            stop_check=self.stop_check,
            bytes_per_block=self._scenario.bytes_per_block,
            hooks=(_HideNonFinite(),),
        )

    def execute(self, plan: StepPlan) -> dict[str, Sample]:
        self.used = True
        drawn = {}
        for chunk in plan.chunks:
            if chunk.samples:
                request = chunk.request
                drawn[request.id] = self._sample(self._answers[request.id], request, plan.index)
        return drawn

    def _sample(self, answer: _Answer, request: Request, step: int) -> Sample:
        place, visit = request.num_output, answer.visit
        if place >= answer.length:
            if visit.ends is FinishCause.NON_FINITE and place == answer.length:
                return Sample(-1, finite=False)
            if self.guessed_from is None:
                self.guessed_from = step
            self.guessed.add(request.id)
            token = answer.filler
        else:
            token = answer.tokens[place]
            if visit.ends is FinishCause.EARLY_EXIT and place + 1 == answer.length:
                return Sample(token, early_exit=True)
        sample = self._plain.get(token)
        if sample is None:
            sample = self._plain[token] = Sample(token)
        return sample

    def stop_check(self, request: Request) -> FinishCause | None:
        """What the record says that ended a request here, since without a model nothing else tells."""
        answer = self._answers[request.id]
        return answer.visit.ends if answer.stops and request.num_output == answer.length else None


class _Answer:
    __slots__ = ("filler", "length", "stops", "tokens", "visit")

    def __init__(self, visit: Visit, scenario: Scenario) -> None:
        self.visit = visit
        self.filler = filler(scenario, visit)
        known = stood_in(visit.output, scenario.vocab_size)
        self.tokens = [token if token >= 0 else self.filler for token in known]
        self.length = len(self.tokens)
        self.stops = visit.ends in _FROM_TEXT


class _HideNonFinite:
    """Takes back the failures that a record's word made: nothing was computed that could have been finite or not."""

    def planned(self, plan: StepPlan) -> None: ...

    def stepped(self, outcome: StepOutcome) -> None:
        outcome.failures = [one for one in outcome.failures if one.kind is not FailureKind.NON_FINITE]


def filler(scenario: Scenario, visit: Visit) -> int:
    """The lowest token id that ends nothing: neither an end of sequence nor one of the visit's stop tokens."""
    ending = {*scenario.eos_token_ids, *visit.sampling.stop_token_ids}
    return next(token for token in range(len(ending) + 1) if token not in ending)


def stood_in(tokens: Sequence[int], vocab_size: int) -> list[int]:
    """The ids that a scheduler sees: what stands for an unknown id that others have, too, becomes an id beyond the
    vocabulary, so that a prefix cache finds it. `UNKNOWN_TOKEN` stays, and equals nothing."""
    if min(tokens, default=0) >= UNKNOWN_TOKEN:
        return list(tokens)
    return [token if token >= UNKNOWN_TOKEN else vocab_size - token for token in tokens]
