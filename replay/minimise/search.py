"""The search: sweeps of all passes until one changes nothing, each from what a recording of the last gives back.

A dump holds what was seen of a run, and not all that was asked for: a request that never came is not in it, and answers
are those that were drawn. So after each sweep the run is recorded and the scenario of that dump is the next start. The
search ends where both change nothing. A sweep depends on its start alone; so a search of the result is the last sweep
of this search once more, and finds nothing either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dumps.schema.reader import open_dump
from replay.minimise.climb import Climb, Facts, Judge
from replay.minimise.others import Others
from replay.minimise.passes.prompts import shorten_prompts, simplify_tokens
from replay.minimise.passes.requests import let_them_stay, remove_requests, shorten_answers
from replay.minimise.passes.settings import leave_out_quirks, put_back_settings, smaller_chunks, smaller_sizes
from replay.minimise.passes.times import move_together
from replay.minimise.trials import Target, Trials
from replay.minimise.work import Work
from replay.scenario.door import refused
from replay.scenario.extract import scenario_of
from replay.scenario.play import MAX_STEPS
from replay.scenario.scenario import Scenario

Pass = Callable[[Climb], None]

PASSES: tuple[tuple[str, Pass], ...] = (
    ("requests", remove_requests),
    ("quirks", leave_out_quirks),
    ("departures", let_them_stay),
    ("settings", put_back_settings),
    ("answers", shorten_answers),
    ("chunks", smaller_chunks),
    ("prompts", shorten_prompts),
    ("tokens", simplify_tokens),
    ("times", move_together),
    ("sizes", smaller_sizes),
)

ROOM = 4
"""How many times as large a limit is tried to see whether the failure depends on it."""

OnStage = Callable[[str, Scenario], None]


class Search:
    """Searches on target schedule where the failure shows there, and has the engine confirm."""

    def __init__(
        self,
        trials: Trials,
        work: Work,
        others: Others,
        *,
        engine: Target | None,
        on_stage: OnStage = lambda stage, best: None,
    ) -> None:
        """``engine`` is the target whose word counts: "inference", or None where there is no model."""
        self._trials, self._work, self._others = trials, work, others
        self._engine, self._on_stage = engine, on_stage

    def run(self, start: Scenario) -> Scenario:
        """The smallest scenario that is found from ``start``, which shows the failure.

        Raises `TimeIsUp`; the work folder then has the best one that was confirmed.
        """
        seen: set[str] = set()
        facts = self.probe(start)
        while True:
            self._work.improve(start)
            best = self._sweep(start, facts)
            seen.add(start.digest)
            settled = self._settled(best, facts.targets[-1])
            if settled.digest in seen:
                return best
            after = self.probe(settled)
            if not after.steps:
                return best
            start, facts = settled, after

    def probe(self, scenario: Scenario) -> Facts:
        """Where it shows the failure, and on which limits that depends. Without ``steps``: not where it counts."""
        steps: dict[Target, int] = {}
        allowed = {}
        targets: list[Target] = ["schedule", *([self._engine] if self._engine else [])]
        for target in targets:
            trial = self._trials.play(scenario, target, MAX_STEPS)
            if trial.shows:
                # The step that raises is not counted, nor is one in which nothing can go on.
                steps[target], allowed[target] = trial.steps + 1, trial.seen
        if not steps or (self._engine and self._engine not in steps):
            return Facts(problem=trial.problem)
        facts, config = Facts(steps=steps, allowed=allowed), scenario.config
        roomy = replace(scenario, config=replace(config, num_blocks=ROOM * config.num_blocks))
        longer = replace(scenario, config=replace(config, max_model_len=ROOM * config.max_model_len))
        return replace(
            facts,
            pool_bound=not self._shows(roomy, facts),
            length_bound=not self._shows(longer, facts),
            refuses=bool(refused(scenario)),
        )

    def _shows(self, scenario: Scenario, facts: Facts) -> bool:
        target = facts.targets[0]
        return self._trials.play(scenario, target, facts.steps[target]).shows

    def _sweep(self, best: Scenario, facts: Facts) -> Scenario:
        judge = Judge(self._trials, facts, self._others)
        for name, one in PASSES:
            self._on_stage(name, best)
            best = self._pass(name, one, best, judge)
        return best

    def _pass(self, name: str, one: Pass, best: Scenario, judge: Judge) -> Scenario:
        """On the cheap target alone where there is one, and then once on all. If that says no, the pass goes again and
        asks all of them each time."""
        every = judge.facts.targets
        for targets in dict.fromkeys((every[:1], every)):
            confirmed = targets == every
            climb = Climb(
                best,
                judge,
                targets,
                on_trial=lambda now: self._on_stage(name, now),
                on_better=self._work.improve if confirmed else lambda now: None,
            )
            one(climb)
            if climb.best is best:
                return best
            if confirmed or judge.verdict(climb.best, every)[0]:
                self._work.improve(climb.best)
                return climb.best
        return best

    def _settled(self, scenario: Scenario, target: Target) -> Scenario:
        """The scenario of a recording of its run."""
        path = self._work.folder / "settled.pplx"
        self.record(scenario, target, path)
        try:
            with open_dump(path) as dump:
                return scenario_of(dump.state)
        finally:
            path.unlink()

    def record(self, scenario: Scenario, target: Target, path: Path) -> None:
        """Write the dump of its run to ``path``, replacing a file of ours there. Raises `TrialFailed`."""
        path.write_bytes(self._trials.record(scenario, target, MAX_STEPS))
