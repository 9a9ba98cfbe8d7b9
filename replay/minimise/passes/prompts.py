"""Shorter prompts of simpler tokens. What requests have in common at their beginning they keep in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from replay.minimise.climb import Climb
from replay.minimise.order import simplest_token
from replay.minimise.passes.requests import drop_runs, lowest
from replay.scenario.change import with_visits
from replay.scenario.scenario import Scenario


def shorten_prompts(climb: Climb) -> None:
    """All to one length, then runs of tokens out of each."""

    def all_to(length: int) -> Scenario:
        return _with_prompts(climb.best, {visit.id: visit.prompt[:length] for visit in climb.best.visits})

    lowest(climb, max(len(visit.prompt) for visit in climb.best.visits), all_to)
    for name in [visit.id for visit in climb.best.visits]:
        drop_runs(len(climb.best.visit(name).prompt), lambda start, stop, name=name: _cut(climb, name, start, stop))  # type: ignore[misc]


def _cut(climb: Climb, name: str, start: int, stop: int) -> bool:
    """Take a run of tokens out of one prompt: out of all that begin with the same tokens up to its end, else out of
    this one alone."""
    mine = climb.best.visit(name).prompt
    if stop - start >= len(mine):
        return False
    same = {visit.id: visit.prompt for visit in climb.best.visits if visit.prompt[:stop] == mine[:stop]}
    together = {other: (*prompt[:start], *prompt[stop:]) for other, prompt in same.items()}
    if all(together.values()) and climb.take_fitted(_with_prompts(climb.best, together)):
        return True
    return len(same) > 1 and climb.take_fitted(_with_prompts(climb.best, {name: together[name]}))


def simplify_tokens(climb: Climb) -> None:
    """One id for all tokens; else the lowest ids that leave equal what is equal, then fewer different ones."""
    simple = simplest_token(climb.best)
    if climb.take(_renamed(climb.best, dict.fromkeys(_ids(climb.best), simple))):
        return
    climb.take(_renamed(climb.best, dict(zip(_ids(climb.best), _lowest_ids(climb.best), strict=False))))
    for name in [visit.id for visit in climb.best.visits]:
        prompt = climb.best.visit(name).prompt
        climb.take(_with_prompts(climb.best, {name: tuple(simple if token >= 0 else token for token in prompt)}))
    for token in _ids(climb.best):
        if token != simple:
            climb.take(_renamed(climb.best, {token: simple}))
    climb.take(_renamed(climb.best, dict(zip(_ids(climb.best), _lowest_ids(climb.best), strict=False))))


def _ids(scenario: Scenario) -> list[int]:
    """Known token ids of all prompts, each once, in the order in which they occur."""
    return list(dict.fromkeys(token for visit in scenario.visits for token in visit.prompt if token >= 0))


def _lowest_ids(scenario: Scenario) -> list[int]:
    """As many ids as the prompts have different ones: the simplest, then those that follow and end no answer."""
    first, ending = simplest_token(scenario), set(scenario.eos_token_ids)
    ids = _ids(scenario)
    return [token for token in range(first, first + len(ids) + len(ending)) if token not in ending][: len(ids)]


def _renamed(scenario: Scenario, names: Mapping[int, int]) -> Scenario:
    if scenario.vocab_size and max(names.values(), default=0) >= scenario.vocab_size:
        return scenario
    prompts = {visit.id: tuple(names.get(token, token) for token in visit.prompt) for visit in scenario.visits}
    return _with_prompts(scenario, prompts)


def _with_prompts(scenario: Scenario, prompts: Mapping[str, tuple[int, ...]]) -> Scenario:
    visits = [replace(visit, prompt=prompts.get(visit.id, visit.prompt)) for visit in scenario.visits]
    return with_visits(scenario, visits)
