"""One request's logits, computed alone or among others, in chunks of any size, at any blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from replay.engine.loaded import LoadedModel
from replay.engine.request import Request, SamplingParams
from replay.engine.runner import ModelRunner
from replay.engine.schedule import Chunk

BLOCK_SIZE = 16
GREEDY = SamplingParams(temperature=0.0)


def make_request(tokens: Sequence[int], blocks: Sequence[int], *, name: str = "r", num_prompt: int = 0) -> Request:
    """A request that holds its blocks. All its tokens are prompt, unless `num_prompt` says how many are."""
    return Request(
        id=name, tokens=list(tokens), num_prompt=num_prompt or len(tokens), sampling=GREEDY, blocks=list(blocks)
    )


def poisoned_runner(model: LoadedModel, *, num_blocks: int, **options: Any) -> ModelRunner:
    """A runner whose cache is full of NaN: what a freed block holds must never matter. `options` are the cache's."""
    kv = model.kv_store(num_blocks=num_blocks, block_size=BLOCK_SIZE, **options)
    kv.fill_blocks(range(num_blocks), float("nan"))
    return ModelRunner(model, kv)


def random_tokens(count: int, vocab_size: int, *, seed: int) -> list[int]:
    raw = np.random.PCG64(seed).random_raw(count)
    return [int(value % vocab_size) for value in raw]


def chunks_of(size: int, total: int) -> list[int]:
    """Chunk lengths that cut `total` tokens into pieces of `size`."""
    return [min(size, total - start) for start in range(0, total, size)]


def run_among(
    runner: ModelRunner,
    request: Request,
    lengths: Sequence[int],
    *,
    others: Sequence[Request] = (),
    other_length: Callable[[int, int], int] = lambda step, index: 1,
    place: int = 0,
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Logits at every position of `request` [tokens, vocab], and its KV blocks, computed in chunks of `lengths`.

    In each step the others' next tokens are computed too, `other_length(step, index)` of them; `place` of the others
    stand before the request in the batch. An other that has no tokens left starts again.
    """
    starts = [0] * len(others)
    rows, start = [], 0
    for step, length in enumerate(lengths):
        mates = []
        for index, other in enumerate(others):
            count = min(other_length(step, index), other.num_tokens)
            if starts[index] + count > other.num_tokens:
                starts[index] = 0
            mates.append(Chunk(other, starts[index], count))
            starts[index] += count
        batch = [*mates[:place], Chunk(request, start, length), *mates[place:]]
        first = sum(chunk.num_tokens for chunk in batch[:place])
        hidden = runner.compute(batch, step=step)
        rows.append(runner.logits(hidden, range(first, first + length)))
        start += length
    return np.concatenate(rows), runner.kv.read_blocks(request.blocks)


def run_in_drawn_mix(
    data: st.DataObject, runner: ModelRunner, tokens: Sequence[int], *, most_others: int = 7, other_tokens: int = 64
) -> tuple[Request, NDArray[np.float32], NDArray[Any]]:
    """The request, its logits and its KV blocks, with everything drawn that must not change them.

    That is the chunks, the blocks, and how many others of `other_tokens` are computed in which chunks around it.
    """
    lengths: list[int] = []
    while sum(lengths) < len(tokens):
        lengths.append(data.draw(st.integers(1, min(33, len(tokens) - sum(lengths))), label="chunk"))
    blocks = data.draw(st.permutations(range(runner.kv.num_blocks)), label="blocks")
    own, each = (-(-count // BLOCK_SIZE) for count in (len(tokens), other_tokens))
    count = data.draw(st.integers(0, most_others), label="others")
    others = [
        make_request(
            random_tokens(other_tokens, runner.model.vocab_size, seed=100 + index),
            blocks[own + each * index : own + each * (index + 1)],
            name=f"o{index}",
        )
        for index in range(count)
    ]
    takes = data.draw(st.lists(st.integers(1, 40), min_size=7, max_size=7), label="other lengths")
    request = make_request(tokens, blocks[:own])
    logits, kv = run_among(
        runner,
        request,
        lengths,
        others=others,
        other_length=lambda step, index: takes[(step + index) % 7],
        place=data.draw(st.integers(0, count), label="place"),
    )
    return request, logits, kv
