"""Tiny random models of every tested architecture, each a folder as it would be fetched from a hub.

Weights come from the raw 64-bit stream of PCG64, as in `tests.tiny`, so that they are the same everywhere; their names
are those of the hub's files, with each expert's tensors by themselves. Scales are chosen by hand so that greedy output
does not settle on one token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.tiny import EOS_ID, save_model, tiny_config

Weights = dict[str, NDArray[np.float32]]

WINDOW = 20
"""The sliding window of models that have one: shorter than the sequences of most tests."""

_COMMON: dict[str, Any] = {
    "vocab_size": 320,
    "bos_token_id": 1,
    "eos_token_id": EOS_ID,
    "pad_token_id": 3,
    "dtype": "float32",
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": tiny_config(),
    "qwen2": tiny_config(
        architectures=["Qwen2ForCausalLM"],
        model_type="qwen2",
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=1,
    ),
    "qwen3": tiny_config(architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=24),
    "mistral": tiny_config(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=WINDOW),
    "gemma3": tiny_config(
        architectures=["Gemma3ForCausalLM"],
        model_type="gemma3_text",
        num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        sliding_window=WINDOW,
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=24,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
        },
        tie_word_embeddings=True,
    ),
    "gpt2": {
        **_COMMON,
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_positions": 256,
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_inner": 96,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    },
    "phi3": tiny_config(
        architectures=["Phi3ForCausalLM"],
        model_type="phi3",
        sliding_window=WINDOW,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
    ),
    "qwen3_moe": tiny_config(
        architectures=["Qwen3MoeForCausalLM"],
        model_type="qwen3_moe",
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=40,
        norm_topk_prob=True,
        mlp_only_layers=[1],
        num_hidden_layers=3,
    ),
    "mixtral": tiny_config(
        architectures=["MixtralForCausalLM"],
        model_type="mixtral",
        num_local_experts=5,
        num_experts_per_tok=2,
        intermediate_size=56,
        sliding_window=WINDOW,
    ),
}
"""config.json of each model."""


@dataclass(slots=True)
class _Maker:
    """Collects tensors by name, each drawn in order from one stream."""

    stream: Any
    weights: Weights = field(default_factory=dict)

    def uniform(self, name: str, *shape: int, scale: float, around: float = 0.0) -> None:
        raw = self.stream.random_raw(int(np.prod(shape))) >> np.uint64(40)
        values = (raw.astype(np.float32) / np.float32(2**23) - 1.0) * np.float32(scale) + np.float32(around)
        self.weights[name] = values.reshape(shape)

    def linear(self, name: str, rows: int, columns: int, gain: float = 1.5) -> None:
        self.uniform(name, rows, columns, scale=gain * (3.0 / columns) ** 0.5)

    def norm(self, name: str, size: int, around: float = 1.0) -> None:
        self.uniform(name, size, scale=0.3, around=around)


def _rotary_model(config: dict[str, Any], make: _Maker) -> None:
    """The family of Llama: what differs between its members is which tensors a layer has and what they are called."""
    kind, hidden = config["model_type"], config["hidden_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    key = config["num_key_value_heads"] * config["head_dim"]
    gemma = kind == "gemma3_text"
    centre = 0.0 if gemma else 1.0  # Gemma's norms multiply by 1 + weight
    # Gemma multiplies embeddings by sqrt(hidden), and uses them again as its head.
    make.uniform("model.embed_tokens.weight", config["vocab_size"], hidden, scale=0.04 if gemma else 1.7)
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if gemma else []
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for norm in norms:
            make.norm(f"{prefix}.{norm}.weight", hidden, centre)
        if kind == "phi3":
            make.linear(f"{prefix}.self_attn.qkv_proj.weight", query + 2 * key, hidden)
        else:
            for name, rows in (("q", query), ("k", key), ("v", key)):
                make.linear(f"{prefix}.self_attn.{name}_proj.weight", rows, hidden)
                if kind == "qwen2":
                    make.uniform(f"{prefix}.self_attn.{name}_proj.bias", rows, scale=0.5)
        if kind in ("qwen3", "qwen3_moe", "gemma3_text"):
            make.norm(f"{prefix}.self_attn.q_norm.weight", config["head_dim"], centre)
            make.norm(f"{prefix}.self_attn.k_norm.weight", config["head_dim"], centre)
        make.linear(f"{prefix}.self_attn.o_proj.weight", hidden, query)
        _feed_forward(config, make, prefix, layer)
    make.norm("model.norm.weight", hidden, 3.0 if gemma else centre)
    if not config["tie_word_embeddings"]:
        make.linear("lm_head.weight", config["vocab_size"], hidden, 3.0)


def _feed_forward(config: dict[str, Any], make: _Maker, prefix: str, layer: int) -> None:
    kind, hidden, inner = config["model_type"], config["hidden_size"], config["intermediate_size"]
    if kind == "phi3":
        make.linear(f"{prefix}.mlp.gate_up_proj.weight", 2 * inner, hidden)
        make.linear(f"{prefix}.mlp.down_proj.weight", hidden, inner)
        return
    experts, router, names = [f"{prefix}.mlp"], None, ("gate_proj", "up_proj", "down_proj")
    if kind == "mixtral":
        router, names = f"{prefix}.block_sparse_moe.gate", ("w1", "w3", "w2")
        experts = [f"{prefix}.block_sparse_moe.experts.{index}" for index in range(config["num_local_experts"])]
    elif kind == "qwen3_moe" and layer not in config["mlp_only_layers"]:
        router, inner = f"{prefix}.mlp.gate", config["moe_intermediate_size"]
        experts = [f"{prefix}.mlp.experts.{index}" for index in range(config["num_experts"])]
    if router:
        make.linear(f"{router}.weight", len(experts), hidden)
    gate, up, down = names
    for expert in experts:
        make.linear(f"{expert}.{gate}.weight", inner, hidden)
        make.linear(f"{expert}.{up}.weight", inner, hidden)
        make.linear(f"{expert}.{down}.weight", hidden, inner)


def _gpt2(config: dict[str, Any], make: _Maker) -> None:
    """Learned positions, and linear layers of shape [in, out]."""
    hidden, inner = config["n_embd"], config["n_inner"]
    make.uniform("transformer.wte.weight", config["vocab_size"], hidden, scale=0.3)
    make.uniform("transformer.wpe.weight", config["n_positions"], hidden, scale=1.0)

    def conv(name: str, inputs: int, outputs: int) -> None:
        make.uniform(f"{name}.weight", inputs, outputs, scale=1.5 * (3.0 / inputs) ** 0.5)
        make.uniform(f"{name}.bias", outputs, scale=0.5)

    def norm(name: str) -> None:
        make.norm(f"{name}.weight", hidden)
        make.uniform(f"{name}.bias", hidden, scale=0.3)

    for layer in range(config["n_layer"]):
        prefix = f"transformer.h.{layer}"
        norm(f"{prefix}.ln_1")
        conv(f"{prefix}.attn.c_attn", hidden, 3 * hidden)
        conv(f"{prefix}.attn.c_proj", hidden, hidden)
        norm(f"{prefix}.ln_2")
        conv(f"{prefix}.mlp.c_fc", hidden, inner)
        conv(f"{prefix}.mlp.c_proj", inner, hidden)
    norm("transformer.ln_f")


_MAKERS: dict[str, Callable[[dict[str, Any], _Maker], None]] = {"gpt2": _gpt2}


def make_model(folder: Path, kind: str, *, seed: int = 0, **changes: Any) -> Path:
    """Write the model `kind`, a key of `CONFIGS`, into `folder` and return it. `changes` go into config.json."""
    config = CONFIGS[kind] | changes
    make = _Maker(np.random.PCG64(seed))
    _MAKERS.get(kind, _rotary_model)(config, make)
    return save_model(folder, config, make.weights, max_length=256)
