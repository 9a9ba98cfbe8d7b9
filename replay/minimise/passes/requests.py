"""Fewer requests, fewer that leave, and shorter answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from replay.minimise.climb import Climb
from replay.scenario.change import with_visit, with_visits, without
from replay.scenario.scenario import Scenario, Visit, answer_tokens


def remove_requests(climb: Climb) -> None:
    """By halves, then by smaller runs, at last one by one."""

    def drop(start: int, stop: int) -> bool:
        gone = {visit.id for visit in climb.best.visits[start:stop]}
        return climb.take_fitted(without(climb.best, gone))

    drop_runs(len(climb.best.visits), drop)


def drop_runs(count: int, drop: Callable[[int, int], bool]) -> None:
    """Offer runs of ``count`` things to ``drop``, which says whether it took them away: large ones first, and of each
    size those at the end first. What a smaller size takes away may make room for more, which another pass finds."""
    size = count
    while size:
        stop = count
        while stop > 0:
            start = max(stop - size, 0)
            if drop(start, stop):
                count -= stop - start
            stop = start
        size = min(size // 2, count)


def let_them_stay(climb: Climb) -> None:
    """Nobody leaves, then one after the other does not."""
    climb.take(with_visits(climb.best, (_staying(visit) for visit in climb.best.visits)))
    for name in [visit.id for visit in climb.best.visits if visit.leaves is not None]:
        visit = climb.best.visit(name)
        if not climb.take(with_visit(climb.best, _staying(visit))) and visit.leaves_again is not None:
            climb.take(with_visit(climb.best, replace(visit, leaves_again=None)))


def _staying(visit: Visit) -> Visit:
    return replace(visit, leaves=None, leaves_again=None, leave_rank=0)


def shorten_answers(climb: Climb) -> None:
    """All to one length, then each alone, as short as it may be."""

    def all_to(length: int) -> Scenario:
        config = climb.best.config
        return with_visits(
            climb.best,
            [_answering(v, length) if answer_tokens(v, config) > length else v for v in climb.best.visits],
        )

    longest = max(answer_tokens(visit, climb.best.config) for visit in climb.best.visits)
    lowest(climb, longest, all_to)
    for name in [visit.id for visit in climb.best.visits]:
        visit = climb.best.visit(name)
        now = max(answer_tokens(visit, climb.best.config), visit.sampling.max_tokens)
        lowest(climb, now, lambda n, name=name: with_visit(climb.best, _answering(climb.best.visit(name), n)))  # type: ignore[misc]


def lowest(climb: Climb, value: int, change: Callable[[int], Scenario], *, low: int = 1) -> None:
    """Take the lowest number from ``low`` up to ``value`` that can be taken, by bisection. ``change`` makes the best
    scenario one with that number."""
    if value <= low or climb.take_fitted(change(low)):
        return
    failing, working = low, value
    while working - failing > 1:
        middle = (failing + working) // 2
        if climb.take_fitted(change(middle)):
            working = middle
        else:
            failing = middle


def _answering(visit: Visit, length: int) -> Visit:
    """The visit with an answer of at most ``length`` tokens."""
    sampling = replace(visit.sampling, max_tokens=length, min_tokens=min(visit.sampling.min_tokens, length))
    ends = visit.ends if len(visit.output) <= length else None
    return replace(visit, sampling=sampling, output=visit.output[:length], ends=ends)
