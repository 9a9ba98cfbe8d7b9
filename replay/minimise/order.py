"""What is simple, and the order in which one scenario is smaller than another.

Every accepted change makes `cost` smaller, and all of its entries are counts, so a search comes to its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from replay.engine.request import NO_FLAGS, SamplingParams
from replay.engine.schedule import EngineConfig
from replay.scenario.answers import filler
from replay.scenario.scenario import Scenario, Visit, size

SETTINGS = ("on_kv_exhausted", "prefix_cache", "kv_quant_bits")
"""Those of `EngineConfig` with a default that asks for nothing. The others are sizes."""

_PLAIN = SamplingParams(temperature=0.0)
_LENGTHS = ("max_tokens",)
"""A limit makes a run smaller, and is no setting to get rid of."""

SAMPLING = tuple(field.name for field in fields(SamplingParams) if field.name not in _LENGTHS)
DEFAULTS = {field.name: field.default for field in fields(EngineConfig)}


def cost(scenario: Scenario) -> tuple[int, ...]:
    """Smaller is simpler, the first entry that differs decides."""
    config = scenario.config
    tokens = [token for visit in scenario.visits for token in visit.prompt]
    return (
        *size(scenario),
        len(list(extras(scenario))),
        sum(value for quirk in scenario.quirks for value in quirk.parameters.values()),
        config.block_size,
        config.max_num_batched_tokens,
        config.max_model_len,
        config.max_num_seqs,
        len(set(tokens)),
        sum(map(abs, tokens)),
        sum(visit.arrives + (visit.leaves or 0) + (visit.leaves_again or 0) for visit in scenario.visits),
        sum(visit.sample_index + visit.leave_rank for visit in scenario.visits),
        sum(visit.sampling.max_tokens for visit in scenario.visits),
    )


def extras(scenario: Scenario) -> Iterator[str]:
    """A name for each setting that is not at its simplest, once for every request that has it."""
    for name in SETTINGS:
        if getattr(scenario.config, name) != DEFAULTS[name]:
            yield name
    if scenario.checks:
        yield "checks"
    for visit in scenario.visits:
        yield from (name for name in SAMPLING if getattr(visit.sampling, name) != getattr(_PLAIN, name))
        if visit.flags != NO_FLAGS:
            yield "internal flags"


def plain_sampling(sampling: SamplingParams, names: tuple[str, ...] = SAMPLING) -> SamplingParams:
    """Greedy and without anything else; ``names`` says which parameters are put back."""
    return replace(sampling, **{name: getattr(_PLAIN, name) for name in names})


def simplest_token(scenario: Scenario) -> int:
    """The lowest id that ends no answer of the scenario."""
    ending = {token for visit in scenario.visits for token in visit.sampling.stop_token_ids}
    stops = SamplingParams(stop_token_ids=tuple(sorted(ending)))
    return filler(scenario, Visit(id="", prompt=(0,), sampling=stops))
