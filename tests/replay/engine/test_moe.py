"""Experts against their definition, and that no call to a layer has a number of rows that was not proven."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replay.engine.kernels.activations import ExactSiLU
from replay.engine.kernels.exact import ExactLinear, LinearForm, plain_linear
from replay.engine.kernels.moe import ExactExperts, ExactRouter
from replay.engine.probe_rows import random_rows

EXPERTS, HIDDEN, INNER, TOP_K, TILE = 5, 16, 24, 3, 4


def weight(rows: int, columns: int, seed: int) -> torch.Tensor:
    return random_rows(rows + seed, columns, torch.float32)[seed:] * columns**-0.5


def linear(weights: torch.Tensor, sizes: list[int] | None = None) -> ExactLinear:
    """A layer that notes the row counts of its calls in `sizes`."""
    function = plain_linear(weights, None)

    def noting(rows: torch.Tensor) -> torch.Tensor:
        if sizes is not None:
            sizes.append(rows.shape[-2])
        return function(rows)

    return ExactLinear(noting, LinearForm(kernel="plain", sizes=tuple(range(1, 513))))


GATE_UP = [weight(2 * INNER, HIDDEN, seed) for seed in range(EXPERTS)]
DOWN = [weight(HIDDEN, INNER, 50 + seed) for seed in range(EXPERTS)]


def experts(sizes: list[int] | None = None) -> ExactExperts:
    gate_up, down = ([linear(w, sizes) for w in part] for part in (GATE_UP, DOWN))
    return ExactExperts(gate_up, down, ExactSiLU(), tile=TILE)


def definition(row: torch.Tensor, chosen: list[int], weights: list[float]) -> torch.Tensor:
    total = torch.zeros(HIDDEN, dtype=torch.float64)
    for expert, share in zip(chosen, weights, strict=True):
        gate, up = (GATE_UP[expert].double() @ row.double()).chunk(2)
        total += share * (DOWN[expert].double() @ (torch.nn.functional.silu(gate) * up))
    return total


@given(st.integers(1, 13), st.randoms(use_true_random=False))
def test_experts_are_their_definition_in_calls_of_whole_tiles(rows, random):
    hidden = random_rows(rows, HIDDEN, torch.float32)
    chosen = [random.sample(range(EXPERTS), TOP_K) for _ in range(rows)]
    weights = [[random.random() for _ in range(TOP_K)] for _ in range(rows)]
    sizes: list[int] = []
    result = experts(sizes)(hidden, torch.tensor(chosen), torch.tensor(weights))
    assert sizes
    assert not [size for size in sizes if size % TILE]
    expected = torch.stack([definition(*row) for row in zip(hidden, chosen, weights, strict=True)])
    assert torch.allclose(result.double(), expected, atol=1e-5)


def test_shares_are_added_in_the_order_of_the_ranking():
    """Large shares that cancel: what is left of the small one tells the order."""
    hidden = torch.ones((1, HIDDEN))
    large = [torch.full((HIDDEN, INNER), value) for value in (1e8, 1.0, -1e8)]
    identity = [linear(torch.ones((2 * INNER, HIDDEN)) / HIDDEN) for _ in large]
    layer = ExactExperts(identity, [linear(w) for w in large], ExactSiLU(), tile=TILE)
    ones = torch.ones((1, 3))
    first, last = (layer(hidden, torch.tensor([order]), ones)[0, 0] for order in ([0, 1, 2], [0, 2, 1]))
    assert first == 0.0
    assert last > 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("normalise", "wide"), [(True, True), (True, False), (False, False)])
def test_the_router_ranks_by_softmax_and_weighs_by_it(dtype, normalise, wide):
    weights = weight(EXPERTS, HIDDEN, 9).to(dtype)
    hidden = random_rows(7, HIDDEN, dtype)
    router = ExactRouter(linear(weights), top_k=TOP_K, normalise=normalise, wide=wide)
    logits, shares, chosen = router(hidden)
    probabilities = torch.softmax((hidden @ weights.t()).double(), dim=-1)
    expected, order = probabilities.topk(TOP_K, dim=-1)
    if normalise:
        expected = expected / expected.sum(-1, keepdim=True)
    assert logits.shape == (7, EXPERTS)
    assert torch.equal(chosen, order)
    assert shares.dtype == (torch.float32 if wide else dtype)
    assert torch.allclose(shares.double(), expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5)
