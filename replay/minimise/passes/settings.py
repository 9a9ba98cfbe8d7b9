"""Fewer defects, settings at their defaults, plain requests, and smaller sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from replay.engine.quirks import Quirk
from replay.engine.request import NO_FLAGS
from replay.minimise.climb import Climb
from replay.minimise.order import DEFAULTS, SAMPLING, SETTINGS, plain_sampling
from replay.minimise.passes.requests import lowest
from replay.scenario.change import with_visit, with_visits
from replay.scenario.scenario import Scenario, Visit

SIZES = ("max_num_seqs", "max_model_len", "num_blocks")
"""In the order in which they are tried. Those that open the way for shorter prompts have a pass of their own."""


def leave_out_quirks(climb: Climb) -> None:
    """One by one, then their numbers as low as they may be."""
    for quirk in climb.best.quirks:
        climb.take(replace(climb.best, quirks=tuple(one for one in climb.best.quirks if one != quirk)))
    for place, quirk in enumerate(climb.best.quirks):
        for name, value in quirk.parameters.items():
            if name != "request":
                lowest(climb, value, lambda n, place=place, name=name: _aimed(climb.best, place, name, n), low=0)  # type: ignore[misc]


def _aimed(scenario: Scenario, place: int, name: str, value: int) -> Scenario:
    quirks = list(scenario.quirks)
    quirks[place] = Quirk(name=quirks[place].name, parameters={**quirks[place].parameters, name: value})
    return replace(scenario, quirks=tuple(quirks))


def put_back_settings(climb: Climb) -> None:
    """Settings of the engine, then those of requests: all, those of one request, one parameter."""
    for name in SETTINGS:
        climb.take(_with_config(climb.best, name, DEFAULTS[name]))
    climb.take(replace(climb.best, checks=False))
    if climb.take(_with_each(climb.best, _plain)):
        return
    climb.take(_with_each(climb.best, lambda visit: replace(visit, flags=NO_FLAGS)))
    for name in SAMPLING:
        climb.take(_with_each(climb.best, lambda visit, name=name: _without(visit, name)))  # type: ignore[misc]
    for request in [visit.id for visit in climb.best.visits]:
        if climb.take(with_visit(climb.best, _plain(climb.best.visit(request)))):
            continue
        climb.take(with_visit(climb.best, replace(climb.best.visit(request), flags=NO_FLAGS)))
        for name in SAMPLING:
            climb.take(with_visit(climb.best, _without(climb.best.visit(request), name)))


def _plain(visit: Visit) -> Visit:
    return replace(visit, sampling=plain_sampling(visit.sampling), flags=NO_FLAGS)


def _without(visit: Visit, name: str) -> Visit:
    return replace(visit, sampling=plain_sampling(visit.sampling, (name,)))


def _with_each(scenario: Scenario, change: Callable[[Visit], Visit]) -> Scenario:
    return with_visits(scenario, [change(visit) for visit in scenario.visits])


def smaller_chunks(climb: Climb) -> None:
    """Smaller blocks and fewer tokens in a step: with them, prompts that have to fill some can be shorter."""
    for name in ("block_size", "max_num_batched_tokens"):
        _lower(climb, name)
    lowest(climb, climb.best.config.block_size, lambda size: _scaled(climb.best, size))


def _scaled(scenario: Scenario, block_size: int) -> Scenario:
    """Prompts that fill as many blocks, and take as many steps, as before: all with less in them."""
    config = scenario.config
    budget = max(config.max_num_batched_tokens * block_size // config.block_size, 1)
    smaller = replace(config, block_size=block_size, max_num_batched_tokens=budget)
    visits = [
        replace(v, prompt=v.prompt[: -(-len(v.prompt) * block_size // config.block_size)]) for v in scenario.visits
    ]
    return with_visits(replace(scenario, config=smaller), visits)


def smaller_sizes(climb: Climb) -> None:
    """As few requests at once, tokens of one request and blocks as may be."""
    for name in SIZES:
        _lower(climb, name)


def _lower(climb: Climb, name: str) -> None:
    lowest(climb, getattr(climb.best.config, name), lambda value: _with_config(climb.best, name, value))


def _with_config(scenario: Scenario, name: str, value: Any) -> Scenario:
    return replace(scenario, config=replace(scenario.config, **{name: value}))
