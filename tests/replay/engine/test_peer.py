"""Our engine against transformers' own: the same greedy tokens and, within rounding, the same logits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers

from replay.engine.weights import LoadedModel, load_model
from tests.mixing import random_tokens
from tests.peer import differing_positions, our_generate, our_logits, stock_generate, stock_logits, stock_model
from tests.tiny import make_tiny_model

LENGTH = 64
PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Explain how a paged key-value cache works in two sentences.",
    "Write a short poem about the sea.",
    "List three prime numbers above 100.",
    "Translate to French: I would like a cup of coffee, please.",
)

# Measured on SmolLM2: two orders of float32 summation differ by up to 1.2e-4 in logits of magnitude 44.
TOLERANCE = 5e-4


apart = partial(differing_positions, tolerance=TOLERANCE)


def assert_equal_to_peer(folder: Path, prompts: Sequence[Sequence[int]]):
    """Of each prompt the peer's greedy tokens and logits are ours; the first it generates step by step, too.

    The greedy tokens of the others are read off the peer's logits of the whole sequence: the best one at each position
    is the next token exactly if generating would have chosen it.
    """
    model, peer = load_model(folder, dtype="float32"), stock_model(folder)
    outputs = our_generate(model, prompts, LENGTH)
    assert len(outputs) == len(prompts)
    assert outputs[0] == stock_generate(peer, prompts[0], LENGTH)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(output) == LENGTH
        tokens = [*prompt, *output]
        theirs = stock_logits(peer, tokens)
        assert output == theirs[len(prompt) - 1 : -1].argmax(axis=1).tolist()
        assert apart(our_logits(model, tokens), theirs) == []
    return model, peer, [*prompts[0], *outputs[0]]


def assert_perturbation_shows(model: LoadedModel, peer, tokens: Sequence[int], *, by: float):
    """One weight in the middle of the stock model changed: the comparison must see it."""
    layers = peer.model.layers
    with torch.inference_mode(False), torch.no_grad():
        layers[len(layers) // 2].mlp.down_proj.weight[3, 5] += by
    assert apart(our_logits(model, tokens), stock_logits(peer, tokens)) != []


def test_tiny_model_equals_transformers_and_a_changed_weight_shows(tmp_path: Path):
    folder = make_tiny_model(tmp_path / "tiny")
    prompts = [random_tokens(count, 320, seed=count) for count in (1, 9, 30, 61, 17)]
    model, peer, tokens = assert_equal_to_peer(folder, prompts)
    assert len(set(tokens)) > 20, "the tiny model repeats itself, so equal tokens prove little"
    assert_perturbation_shows(model, peer, tokens, by=0.01)


@pytest.mark.parametrize(
    "changes", [{"tie_word_embeddings": True}, {"attention_bias": False, "num_key_value_heads": 4}]
)
def test_variants_of_the_architecture_equal_transformers(tmp_path: Path, changes):
    folder = make_tiny_model(tmp_path / "tiny", **changes)
    assert_equal_to_peer(folder, [random_tokens(12, 320, seed=4)])


def test_stock_kernels_equal_transformers_within_rounding(tmp_path: Path):
    folder = make_tiny_model(tmp_path / "tiny")
    model = load_model(folder, dtype="float32", kernels="stock")
    prompt = random_tokens(20, 320, seed=5)
    peer = stock_model(folder)
    assert our_generate(model, [prompt], LENGTH) == [stock_generate(peer, prompt, LENGTH)]
    assert apart(our_logits(model, prompt), stock_logits(peer, prompt)) == []


@pytest.mark.model
def test_real_model_equals_transformers_and_a_changed_weight_shows(smollm2: Path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2, local_files_only=True)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in PROMPTS
    ]
    model, peer, tokens = assert_equal_to_peer(smollm2, prompts)
    assert_perturbation_shows(model, peer, tokens, by=0.1)
