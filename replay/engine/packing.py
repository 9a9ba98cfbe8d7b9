"""Computes the steps of several replays of one model in as few calls as pay.

With exact kernels a row's bits do not depend on what else is in the call, so chunks of different replays, each in a
cache of its own, go through the model together. A decode step of one row costs nearly what sixteen rows cost; of long
chunks packing saves little, and beyond `MOST_ROWS` nothing. With stock kernels each replay's rows go alone: their bits
depend on the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from replay.engine.attention import Placed
from replay.engine.device import settle
from replay.engine.loaded import LoadedModel
from replay.engine.runner import forward, head

MOST_ROWS = 512
"""Rows of one call. SmolLM2, bfloat16, one thread: chunks of 20 tokens take half the time packed to 512 rows, those of
50 to 130 tokens 12 to 26 % less, those of 250 tokens 6 % less; 1,024 rows gain nothing over 512."""


@dataclass(frozen=True, slots=True)
class Computed:
    """One replay's rows, or the exception of its own call. ``seconds`` is its share, by rows, of the calls' time."""

    rows: torch.Tensor | None
    error: Exception | None
    seconds: float


Rows = Callable[[Sequence[int]], torch.Tensor]


def forward_all(model: LoadedModel, steps: Sequence[Sequence[Placed]]) -> list[Computed]:
    """Final hidden states of each replay's chunks, as `runner.forward` gives them for it alone, in the same order."""

    def rows_of(replays: Sequence[int]) -> torch.Tensor:
        hidden = forward(model, [one for index in replays for one in steps[index]])
        settle(model.device)
        return hidden

    return _packed(model, [sum(one.chunk.num_tokens for one in step) for step in steps], rows_of)


def head_all(model: LoadedModel, hidden: Sequence[torch.Tensor]) -> list[Computed]:
    """Logits of each replay's hidden states [rows, hidden_size], as `runner.head` gives them for it alone."""

    def rows_of(replays: Sequence[int]) -> torch.Tensor:
        logits = head(model, torch.cat([hidden[index] for index in replays]))
        settle(model.device)
        return logits

    return _packed(model, [rows.shape[0] for rows in hidden], rows_of)


def _packed(model: LoadedModel, rows: Sequence[int], rows_of: Rows) -> list[Computed]:
    """``rows`` counts those of each replay. ``rows_of`` computes the named replays' rows in one call."""
    most = MOST_ROWS if model.kernels == "exact" and not model.untested else 0
    computed: list[Computed] = []
    for group in _groups(rows, most):
        try:
            computed += _call(group, rows, rows_of)
        except Exception:
            # One of them is to blame, and the others must not notice. Keys and values are written again as they were.
            for index in group:
                computed.append(_alone(index, rows, rows_of))
    return computed


def _call(group: Sequence[int], rows: Sequence[int], rows_of: Rows) -> list[Computed]:
    began = time.perf_counter()
    with torch.inference_mode():
        parts = rows_of(group).split([rows[index] for index in group])
    spent, total = time.perf_counter() - began, sum(rows[index] for index in group)
    return [Computed(part, None, spent * part.shape[0] / total) for part in parts]


def _alone(index: int, rows: Sequence[int], rows_of: Rows) -> Computed:
    began = time.perf_counter()
    try:
        return _call([index], rows, rows_of)[0]
    except Exception as error:
        return Computed(None, error, time.perf_counter() - began)


def _groups(rows: Sequence[int], most: int) -> Iterator[list[int]]:
    """Indices in order, cut so that no group of several has more than ``most`` rows."""
    group: list[int] = []
    for index, count in enumerate(rows):
        if group and sum(rows[i] for i in group) + count > most:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
