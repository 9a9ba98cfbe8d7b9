"""Rebuilds a request's KV cache from its recorded tokens in large prefill chunks (teacher forcing).

With the exact kernels the cache and the logits are, bit for bit, those that the recorded steps made one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from replay.engine.kv_store import NEVER
from replay.engine.request import Request
from replay.engine.runner import ModelRunner
from replay.engine.schedule import Chunk, Sample

LOGIT_ROWS = 64
"""Rows of logits held at once: at a vocabulary of 150,000 they take 38 MB."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCheck:
    """The token drawn at ``position`` beside the one recorded there. ``sample.gap`` is the recorded token's distance to
    the top logit."""

    position: int
    recorded: int
    sample: Sample

    @property
    def agrees(self) -> bool:
        return self.sample.finite and self.sample.token == self.recorded


def fast_forward(
    runner: ModelRunner,
    request: Request,
    upto: int,
    *,
    check_from: int | None = None,
    chunk: int = 256,
    on_progress: Progress | None = None,
    start: int = 0,
    written_by: Sequence[int] | None = None,
) -> list[TokenCheck]:
    """Compute keys and values of ``tokens[start:upto]`` into the request's blocks, which must be assigned.

    ``start`` says how many tokens' keys and values are there already. With ``check_from`` each output token that the
    request has at positions ``check_from .. upto`` is also drawn; the recorded one is fed on either way.
    ``written_by[position]`` is the recorded step that wrote a position, to stamp its slot with; -1 is without it. The
    request itself is not changed. ``on_progress`` gets (positions done, positions in all).

    On a non-finite value, or an exception, in a chunk, the chunk is computed again token by token: inside a chunk a NaN
    also reaches earlier rows (a masked score of 0 times NaN), so only single steps tell where it began. Exceptions of
    the single step pass through.
    """
    if not 0 <= start <= upto <= request.num_tokens:
        raise ValueError(f"cannot compute positions {start} to {upto} of a request with {request.num_tokens} tokens")
    checks: list[TokenCheck] = []
    clean = True
    for first in range(start, upto, chunk):
        stop = min(first + chunk, upto)
        # Once a value is not finite, what follows is not either, and is not worth single steps.
        for begin, hidden in _advance(runner, request, first, stop, split=clean):
            if written_by is not None:
                end = begin + hidden.shape[0]
                runner.kv.written_step[runner.kv.slots_of(request.blocks, begin, end)] = written_by[begin:end]
            if check_from is not None:
                checks.extend(_check(runner, request, hidden, begin, begin + hidden.shape[0], check_from))
            clean = clean and _finite(hidden)
        if on_progress is not None:
            on_progress(stop - start, upto - start)
    return checks


def _advance(
    runner: ModelRunner, request: Request, first: int, stop: int, *, split: bool
) -> Iterator[tuple[int, torch.Tensor]]:
    """Compute positions ``first .. stop - 1`` at once, or singly where that fails and `split` allows it.

    Yields (first position, final hidden states [positions, hidden_size]).
    """
    hidden = None
    try:
        hidden = runner.compute([Chunk(request, first, stop - first)], step=NEVER)
    except Exception:
        if stop - first == 1:
            raise
    if hidden is not None and (not split or _finite(hidden)):
        yield first, hidden
        return
    for position in range(first, stop):
        yield position, runner.compute([Chunk(request, position, 1)], step=NEVER)


def _finite(hidden: torch.Tensor) -> bool:
    return bool(torch.isfinite(hidden).all())


def _check(
    runner: ModelRunner, request: Request, hidden: torch.Tensor, first: int, stop: int, check_from: int
) -> Iterator[TokenCheck]:
    """Checks of the tokens that rows of positions ``first .. stop - 1`` predict: those one position later."""
    begin = max(first, check_from - 1, request.num_prompt - 1)
    end = min(stop, request.num_tokens - 1)
    for slice_start in range(begin, end, LOGIT_ROWS):
        rows = range(slice_start, min(slice_start + LOGIT_ROWS, end))
        for position, logits in zip(rows, runner.logits(hidden, [row - first for row in rows]), strict=True):
            recorded = request.tokens[position + 1]
            sample = runner.sample(logits, request, position=position + 1, expected=recorded)
            yield TokenCheck(position=position + 1, recorded=recorded, sample=sample)
