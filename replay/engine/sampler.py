"""Draws the next token from one row of logits.

The order is that of vLLM V1: min_tokens, logit_bias, repetition, frequency and presence penalties (float32), then
temperature, min_p, top_k, top_p and the draw (float64). The draw is Gumbel-max with noise that depends on (seed,
sample index, position, token id) alone, so a request draws the same tokens whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from replay.engine.request import SamplingParams

Row = NDArray[np.float32]
Scores = NDArray[np.float64]

_FLOAT32 = np.finfo(np.float32)

LUCKY = np.uint64(2**64 - 2**54)
"""Raw noise of one token in 1,024: that from which the uniform number is at least 1 - 2**-10."""

MOST_WITHOUT_LUCK = 6.94
"""Above all Gumbel noise that smaller raw noise gives: -log(-log(1 - 2**-10)) is 6.931."""


def is_finite(logits: Row) -> bool:
    """Whether a row can be drawn from: no NaN, no +inf, and at least one finite value (-inf alone is masking)."""
    return bool(np.isfinite(logits.max()))


def margin(logits: Row) -> float:
    """Top-1 minus top-2 of the raw logits: how far the argmax is from flipping. +inf for a row with one value."""
    if logits.size < 2:
        return float("inf")
    best = int(logits.argmax())
    others = [float(part.max()) for part in (logits[:best], logits[best + 1 :]) if part.size]
    return float(logits[best]) - max(others)


def gumbel_noise(*, seed: int, sample_index: int, position: int, size: int) -> NDArray[np.uint64]:
    """Raw noise for `size` token ids, 64 bits each: Philox4x64 with key (seed, sample_index).

    The position is the counter's second word. The first is the one that runs along the vocabulary, so positions never
    overlap.
    """
    key = np.array([seed, sample_index], dtype=np.uint64)
    counter = np.array([0, position, 0, 0], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(size)


def adjusted(
    logits: Row,
    sampling: SamplingParams,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    eos_token_ids: Sequence[int] = (),
) -> Row:
    """Logits after min_tokens, logit_bias and the penalties, float32 [V]. Returns `logits` itself when none applies.

    Repetition counts prompt and output (as in transformers and vLLM), presence and frequency only the output (as in
    the OpenAI API).
    """
    suppressed = (*eos_token_ids, *sampling.stop_token_ids) if len(output) < sampling.min_tokens else ()
    repetition = sampling.repetition_penalty != 1.0
    counted = sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0
    if not (suppressed or sampling.logit_bias or repetition or counted):
        return logits
    row = logits.astype(np.float32, copy=True)
    if suppressed:
        row[[token for token in suppressed if token < row.size]] = -np.inf
    for token, bias in sampling.logit_bias:
        row[token] += np.float32(bias)
    if repetition:
        seen = np.unique(np.fromiter((*prompt, *output), dtype=np.int64))
        # A dump may hold any positive number, and a model logits as large as the type allows: the row stays drawable.
        penalty = np.float32(min(max(sampling.repetition_penalty, float(_FLOAT32.tiny)), float(_FLOAT32.max)))
        values = row[seen]
        with np.errstate(over="ignore", under="ignore"):
            penalised = np.where(values > 0, values / penalty, values * penalty)
        row[seen] = np.minimum(penalised, _FLOAT32.max)
    if counted and output:
        drawn, counts = np.unique(np.asarray(output, dtype=np.int64), return_counts=True)
        row[drawn] -= np.float32(sampling.frequency_penalty) * counts.astype(np.float32)
        row[drawn] -= np.float32(sampling.presence_penalty)
    return row


def kept(row: Row, sampling: SamplingParams) -> tuple[NDArray[np.int64], Scores]:
    """Token ids that temperature, min_p, top_k and top_p leave, and their scaled logits (maximum 0, natural log).

    Needs temperature above 0. Ties are broken towards the lower id, so top_k keeps exactly k and never zero tokens.
    """
    # Subtracting the maximum first keeps every temperature finite: the best stays at 0, the others fall to -inf.
    with np.errstate(over="ignore"):
        scores = (row.astype(np.float64) - np.float64(row.max())) / sampling.temperature
    ids = np.arange(row.size, dtype=np.int64)
    if sampling.min_p > 0.0:
        ids = np.flatnonzero(scores >= np.log(sampling.min_p))
        scores = scores[ids]
    if 0 < sampling.top_k < ids.size:
        best = _ranked(scores, sampling.top_k)[: sampling.top_k]
        ids, scores = ids[best], scores[best]
    if sampling.top_p < 1.0:
        best = _nucleus(scores, sampling.top_p)
        ids, scores = ids[best], scores[best]
    return ids, scores


def draw(
    logits: Row,
    sampling: SamplingParams,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    sample_index: int,
    position: int,
    eos_token_ids: Sequence[int] = (),
) -> int:
    """The token at `position` (prompt and output counted together), drawn from `logits`, float32 [V].

    `logits` must pass `is_finite`; they are not modified. Temperature 0 takes the maximum, the lowest id at a tie.
    """
    row = adjusted(logits, sampling, prompt=prompt, output=output, eos_token_ids=eos_token_ids)
    best = int(row.argmax())
    if sampling.temperature == 0.0 or row[best] == -np.inf:
        return best
    ids, scores = kept(row, sampling)
    noise = gumbel_noise(seed=sampling.seed, sample_index=sample_index, position=position, size=row.size)
    if ids.size < row.size:
        noise = noise[ids]
    # Logarithms only for those that can win: the lucky, the best, and whoever could reach their value without luck.
    chosen = noise >= LUCKY
    chosen[scores.argmax()] = True
    chosen |= scores >= _noisy(scores[chosen], noise[chosen]).max() - MOST_WITHOUT_LUCK
    values = _noisy(scores[chosen], noise[chosen])
    winners = ids[chosen][values == values.max()]
    return int(winners.min())


def _noisy(scores: Scores, noise: NDArray[np.uint64]) -> Scores:
    """Scores plus Gumbel noise from 52 bits and a half: never 0 and never 1, so that both logarithms are finite."""
    uniform = ((noise >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    values: Scores = scores - np.log(-np.log(uniform))
    return values


def _ranked(scores: Scores, at_least: int) -> NDArray[np.int64]:
    """Indices of at least that many best scores, best first, ties by index. Sorting only those is ten times cheaper."""
    if at_least >= scores.size:
        return np.argsort(-scores, kind="stable")
    threshold = np.partition(scores, scores.size - at_least)[scores.size - at_least]
    best = np.flatnonzero(scores >= threshold)
    return best[np.argsort(-scores[best], kind="stable")]


def _nucleus(scores: Scores, top_p: float) -> NDArray[np.int64]:
    """Indices of the smallest set of best scores whose probability reaches `top_p`: at least one."""
    total = np.exp(scores).sum()
    for at_least in (256, 4096, scores.size):
        best = _ranked(scores, at_least)
        mass = np.cumsum(np.exp(scores[best])) / total
        above = int(np.searchsorted(mass, top_p, side="left"))
        if above < best.size:
            return best[: above + 1]
    return best
