"""Earlier and closer together: arrivals and departures with less time between them."""

from __future__ import annotations

from dataclasses import replace

from replay.minimise.climb import Climb
from replay.minimise.passes.requests import lowest
from replay.scenario.change import with_visit, with_visits
from replay.scenario.scenario import Scenario, Visit


def move_together(climb: Climb) -> None:
    """All at once, then each gap between two times as small as it may be, then single arrivals at the beginning."""
    climb.take(with_visits(climb.best, [_moved(visit, 0, visit.arrives) for visit in climb.best.visits]))
    for place in range(len(_times(climb.best))):
        times = _times(climb.best)
        if place >= len(times):
            break
        after = times[place - 1] if place else 0
        gap = times[place] - after
        lowest(climb, gap, lambda n, after=after, gap=gap: _closer(climb.best, after, gap, n), low=0)  # type: ignore[misc]
    for name in [visit.id for visit in climb.best.visits if visit.arrives]:
        visit = climb.best.visit(name)
        climb.take(with_visit(climb.best, _moved(visit, 0, visit.arrives)))
        climb.take(with_visit(climb.best, replace(climb.best.visit(name), arrives=0)))
    _number_anew(climb)


def _number_anew(climb: Climb) -> None:
    """Ranks among those that leave together, and numbers of choices, that mean nothing."""
    plain = [replace(visit, leave_rank=0, sample_index=0) for visit in climb.best.visits]
    if not climb.take(with_visits(climb.best, plain)):
        climb.take(with_visits(climb.best, [replace(visit, leave_rank=0) for visit in climb.best.visits]))


def _times(scenario: Scenario) -> list[int]:
    """All steps before which somebody comes or leaves, in order."""
    found = {visit.arrives for visit in scenario.visits}
    for visit in scenario.visits:
        found |= {step for step in (visit.leaves, visit.leaves_again) if step is not None}
    return sorted(found)


def _closer(scenario: Scenario, after: int, gap: int, wanted: int) -> Scenario:
    """All that happens later than ``after`` comes earlier, such that the first gap is ``wanted`` instead of ``gap``."""
    return with_visits(scenario, [_moved(visit, after, gap - wanted) for visit in scenario.visits])


def _moved(visit: Visit, after: int, by: int) -> Visit:
    """A visit whose times later than ``after`` are ``by`` steps earlier."""

    def earlier(step: int) -> int:
        return max(step - by, 0) if step > after else step

    return replace(
        visit,
        arrives=earlier(visit.arrives),
        leaves=None if visit.leaves is None else earlier(visit.leaves),
        leaves_again=None if visit.leaves_again is None else earlier(visit.leaves_again),
    )
