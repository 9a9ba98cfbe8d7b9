"""Our engine against transformers' own: the same greedy tokens and, within rounding, the same logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from replay.engine.engine import Engine
from replay.engine.live import LiveScheduler
from replay.engine.request import Request, SamplingParams
from replay.engine.runner import ModelRunner
from replay.engine.schedule import Chunk, EngineConfig
from replay.engine.weights import LoadedModel, load_model
from tests.mixing import BLOCK_SIZE, make_request, random_tokens
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


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def stock_model(folder: Path):
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    )
    model.generation_config.eos_token_id = None
    return model.eval()


def stock_generate(model, prompt: Sequence[int]) -> list[int]:
    ids = torch.tensor([list(prompt)])
    with torch.inference_mode():
        result = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=LENGTH, do_sample=False, pad_token_id=0
        )
    return [int(token) for token in result[0, len(prompt) :]]


def stock_logits(model, tokens: Sequence[int]):
    with torch.inference_mode():
        return model(torch.tensor([list(tokens)])).logits[0].numpy()


def our_generate(model: LoadedModel, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """All prompts at once through scheduler, chunked prefill and paged cache."""
    blocks = sum(-(-(len(prompt) + LENGTH) // BLOCK_SIZE) for prompt in prompts)
    config = EngineConfig(
        num_blocks=blocks, block_size=BLOCK_SIZE, max_model_len=model.max_position_embeddings, max_num_batched_tokens=48
    )
    kv = model.kv_store(num_blocks=blocks, block_size=BLOCK_SIZE)
    engine = Engine(scheduler=LiveScheduler(config), executor=ModelRunner(model, kv))
    sampling = SamplingParams(temperature=0.0, max_tokens=LENGTH, ignore_eos=True)
    requests = [
        Request(id=str(index), tokens=list(prompt), num_prompt=len(prompt), sampling=sampling)
        for index, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.add(request)
    while engine.step() is not None:
        pass
    return [request.output for request in requests]


def our_logits(model: LoadedModel, tokens: Sequence[int]):
    blocks = -(-len(tokens) // BLOCK_SIZE)
    runner = ModelRunner(model, model.kv_store(num_blocks=blocks, block_size=BLOCK_SIZE))
    request = make_request(tokens, range(blocks))
    hidden = runner.compute([Chunk(request, 0, request.num_tokens)], step=0)
    return runner.logits(hidden, range(len(tokens)))


def differing_positions(ours, theirs) -> list[int]:
    """Positions at which any logit is further apart than rounding explains."""
    assert ours.shape == theirs.shape
    return np.flatnonzero(~(np.abs(ours - theirs).max(axis=1) <= TOLERANCE)).tolist()


def assert_equal_to_peer(folder: Path, prompts: Sequence[Sequence[int]]):
    model, peer = load_model(folder, dtype="float32"), stock_model(folder)
    outputs = our_generate(model, prompts)
    assert len(outputs) == len(prompts)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(output) == LENGTH
        assert output == stock_generate(peer, prompt)
        tokens = [*prompt, *output]
        assert differing_positions(our_logits(model, tokens), stock_logits(peer, tokens)) == []
    return model, peer, [*prompts[0], *outputs[0]]


def assert_perturbation_shows(model: LoadedModel, peer, tokens: Sequence[int], *, by: float):
    """One weight in the middle of the stock model changed: the comparison must see it."""
    layers = peer.model.layers
    with torch.inference_mode(False), torch.no_grad():
        layers[len(layers) // 2].mlp.down_proj.weight[3, 5] += by
    assert differing_positions(our_logits(model, tokens), stock_logits(peer, tokens)) != []


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
    assert our_generate(model, [prompt]) == [stock_generate(peer, prompt)]
    assert differing_positions(our_logits(model, prompt), stock_logits(peer, prompt)) == []


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
