"""A tiny random Llama in a folder: config, float32 safetensors, byte-level tokenizer, chat template.

Needs neither torch nor the network, and gives the same bytes everywhere: the weights come from the raw 64-bit stream of
PCG64, which numpy keeps stable, unlike the distributions built on it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
EOS_ID = 2
"""Id of ``<|im_end|>``, the only token in generation_config's eos list."""

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_PAIRS = (
    *("th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te", "of", "ed", "is", "it"),
    *("al", "ar", "st", "to", "nt", "ng", "se", "ha", "as", "ou", "io", "le", "ve", "co", "me", "de", "hi", "ri"),
    *("ro", "ic", "ne", "ea", "ra", "ce", "li", "ch", "ll", "be", "ma", "si", "om", "ur"),
    *("Ġt", "Ġa", "Ġi", "Ġs", "Ġo", "Ġw", "Ġh", "Ġb", "Ġc", "Ġm"),
)


def tiny_tokenizer() -> Tokenizer:
    """A byte-level BPE of 320 ids: 4 special tokens, 256 bytes, 60 merged pairs."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: index for index, piece in enumerate((*SPECIALS, *alphabet, *_PAIRS))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[(pair[0], pair[1]) for pair in _PAIRS]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return tokenizer


def tiny_config(**changes: Any) -> dict[str, Any]:
    """config.json of the model, as transformers writes it; `changes` replace or add keys."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 256,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": EOS_ID,
        "pad_token_id": 3,
        "dtype": "float32",
    }
    return config | changes


def tiny_weights(config: dict[str, Any], *, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Float32 tensors by transformers' names. Scales are large, so that greedy output does not settle on one token."""
    stream = np.random.PCG64(seed)

    def uniform(*shape: int, scale: float) -> NDArray[np.float32]:
        raw = stream.random_raw(int(np.prod(shape))) >> np.uint64(40)
        return ((raw.astype(np.float32) / np.float32(2**23) - 1.0) * np.float32(scale)).reshape(shape)

    hidden, inner = config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    key = config["num_key_value_heads"] * config["head_dim"]

    def linear(rows: int, columns: int, gain: float) -> NDArray[np.float32]:
        return uniform(rows, columns, scale=gain * (3.0 / columns) ** 0.5)

    weights = {"model.embed_tokens.weight": uniform(config["vocab_size"], hidden, scale=1.7)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.input_layernorm.weight": 1.0 + uniform(hidden, scale=0.3),
            f"{prefix}.self_attn.q_proj.weight": linear(query, hidden, 1.5),
            f"{prefix}.self_attn.k_proj.weight": linear(key, hidden, 1.5),
            f"{prefix}.self_attn.v_proj.weight": linear(key, hidden, 1.5),
            f"{prefix}.self_attn.o_proj.weight": linear(hidden, query, 1.5),
            f"{prefix}.post_attention_layernorm.weight": 1.0 + uniform(hidden, scale=0.3),
            f"{prefix}.mlp.gate_proj.weight": linear(inner, hidden, 1.5),
            f"{prefix}.mlp.up_proj.weight": linear(inner, hidden, 1.5),
            f"{prefix}.mlp.down_proj.weight": linear(hidden, inner, 1.5),
        }
    weights["model.norm.weight"] = 1.0 + uniform(hidden, scale=0.3)
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = linear(config["vocab_size"], hidden, 3.0)
    return weights


def save_model(
    folder: Path, config: dict[str, Any], weights: dict[str, NDArray[np.float32]], *, max_length: int
) -> Path:
    """Write a model of these weights into `folder` (made if needed) with the tokenizer, and return `folder`.

    `max_length` is what the tokenizer says of the model, in tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    documents = {
        "config.json": config,
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": EOS_ID, "pad_token_id": 3},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIALS[1],
            "eos_token": SPECIALS[2],
            "pad_token": SPECIALS[3],
            "model_max_length": max_length,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in documents.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return folder


def make_tiny_model(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """Write the model into `folder` (made if needed) and return it. `config` changes keys of config.json."""
    settings = tiny_config(**config)
    return save_model(
        folder, settings, tiny_weights(settings, seed=seed), max_length=settings["max_position_embeddings"]
    )
