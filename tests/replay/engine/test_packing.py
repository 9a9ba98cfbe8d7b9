"""Rows of several replays in one call: each as it would be alone, and one that fails harms no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from replay.engine import packing
from replay.engine.attention import Placed
from replay.engine.packing import forward_all, head_all
from replay.engine.runner import forward, head
from replay.engine.schedule import Chunk
from replay.engine.weights import load_model
from tests.mixing import make_request, random_tokens
from tests.tiny import make_tiny_model

BLOCK = 4


@pytest.fixture(scope="module", params=["exact", "stock"])
def model(request, tmp_path_factory):
    folder = make_tiny_model(tmp_path_factory.mktemp("weights") / "tiny")
    return load_model(folder, dtype="float32", kernels=request.param)


def steps_of(model, sizes):
    """A step for each list of chunk lengths, over a cache of its own."""
    steps = []
    for place, lengths in enumerate(sizes):
        kv = model.kv_store(num_blocks=64, block_size=BLOCK)
        step, block = [], 0
        for length in lengths:
            blocks = range(block, block - (-length // BLOCK))
            own = make_request(random_tokens(length, 256, seed=place * 100 + block), blocks, name=f"r{place}-{block}")
            block = blocks.stop
            step.append(Placed(Chunk(own, 0, length), kv))
        steps.append(step)
    return steps


def alone(model, sizes):
    return [(forward(model, step), step[0].kv.data.clone()) for step in steps_of(model, sizes)]


SIZES = [[1], [5, 1], [40], [1, 1, 1], [17]]


@pytest.mark.parametrize("most", [4, 30, 512])
def test_rows_and_caches_are_those_of_each_alone(model, most, monkeypatch):
    monkeypatch.setattr(packing, "MOST_ROWS", most)
    expected = alone(model, SIZES)
    steps = steps_of(model, SIZES)
    computed = forward_all(model, steps)
    for (rows, cache), step, one in zip(expected, steps, computed, strict=True):
        assert one.error is None
        assert torch.equal(one.rows, rows)
        assert torch.equal(step[0].kv.data, cache)
        assert one.seconds > 0
    logits = head_all(model, [one.rows for one in computed])
    for (rows, _), one in zip(expected, logits, strict=True):
        assert torch.equal(one.rows, head(model, rows))


def test_exact_rows_are_packed_and_stock_rows_are_not(model, monkeypatch):
    calls = []

    def counted(model, placed):
        calls.append(len(placed))
        return forward(model, placed)

    monkeypatch.setattr(packing, "forward", counted)
    forward_all(model, steps_of(model, SIZES))
    assert calls == ([8] if model.kernels == "exact" else [1, 2, 1, 3, 1])


def test_one_that_raises_leaves_the_others_as_they_are(model):
    """A token beyond the vocabulary makes the whole call fail."""
    expected = alone(model, SIZES)
    steps = steps_of(model, SIZES)
    steps[1][0].chunk.request.tokens[3] = 10_000
    computed = forward_all(model, steps)
    assert isinstance(computed[1].error, IndexError)
    for place in (0, 2, 3, 4):
        assert computed[place].error is None
        assert torch.equal(computed[place].rows, expected[place][0])
        assert torch.equal(steps[place][0].kv.data, expected[place][1])


def test_a_shared_model_is_run_by_its_sharer(model):
    class Sharer:
        def __init__(self):
            self.seen = []

        def forward(self, placed):
            self.seen.append("forward")
            return forward(model, placed)

        def head(self, hidden):
            self.seen.append("head")
            return head(model, hidden)

    sharer = Sharer()
    shared = replace(model, shared=sharer)
    (step,) = steps_of(model, [[5]])
    rows = forward(shared, step)
    assert torch.equal(rows, forward(model, step))
    assert torch.equal(head(shared, rows), head(model, rows))
    assert sharer.seen == ["forward", "head"]
