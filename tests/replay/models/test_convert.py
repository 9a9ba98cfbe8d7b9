"""Conversion of a tiny GGUF: written by the gguf library, read back by safetensors and transformers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open

from replay.errors import ModelUnavailable, UnsupportedModel
from replay.models import cache, catalog
from replay.models.convert import convert_gguf
from replay.models.fingerprint import examine
from replay.models.locate import locate

HIDDEN, INTER, HEADS, KV_HEADS, VOCAB = 64, 96, 4, 2, 300
Array = NDArray[np.float32]


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def write_gguf(path: Path, *, scaled: bool = False) -> dict[str, Array]:
    """One Llama layer in Q4_1. Returns the tensors by GGUF name, dequantised by the gguf library.

    ``scaled`` adds a scaling of rotary positions to the metadata.
    """
    rng = np.random.Generator(np.random.PCG64(7))
    shapes = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_v.weight": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate.weight": (INTER, HIDDEN),
        "blk.0.ffn_up.weight": (INTER, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, INTER),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "output_norm.weight": (HIDDEN,),
    }
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    if scaled:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_alphabet(), "th"]
    tokens += [f"<|unused{i}|>" for i in range(VOCAB - len(tokens))]
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (VOCAB - 3))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    kept: dict[str, Array] = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, values)
            kept[name] = values
            continue
        packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1)
        writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
        kept[name] = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


def to_bfloat16(values: Array) -> NDArray[np.uint16]:
    """Bits of the nearest bfloat16, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def test_weights_are_the_dequantised_ones_and_the_rest_is_there(tmp_path: Path) -> None:
    import torch

    source = tmp_path / "Tiny.gguf"
    kept = write_gguf(source)
    stages: list[str] = []
    folder = locate(explicit=source, on_progress=lambda stage, done, total: stages.append(stage))
    assert "dequantising the weights" in stages
    assert folder == cache.all_cached()[0][1]
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        for ours, theirs in {
            "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
            "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
            "model.embed_tokens.weight": "token_embd.weight",
            "model.norm.weight": "output_norm.weight",
        }.items():
            tensor = weights.get_tensor(ours)
            assert tensor.dtype == torch.bfloat16
            assert np.array_equal(tensor.view(torch.uint16).numpy(), to_bfloat16(kept[theirs])), ours
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_key_value_heads"], config["vocab_size"]) == (KV_HEADS, VOCAB)
    assert "quantization_config" not in config
    assert (folder / "chat_template.jinja").read_text() == "{{ messages[0]['content'] }}"
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2
    assert (folder / "tokenizer.json").is_file()

    stages.clear()
    assert locate(explicit=source, on_progress=lambda stage, done, total: stages.append(stage)) == folder
    assert stages == [], "a file that was converted once is not converted again"


def test_an_installed_package_is_converted_when_its_model_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    (site / "tiny").mkdir(parents=True)
    (site / "pplx_tiny_model-1.0.dist-info").mkdir()
    (site / "pplx_tiny_model-1.0.dist-info" / "METADATA").write_text("Name: pplx-tiny-model\nVersion: 1.0\n")
    write_gguf(site / "tiny" / "Tiny.gguf")
    content = (site / "tiny" / "Tiny.gguf").read_bytes()
    entry = dataclasses.replace(
        catalog.CATALOG[0],
        name="tiny",
        distribution="pplx-tiny-model",
        member="tiny/Tiny.gguf",
        gguf_sha256=hashlib.sha256(content).hexdigest(),
        gguf_size=len(content),
    )
    monkeypatch.setattr(catalog, "CATALOG", (entry,))
    monkeypatch.syspath_prepend(site)
    folder = locate("tiny")
    assert folder == cache.cached("tiny")
    assert locate(fingerprint=examine(folder).fingerprint) == folder
    assert sorted(path.name for path in folder.parent.iterdir()) == [".tiny.lock", "tiny"]


def test_a_file_that_only_begins_like_gguf(tmp_path: Path) -> None:
    source = tmp_path / "Bad.gguf"
    source.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 200)
    (tmp_path / "out").mkdir()
    with pytest.raises(UnsupportedModel, match="could not be converted"):
        convert_gguf(source, tmp_path / "out")


def test_a_file_whose_settings_would_be_lost_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "Scaled.gguf", scaled=True)
    (tmp_path / "out").mkdir()
    with pytest.raises(UnsupportedModel, match="lose its scaling of rotary positions"):
        convert_gguf(tmp_path / "Scaled.gguf", tmp_path / "out")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "Bad.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(ModelUnavailable, match="not a GGUF file"):
        convert_gguf(tmp_path / "Bad.gguf", tmp_path)
    with pytest.raises(ModelUnavailable, match="No such file"):
        convert_gguf(tmp_path / "absent.gguf", tmp_path)
