"""Early exit: an answer ends once the model is sure enough of a token, and every decision to go on can be traced.

The confidence is the largest softmax probability, as in confidence-based early exiting (Schuster et al., "Confident
Adaptive Language Modeling", 2022), taken here over whole tokens instead of layers: what it ends is the answer. Float64
throughout, so that a replay with the same logits decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from replay.engine.request import InternalFlags, Request
from replay.engine.sampler import Row
from replay.engine.schedule import Confidence, Sample, StepPlan

CANDIDATES = 5
"""Ids in a candidate set."""


class FallbackReason(StrEnum):
    """Why an answer went on to be generated in full after a token.

    NO_THRESHOLD stands in traces without an early exit: they show which threshold would have ended what.
    """

    BELOW_THRESHOLD = "below-threshold"
    MIN_TOKENS = "min-tokens"
    NO_THRESHOLD = "no-threshold"


@dataclass(frozen=True, slots=True)
class Fallback:
    """One decision to go on: step ``step`` drew ``token`` at ``position`` (prompt and output counted together)."""

    request: Request
    step: int
    position: int
    token: int
    confidence: Confidence
    reason: FallbackReason


def wanted(flags: InternalFlags) -> bool:
    """Whether draws of a request need their confidence."""
    return flags.early_exit is not None or flags.fallback_trace


def confidence(row: Row) -> Confidence:
    """Softmax of a row, float32 [V], at temperature 1, and its `CANDIDATES` likeliest ids; ties go to the lower id.

    The row is the one after bias and penalties: what min_tokens suppresses is no candidate. It must hold no NaN and no
    +inf.
    """
    best = row.max()
    if best == -np.inf:  # everything is suppressed
        return Confidence(())
    weights = np.exp(row.astype(np.float64) - np.float64(best))
    total = weights.sum()
    candidates: list[tuple[int, float]] = []
    rest = row.copy()
    for _ in range(CANDIDATES):  # a maximum at a time: for so few that is fifty times faster than a partition
        token = int(rest.argmax())
        if rest[token] == -np.inf:
            break
        candidates.append((token, float(weights[token] / total)))
        rest[token] = -np.inf
    return Confidence(tuple(candidates))


def reached(flags: InternalFlags, seen: Confidence) -> bool:
    """Whether an answer may end with the token that was drawn at this confidence."""
    return flags.early_exit is not None and seen.top >= flags.early_exit


def explained(seen: Confidence, threshold: float, noise: float) -> bool:
    """Whether logits that rounding moves apart by up to ``noise`` could have put the confidence on the other side.

    Moving each difference to the top logit by that much multiplies the odds p / (1 - p) by e^noise at most.
    """
    return abs(_log_odds(seen.top) - _log_odds(threshold)) <= noise


def _log_odds(p: float) -> float:
    """Float64 has no probabilities between 1 - 2^-53 and 1, so both ends are closed there."""
    p = min(max(p, 2.0**-53), 1.0 - 2.0**-53)
    return math.log(p) - math.log1p(-p)


def fallback(request: Request, *, step: int, position: int, sample: Sample) -> Fallback | None:
    """The decision to go on after a drawn token. None where no trace of it is wanted, or no confidence is known."""
    seen = sample.confidence
    if seen is None or not request.flags.fallback_trace:
        return None
    if request.flags.early_exit is None:
        reason = FallbackReason.NO_THRESHOLD
    else:
        reason = FallbackReason.MIN_TOKENS if sample.early_exit else FallbackReason.BELOW_THRESHOLD
    return Fallback(request, step, position, sample.token, seen, reason)


def fallbacks(plan: StepPlan, samples: Mapping[str, Sample]) -> list[Fallback]:
    """The decisions to go on that a step took, in batch order. Call it after its tokens were committed.

    A request that ended with its token, by whatever cause, took none.
    """
    found: list[Fallback] = []
    for chunk in plan.chunks:
        request = chunk.request
        if not request.flags.fallback_trace or request.finished or (sample := samples.get(request.id)) is None:
            continue
        made = fallback(request, step=plan.index, position=request.num_tokens - 1, sample=sample)
        if made is not None:
            found.append(made)
    return found
