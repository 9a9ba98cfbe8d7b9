"""Perplexity: a case by hand, transformers' own loss as the peer, and what a request's answer comes to."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from replay.engine.perplexity import IGNORE_INDEX, loss, nll, of_request, perplexity
from replay.engine.runner import ModelRunner
from replay.engine.weights import load_model
from tests.mixing import make_request, random_tokens
from tests.peer import stock_logits, stock_model
from tests.tiny import make_tiny_model

TOLERANCE = 1e-5  # relative; both sum a log-softmax of float32, in different orders


def log(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


def test_a_case_by_hand():
    """Two sequences of three tokens, vocabulary of 2. Only three labels count: 1/2, 1/4 and 1/8."""
    logits = np.array(
        [
            [log(0.5, 0.5), log(0.25, 0.75), log(0.9, 0.1)],
            [log(0.6, 0.4), log(0.125, 0.875), log(0.3, 0.7)],
        ],
        dtype=np.float32,
    )
    labels = np.array([[1, 1, 0], [0, IGNORE_INDEX, 0]])
    assert loss(logits, labels) == pytest.approx((math.log(2) + math.log(4) + math.log(8)) / 3, rel=1e-6)
    assert perplexity([math.log(2), math.log(4), math.log(8)]) == pytest.approx(4.0)
    # A constant added to a row of logits, as a model is free to, changes nothing.
    assert loss(logits + np.float32(7.0), labels) == pytest.approx(math.log(4.0), rel=1e-5)


def test_nothing_to_average():
    logits = np.zeros((1, 3, 4), dtype=np.float32)
    assert math.isnan(loss(logits, np.array([[1, IGNORE_INDEX, IGNORE_INDEX]])))
    assert math.isnan(loss(logits[:, :1], np.array([[1]])))
    assert perplexity([]) is None
    assert perplexity([1e9]) == math.inf


@pytest.mark.parametrize("label", [4, -1, -99, 2**40])
def test_a_label_that_is_no_token_is_refused(label):
    with pytest.raises(ValueError, match="neither -100 nor a token id below 4"):
        loss(np.zeros((1, 3, 4), dtype=np.float32), np.array([[1, label, 1]]))


def test_shapes_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match=r"logits of shape \(1, 3, 4\) do not belong to labels of shape \(1, 4\)"):
        loss(np.zeros((1, 3, 4), dtype=np.float32), np.zeros((1, 4), dtype=np.int64))


def test_logits_of_any_size():
    row = np.array([30_000.0, 29_000.0], dtype=np.float32)
    assert (nll(row, 0), nll(row, 1)) == (0.0, 1000.0)


def test_masked_and_broken_rows():
    row = np.array([-np.inf, 0.0, 0.0], dtype=np.float32)
    assert nll(row, 0) == math.inf
    assert nll(row, 1) == pytest.approx(math.log(2))
    assert math.isnan(nll(np.array([np.nan, 0.0], dtype=np.float32), 1))


@given(st.data())
def test_the_loss_is_that_of_torch(data):
    shape = data.draw(st.tuples(st.integers(1, 3), st.integers(2, 5), st.integers(2, 9)))
    logits = data.draw(hnp.arrays(np.float32, shape, elements=st.floats(-50, 50, width=32)))
    ids = st.integers(0, shape[-1] - 1) | st.just(IGNORE_INDEX)
    labels = data.draw(hnp.arrays(np.int64, shape[:-1], elements=ids))
    rows, shifted = torch.from_numpy(logits[:, :-1]).reshape(-1, shape[-1]), torch.from_numpy(labels[:, 1:]).reshape(-1)
    theirs = float(torch.nn.functional.cross_entropy(rows.double(), shifted, ignore_index=IGNORE_INDEX))
    assert loss(logits, labels) == pytest.approx(theirs, rel=1e-5, abs=1e-5, nan_ok=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def assert_equal_to_transformers(peer: torch.nn.Module, tokens: list[list[int]]) -> None:
    """Several sequences at once, with labels that count and labels that do not, and with masks that differ."""
    ids = torch.tensor(tokens)
    labels = ids.clone()
    labels[0, :5] = IGNORE_INDEX
    labels[1, 3::4] = IGNORE_INDEX
    labels[-1, -2:] = IGNORE_INDEX
    with torch.inference_mode():
        output = peer(input_ids=ids, labels=labels)
    logits = output.logits.float().numpy()
    assert loss(logits, labels.numpy()) == pytest.approx(float(output.loss), rel=TOLERANCE)
    unmasked = loss(logits, ids.numpy())
    assert abs(unmasked - float(output.loss)) > 100 * TOLERANCE * unmasked, "the mask made no difference"


def test_the_loss_of_a_tiny_model_is_transformers_own(tiny):
    peer = stock_model(tiny)
    assert_equal_to_transformers(peer, [random_tokens(24, 320, seed=seed) for seed in range(3)])


@pytest.mark.model
def test_the_loss_of_the_real_model_is_transformers_own(smollm2):
    peer = stock_model(smollm2)
    assert_equal_to_transformers(peer, [random_tokens(20, 49152, seed=seed) for seed in range(2)])


@pytest.mark.parametrize("chunk_rows", [5, 40])
def test_an_answers_perplexity_is_that_of_its_tokens_alone(tiny, chunk_rows):
    """The prompt is masked in transformers' labels, and is not asked for in ours."""
    tokens = random_tokens(chunk_rows + 7, 320, seed=3)
    labels = np.array([tokens])
    labels[0, :7] = IGNORE_INDEX
    theirs = loss(stock_logits(stock_model(tiny), tokens)[None], labels)

    model = load_model(tiny, dtype="float32")
    runner = ModelRunner(model, model.kv_store(num_blocks=8, block_size=8))
    request = make_request(tokens, range(8), num_prompt=7)
    assert of_request(runner, request) == pytest.approx(math.exp(theirs), rel=1e-3)
    assert of_request(runner, make_request(tokens, range(8))) is None
