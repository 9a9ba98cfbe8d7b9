"""Perplexity: how surprised a model is by the tokens that follow, as e to the mean negative log-likelihood.

As in transformers' causal language models: the logits at a position are for the next token, labels of -100 count for
nothing, and the mean is over real tokens, whatever sequence they stand in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from replay.engine.request import Request

if TYPE_CHECKING:
    from replay.engine.runner import ModelRunner

IGNORE_INDEX = -100


def nll(row: NDArray[np.float32], token: int) -> float:
    """Negative log-likelihood of a token, in nats, under one row of logits [V]: a log-softmax in float32.

    +inf for a token whose logit is -inf, NaN for a row that holds NaN or +inf.
    """
    with np.errstate(invalid="ignore"):
        shifted = row - row.max()
        return float(np.log(np.exp(shifted).sum()) - shifted[token])


def loss(logits: NDArray[np.float32], labels: NDArray[np.integer[Any]]) -> float:
    """Mean negative log-likelihood of ``labels`` [..., T] under ``logits`` [..., T, V], the way a model's own loss is.

    ``labels`` stand where the tokens stand; they are shifted here, so the last logits of a sequence and its first label
    have no part. Sums are in float64. NaN when every label is ignored.
    """
    vocab = logits.shape[-1]
    if logits.shape[:-1] != labels.shape:
        raise ValueError(f"logits of shape {logits.shape} do not belong to labels of shape {labels.shape}")
    rows, targets = logits[..., :-1, :].reshape(-1, vocab), labels[..., 1:].reshape(-1)
    real = targets != IGNORE_INDEX
    if bool(((targets < 0) | (targets >= vocab))[real].any()):
        raise ValueError(f"a label is neither {IGNORE_INDEX} nor a token id below {vocab}")
    values = [nll(rows[place], int(targets[place])) for place in np.flatnonzero(real)]
    return math.fsum(values) / len(values) if values else math.nan


def perplexity(values: Iterable[float]) -> float | None:
    """e to the mean of negative log-likelihoods; None without any. The order of the values makes no difference."""
    known = list(values)
    if not known:
        return None
    try:
        return math.exp(math.fsum(known) / len(known))
    except OverflowError:
        return math.inf


def of_request(runner: ModelRunner, request: Request) -> float | None:
    """Perplexity of a request's answer; None for one without an answer.

    Computes all of its tokens into its blocks, which must be assigned.
    """
    # Torch is imported here only: what reads a report needs the sums above and no model.
    from replay.engine.fast_forward import fast_forward

    checks = fast_forward(runner, request, request.num_tokens - 1, check_from=request.num_prompt)
    return perplexity(check.sample.nll for check in checks if check.sample.nll is not None)
