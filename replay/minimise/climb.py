"""The best scenario so far, and the only way to a better one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from replay.minimise.order import cost
from replay.minimise.others import Others
from replay.minimise.trials import Target, Trial, Trials
from replay.scenario.door import refused
from replay.scenario.scenario import Scenario
from replay.signature import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was seen of the scenario that a sweep begins with.

    ``steps`` is how many it takes on each target on which it shows the wanted failure: no smaller one may take more.
    ``allowed`` are the identities that are seen then. ``pool_bound`` and ``length_bound`` say that it does not fail
    with a larger pool, or with longer requests allowed; then both limits have to come down with what fills them.
    ``refuses``: requests come in that a server would refuse. ``problem`` is why there are no ``steps``, where a trial
    gave no answer.
    """

    steps: dict[Target, int] = field(default_factory=dict)
    allowed: dict[Target, frozenset[Identity]] = field(default_factory=dict)
    pool_bound: bool = False
    length_bound: bool = False
    refuses: bool = False
    problem: str = ""

    @property
    def targets(self) -> tuple[Target, ...]:
        """Those on which it shows: the cheap one first, last the one that counts."""
        return tuple(self.steps)


class Judge:
    """Says whether a scenario shows the wanted failure and none that its sweep's start does not show."""

    def __init__(self, trials: Trials, facts: Facts, others: Others) -> None:
        self._trials, self.facts, self._others = trials, facts, others

    def verdict(self, scenario: Scenario, targets: tuple[Target, ...]) -> tuple[bool, Trial]:
        """On all ``targets``, and the trial that decided."""
        trial = Trial(shows=False)
        for target in targets:
            trial = self._trials.play(scenario, target, self.facts.steps[target])
            foreign = trial.seen - self.facts.allowed[target] - {self._trials.bench.wanted}
            for identity in sorted(foreign, key=repr):
                self._others.keep(identity, scenario, target)
            if not trial.shows or foreign:
                return False, trial
        return True, trial


class Climb:
    """``best`` changes by `take` alone, and only to something with a smaller `cost`."""

    def __init__(
        self,
        best: Scenario,
        judge: Judge,
        targets: tuple[Target, ...],
        *,
        on_trial: Callable[[Scenario], None] = lambda best: None,
        on_better: Callable[[Scenario], None] = lambda best: None,
    ) -> None:
        self.best = best
        self._judge, self._targets = judge, targets
        self._on_trial, self._on_better = on_trial, on_better

    def take(self, candidate: Scenario) -> bool:
        """Whether ``candidate`` is smaller and shows the wanted failure; then it is the best one."""
        return self._try(candidate) is None

    def take_fitted(self, candidate: Scenario) -> bool:
        """`take`, and where that fails, the same with the limits that it no longer reaches brought down to it."""
        trial = self._try(candidate)
        if trial is None:
            return True
        return any(self._try(fitted) is None for fitted in self._fitted(candidate, trial))

    def _try(self, candidate: Scenario) -> Trial | None:
        """None if it was taken; else the trial that spoke against it."""
        no = Trial(shows=False)
        if not candidate.visits or cost(candidate) >= cost(self.best):
            return no
        if refused(candidate) and not self._judge.facts.refuses:
            return no
        self._on_trial(self.best)
        yes, trial = self._judge.verdict(candidate, self._targets)
        if yes:
            self.best = candidate
            self._on_better(candidate)
        return None if yes else trial

    def _fitted(self, candidate: Scenario, trial: Trial) -> Iterator[Scenario]:
        facts, config = self._judge.facts, candidate.config
        if not trial.ended:  # it was not played
            return
        if facts.pool_bound:
            for blocks in (trial.peak, trial.peak - 1):
                if 1 <= blocks < config.num_blocks:
                    yield replace(candidate, config=replace(config, num_blocks=blocks))
        if facts.length_bound:
            cut = _longest(self.best) - _longest(candidate)
            if 0 < cut < config.max_model_len:
                yield replace(candidate, config=replace(config, max_model_len=config.max_model_len - cut))


def _longest(scenario: Scenario) -> int:
    return max(len(visit.prompt) for visit in scenario.visits)
