"""Rebuilds a request's KV cache from its recorded tokens in large prefill chunks (teacher forcing).

With the exact kernels the cache and the logits are, bit for bit, those that the recorded steps made one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from replay.engine.kv_store import NEVER, KVStore
from replay.engine.request import Request
from replay.engine.runner import ModelRunner
from replay.engine.schedule import Chunk, Sample

CHUNK = 512
"""Tokens computed at once. Chunks end at multiples of it, where the exact kernels' blocks of keys end as well."""

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
    digest_at: Container[int] | None = None,
    chunk: int = CHUNK,
    on_progress: Progress | None = None,
    start: int = 0,
    written_by: Sequence[int] | None = None,
) -> list[TokenCheck]:
    """Compute keys and values of ``tokens[start:upto]`` into the request's blocks, which must be assigned.

    ``start`` says how many tokens' keys and values are there already. With ``check_from`` each output token that the
    request has at positions ``check_from .. upto`` is also drawn; the recorded one is fed on either way. Where the
    runner makes digests, ``digest_at`` holds the positions that get one; None means all.
    ``written_by[position]`` is the recorded step that wrote a position, to stamp its slot with; -1 is without it. The
    request itself is not changed. ``on_progress`` gets (positions done, positions in all).

    Inside a chunk a NaN also reaches earlier rows (a masked score of 0 times NaN). So where a chunk has a non-finite
    value or raises, its start is restored and it is computed again in halves, down to the single token with which that
    begins: a part that comes out finite holds what single steps would have made. An exception of that token's step
    passes through.
    """
    if not 0 <= start <= upto <= request.num_tokens:
        raise ValueError(f"cannot compute positions {start} to {upto} of a request with {request.num_tokens} tokens")
    checks: list[TokenCheck] = []
    clean = True
    first = start
    while first < upto:
        stop = min(first - first % chunk + chunk, upto)
        # Once a value is not finite, what follows is not either, and is not worth single steps.
        for begin, hidden in _advance(runner, request, first, stop, split=clean):
            if written_by is not None:
                end = begin + hidden.shape[0]
                runner.kv.written_step[runner.kv.slots_of(request.blocks, begin, end)] = written_by[begin:end]
            if check_from is not None:
                checks.extend(_check(runner, request, hidden, begin, check_from, digest_at))
            clean = clean and _finite(hidden)
        if on_progress is not None:
            on_progress(stop - start, upto - start)
        first = stop
    return checks


def _advance(
    runner: ModelRunner, request: Request, first: int, stop: int, *, split: bool
) -> Iterator[tuple[int, torch.Tensor]]:
    """Compute positions ``first .. stop - 1`` at once, or in halves where that fails and `split` allows it.

    Yields (first position, final hidden states [positions, hidden_size]).
    """
    single = stop - first == 1
    before = _Stamps(runner.kv, runner.kv.slots_of(request.blocks, first, stop))
    hidden = None
    try:
        hidden = runner.compute([Chunk(request, first, stop - first)], step=NEVER)
    except Exception:
        if single:
            raise
    if hidden is not None and (single or not split or _finite(hidden)):
        yield first, hidden
        return
    before.restore()
    middle = (first + stop) // 2
    for begin, end in ((first, middle), (middle, stop)):
        for part in _advance(runner, request, begin, end, split=split):
            # As between chunks: behind the first value that is not finite nothing is worth single steps.
            split = split and _finite(part[1])
            yield part


class _Stamps:
    """Who wrote some slots. What a failed chunk leaves in them counts as never written once this is restored."""

    def __init__(self, kv: KVStore, slots: NDArray[np.int64]) -> None:
        self._kv, self._slots = kv, slots
        self._steps, self._positions = kv.written_step[slots], kv.position[slots]
        self._owners = [kv.owner[slot] for slot in slots.tolist()]
        self._just_written = kv.just_written

    def restore(self) -> None:
        kv = self._kv
        kv.written_step[self._slots], kv.position[self._slots] = self._steps, self._positions
        for slot, owner in zip(self._slots.tolist(), self._owners, strict=True):
            kv.owner[slot] = owner
        kv.just_written = self._just_written


def _finite(hidden: torch.Tensor) -> bool:
    return bool(torch.isfinite(hidden).all())


def _check(
    runner: ModelRunner,
    request: Request,
    hidden: torch.Tensor,
    first: int,
    check_from: int,
    digest_at: Container[int] | None,
) -> Iterator[TokenCheck]:
    """Checks of the tokens that the rows of positions from `first` on predict: those one position later."""
    begin = max(first, check_from - 1, request.num_prompt - 1)
    end = min(first + hidden.shape[0], request.num_tokens - 1)
    for slice_start in range(begin, end, LOGIT_ROWS):
        rows = range(slice_start, min(slice_start + LOGIT_ROWS, end))
        for row, logits in zip(rows, runner.logits(hidden, [row - first for row in rows]), strict=True):
            position = row + 1
            recorded = request.tokens[position]
            wanted = digest_at is None or position in digest_at
            sample = runner.sample(logits, request, position=position, expected=recorded, digest_wanted=wanted)
            yield TokenCheck(position=position, recorded=recorded, sample=sample)
