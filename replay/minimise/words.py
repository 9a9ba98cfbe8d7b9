"""A scenario in words: how large it is, and what it needs."""

from __future__ import annotations

from replay.minimise.order import DEFAULTS, SAMPLING, SETTINGS, plain_sampling
from replay.scenario.scenario import Scenario, size


def sizes(scenario: Scenario) -> dict[str, int]:
    """Counts by name, for programs."""
    requests, quirks, tokens, blocks, events, last = size(scenario)
    return {
        "requests": requests,
        "tokens": tokens,
        "blocks": blocks,
        "quirks": quirks,
        "events": events,
        "last_event_step": last,
    }


def in_words(scenario: Scenario) -> str:
    """As in "2 requests, 33 tokens, 3 blocks"."""
    counts = sizes(scenario)
    return ", ".join(counted(counts[name], name) for name in ("requests", "tokens", "blocks"))


def needs_in_words(needs: list[str]) -> str:
    """As in "needs prefix cache and int8 KV together"; "" where it needs nothing."""
    if not needs:
        return ""
    if len(needs) == 1:
        return f"needs {needs[0]}"
    return f"needs {', '.join(needs[:-1])} and {needs[-1]} together"


def settings_in(scenario: Scenario) -> list[str]:
    """What differs from a plain engine and plain greedy requests that all come at once, in words."""
    config, found = scenario.config, []
    if config.prefix_cache != DEFAULTS["prefix_cache"]:
        found.append("prefix cache")
    if config.kv_quant_bits != DEFAULTS["kv_quant_bits"]:
        found.append(f"int{config.kv_quant_bits} KV")
    if config.on_kv_exhausted != DEFAULTS["on_kv_exhausted"]:
        found.append(f"policy {config.on_kv_exhausted.value}")
    assert len(SETTINGS) == 3
    if scenario.checks:
        found.append("checks of what a step reads")
    found += [f"quirk {quirk.name}" for quirk in scenario.quirks]
    for name in SAMPLING:
        if any(plain_sampling(visit.sampling, (name,)) != visit.sampling for visit in scenario.visits):
            found.append(name.replace("_", " "))
    if any(visit.flags.early_exit is not None for visit in scenario.visits):
        found.append("early exit")
    leaving = sum(visit.leaves is not None for visit in scenario.visits)
    if leaving:
        found.append("an abort" if leaving == 1 else f"{leaving} aborts")
    return found


def counted(number: int, things: str) -> str:
    """As in "1 draw of entropy", from the plural "draws of entropy"."""
    head, of, tail = things.partition(" of ")
    return f"{number:,} {head.removesuffix('s') if number == 1 else head}{of}{tail}"
