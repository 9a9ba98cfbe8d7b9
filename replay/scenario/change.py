"""Other sets of visits for a scenario, with its quirks kept right.

Two quirks name a request by its number in order of arrival. That number is the visit's place, so it changes with
every visit that is taken away or comes earlier.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from replay.engine.quirks import Quirk
from replay.engine.request import FinishCause
from replay.scenario.played import Answered
from replay.scenario.scenario import OWN_ENDS, Scenario, Visit


def with_visits(scenario: Scenario, visits: Iterable[Visit]) -> Scenario:
    """The scenario with these visits, put in order of arrival; those that arrive together stay as they are given.

    A quirk that names a request by number follows its visit, known by its id, and goes with it. One whose number is
    beyond the last visit never acted, and goes, too.
    """
    ordered = tuple(sorted(visits, key=lambda visit: visit.arrives))
    places = {visit.id: place for place, visit in enumerate(ordered)}
    moved = (_moved(quirk, scenario.visits, places) for quirk in scenario.quirks)
    return replace(scenario, visits=ordered, quirks=tuple(quirk for quirk in moved if quirk is not None))


def without(scenario: Scenario, ids: Collection[str]) -> Scenario:
    """The scenario without the visits of these ids. Arrivals and departures of the others stay at their steps."""
    return with_visits(scenario, (visit for visit in scenario.visits if visit.id not in ids))


def with_visit(scenario: Scenario, visit: Visit) -> Scenario:
    """The scenario with this visit in place of the one with its id."""
    return with_visits(scenario, (visit if one.id == visit.id else one for one in scenario.visits))


def aimed_at(quirk: Quirk, visits: tuple[Visit, ...]) -> str | None:
    """Id of the visit that a quirk names by number; None where it names none, or one that never comes."""
    number = quirk.parameters.get("request")
    return visits[number].id if number is not None and number < len(visits) else None


def _moved(quirk: Quirk, visits: tuple[Visit, ...], places: dict[str, int]) -> Quirk | None:
    if "request" not in quirk.parameters:
        return quirk
    place = places.get(aimed_at(quirk, visits) or "")
    return None if place is None else Quirk(name=quirk.name, parameters={**quirk.parameters, "request": place})


def with_answers(scenario: Scenario, answers: Iterable[Answered]) -> Scenario:
    """The scenario with what a model drew as the visits' recorded answers, so that it plays alike without one."""
    drawn = {answer.id: answer for answer in answers}
    visits = tuple(
        replace(visit, output=drawn[visit.id].output, ends=_own(drawn[visit.id].cause)) if visit.id in drawn else visit
        for visit in scenario.visits
    )
    return replace(scenario, visits=visits)


def _own(cause: FinishCause | None) -> FinishCause | None:
    return cause if cause in OWN_ENDS else None
