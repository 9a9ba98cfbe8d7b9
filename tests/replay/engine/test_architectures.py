"""Every architecture of the tested list against transformers' own; and what is not on the list."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from replay.engine.architectures import TESTED
from replay.engine.weights import load_model
from replay.errors import PositionOverflow, ReplayError, UnsupportedModel
from tests.mixing import random_tokens
from tests.peer import differing_positions, our_generate, our_logits, stock_generate, stock_logits, stock_model
from tests.tiny_models import CONFIGS, WINDOW, make_model

LENGTH = 40
PROMPT_LENGTHS = (3, 45)

# Two orders of float32 summation differ by up to 1.2e-5 here, in logits of magnitude 15.
TOLERANCE = 2e-4

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama, llama3 rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "qwen2, no window": ("qwen2", {"use_sliding_window": False}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "phi3, no window": ("phi3", {"sliding_window": None}),
    "qwen3_moe, weights as they are": ("qwen3_moe", {"norm_topk_prob": False}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {kind: make_model(root / kind, kind) for kind in CONFIGS}


apart = partial(differing_positions, tolerance=TOLERANCE)


def test_every_entry_of_the_tested_list_has_a_tiny_model():
    assert {config["architectures"][0] for config in CONFIGS.values()} == set(TESTED)


@pytest.mark.parametrize("kind", CONFIGS)
def test_logits_and_greedy_tokens_equal_transformers_and_a_changed_weight_shows(folders, kind):
    model, peer = load_model(folders[kind], dtype="float32"), stock_model(folders[kind])
    prompts = [random_tokens(count, model.vocab_size, seed=count) for count in PROMPT_LENGTHS]
    outputs = our_generate(model, prompts, LENGTH)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output == stock_generate(peer, prompt, LENGTH)
        assert len(set(output)) >= 8, "the model repeats itself, so equal tokens prove little"
    sequences = [[*prompt, *output] for prompt, output in zip(prompts, outputs, strict=True)]
    ours = [our_logits(model, tokens) for tokens in sequences]
    assert [apart(mine, stock_logits(peer, t)) for mine, t in zip(ours, sequences, strict=True)] == [[]] * len(prompts)
    for name, parameter in peer.named_parameters():
        if not name.endswith(tuple(PERTURBED)):
            continue
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.view(-1)[::7] += 0.05
        assert any(apart(mine, stock_logits(peer, t)) for mine, t in zip(ours, sequences, strict=True)), name
        with torch.no_grad():
            parameter.copy_(kept)


PERTURBED = (
    *("down_proj.weight", "experts.down_proj", "gate.weight", "k_proj.weight", "qkv_proj.weight", "q_norm.weight"),
    *("c_attn.weight", "mlp.c_proj.weight", "c_attn.bias", "wpe.weight", "post_feedforward_layernorm.weight"),
)
"""Ends of the names of parameters, a few of which every model has, that are changed one by one."""


@pytest.mark.parametrize("variant", VARIANTS)
def test_other_tested_settings_equal_transformers(tmp_path: Path, variant):
    kind, changes = VARIANTS[variant]
    folder = make_model(tmp_path / kind, kind, **changes)
    model, peer = load_model(folder, dtype="float32"), stock_model(folder)
    prompt = random_tokens(30, model.vocab_size, seed=1)
    output = our_generate(model, [prompt], LENGTH)[0]
    assert output == stock_generate(peer, prompt, LENGTH)
    assert apart(our_logits(model, [*prompt, *output]), stock_logits(peer, [*prompt, *output])) == []


@pytest.mark.parametrize("kind", [kind for kind, config in CONFIGS.items() if config.get("sliding_window")])
def test_a_window_of_another_size_shows_where_it_begins_to_hide(folders, tmp_path, kind):
    tokens = random_tokens(50, 320, seed=2)
    ours = our_logits(load_model(folders[kind], dtype="float32"), tokens)
    peer = stock_model(make_model(tmp_path / kind, kind, sliding_window=WINDOW + 1))
    assert apart(ours, stock_logits(peer, tokens)) == list(range(WINDOW, 50))


@pytest.mark.parametrize("kind", CONFIGS)
def test_stock_kernels_equal_transformers_within_rounding(folders, kind):
    model, peer = load_model(folders[kind], dtype="float32", kernels="stock"), stock_model(folders[kind])
    assert not model.untested
    tokens = random_tokens(50, model.vocab_size, seed=5)
    assert apart(our_logits(model, tokens), stock_logits(peer, tokens)) == []


@pytest.mark.parametrize("kind", CONFIGS)
def test_facts_are_the_same_whatever_config_json_calls_them(folders, kind):
    model = load_model(folders[kind], dtype="bfloat16", kernels="stock")
    assert (model.num_heads, model.hidden_size, model.max_position_embeddings) == (4, 64, 256)
    assert model.num_kv_heads == (4 if kind == "gpt2" else 2)
    assert model.head_dim == CONFIGS[kind].get("head_dim", 16)
    assert model.learned_positions == (kind == "gpt2")
    assert set(model.windows) == {
        "qwen2": {None, WINDOW},
        "gemma3": {None, WINDOW},
        **{alone: {WINDOW} for alone in ("mistral", "phi3", "mixtral")},
    }.get(kind, {None})


def test_a_position_beyond_the_learned_ones_is_an_error_and_beyond_rotary_ones_is_not(folders):
    for kind in ("gpt2", "llama"):
        model = load_model(folders[kind], dtype="float32")
        tokens = random_tokens(257, model.vocab_size, seed=1)
        assert np.isfinite(our_logits(model, tokens[:256])).all()
        if kind == "gpt2":
            with pytest.raises(PositionOverflow, match=r"position 256, and the model has 256 learned") as caught:
                our_logits(model, tokens)
            assert "max_model_len of 256" in caught.value.remedy
        else:
            assert np.isfinite(our_logits(model, tokens)).all()


UNTESTED_SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "llama": ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    "mistral": ({"layer_types": ["full_attention", "full_attention"]}, "layer_types"),
    "gpt2": ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
    "qwen3": ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "rope_type 'yarn'"),
}


@pytest.mark.parametrize("kind", UNTESTED_SETTINGS)
def test_an_untested_setting_is_refused_by_name_and_runs_on_stock_kernels(tmp_path, kind):
    changes, named = UNTESTED_SETTINGS[kind]
    folder = make_model(tmp_path / kind, kind, **changes)
    with pytest.raises(UnsupportedModel, match=named) as caught:
        load_model(folder, dtype="float32")
    assert "--kernels stock" in caught.value.remedy
    model = load_model(folder, dtype="float32", kernels="stock")
    assert named in model.untested
    tokens = random_tokens(20, model.vocab_size, seed=1)
    assert apart(our_logits(model, tokens), stock_logits(stock_model(folder), tokens)) == []


GRANITE: dict[str, Any] = {"architectures": ["GraniteForCausalLM"], "model_type": "granite"}


def test_an_unlisted_architecture_is_refused_and_runs_on_stock_kernels(tmp_path):
    folder = make_model(tmp_path / "granite", "llama", **GRANITE)
    with pytest.raises(UnsupportedModel, match="GraniteForCausalLM is not on the tested list") as caught:
        load_model(folder, dtype="float32")
    assert all(name in caught.value.remedy for name in TESTED)
    model = load_model(folder, dtype="float32", kernels="stock")
    assert "GraniteForCausalLM" in model.untested
    tokens = random_tokens(20, model.vocab_size, seed=1)
    assert apart(our_logits(model, tokens), stock_logits(stock_model(folder), tokens)) == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        # Granite divides its logits after the head, where this engine does not look.
        ({**GRANITE, "logits_scaling": 4.0}, "computes something else"),
        ({"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2"}, "do not fit config.json|does not run"),
        ({"architectures": ["NoSuchForCausalLM"]}, "no architecture NoSuchForCausalLM"),
        ({"architectures": ["LlamaModel"]}, "no language model head|do not fit"),
        ({"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 8}, "latent attention"),
        ({**GRANITE, "is_encoder_decoder": True}, "encoder"),
        ({**GRANITE, "quantization_config": {"quant_method": "gptq"}}, "quantised"),
    ],
)
def test_stock_kernels_refuse_what_they_do_not_compute(tmp_path, changes, reason):
    folder = make_model(tmp_path / "model", "llama", **changes)
    with pytest.raises(ReplayError, match=reason) as caught:
        load_model(folder, dtype="float32", kernels="stock")
    assert caught.value.remedy
