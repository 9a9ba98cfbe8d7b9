"""Which visits a server would refuse: what is seen after one of these came in is nobody's failure."""

from __future__ import annotations

from replay.engine.defects import Defects
from replay.engine.quirks import defects_of
from replay.engine.request import SamplingParams
from replay.scenario.scenario import Scenario, Visit


def refused(scenario: Scenario) -> dict[str, str]:
    """Why the reference server would refuse a visit, by its id. What a defect leaves unchecked is let in."""
    defects = defects_of(scenario.quirks)
    reasons = ((visit.id, _reason(scenario, visit, defects)) for visit in scenario.visits)
    return {name: reason for name, reason in reasons if reason}


def sampling_problem(sampling: SamplingParams, vocab_size: int, defects: Defects) -> str:
    """What is wrong with sampling parameters, "" where nothing is or nobody looks."""
    problem = sampling.problem(vocab_size or 2**31)
    if problem is None or (defects.token_ids_unchecked and problem[0] in ("logit_bias", "stop_token_ids")):
        return ""
    return " ".join(problem)


def _reason(scenario: Scenario, visit: Visit, defects: Defects) -> str:
    config, length = scenario.config, len(visit.prompt)
    if length >= config.max_model_len:
        return f"its prompt has {length} tokens, at most {config.max_model_len - 1} leave room for an answer"
    needed = -(-length // config.block_size)
    if needed > config.num_blocks and not defects.prompt_unchecked:
        return f"its prompt needs {needed} KV blocks of {config.num_blocks}"
    return sampling_problem(visit.sampling, scenario.vocab_size, defects)
