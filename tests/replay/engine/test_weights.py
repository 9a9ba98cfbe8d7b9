"""Loading: what is accepted, what is refused and why, and what is said about the numerics."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from replay.engine.weights import TESTED, load_model
from replay.errors import ModelUnavailable, ReplayError, UnsupportedModel, UsageError
from tests.tiny import EOS_ID, make_tiny_model
from tests.tiny_models import make_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "tiny")


def change(folder: Path, name: str = "config.json", **changes) -> None:
    content = json.loads((folder / name).read_text(encoding="utf-8"))
    (folder / name).write_text(json.dumps(content | changes), encoding="utf-8")


def refusal(folder: Path, kind: type[ReplayError] = UnsupportedModel, dtype: str = "float32", **options) -> str:
    with pytest.raises(kind) as caught:
        load_model(folder, dtype=dtype, **options)
    assert caught.value.remedy
    return f"{caught.value} {caught.value.remedy}"


def test_facts_of_the_model(folder: Path):
    model = load_model(folder, dtype="bfloat16")
    assert (model.architecture, model.vocab_size, model.max_position_embeddings) == ("LlamaForCausalLM", 320, 256)
    assert (model.num_layers, model.num_heads, model.num_kv_heads, model.head_dim) == (2, 4, 2, 16)
    assert model.eos_token_ids == (EOS_ID,)
    kv = model.kv_store(num_blocks=3, block_size=8)
    assert kv.bytes_per_block == 2 * 8 * 2 * 2 * 16 * 2


def test_numerics_name_everything_that_can_change_bits(folder: Path):
    numerics = load_model(folder, dtype="float32").numerics
    assert all(isinstance(value, str) and value for value in numerics.values())
    assert numerics["dtype"] == "float32"
    assert numerics["threads"] == str(torch.get_num_threads())
    for name in ("torch", "cpu_capability", "row_tile", "decode_tile", "prefill_tile", "kv_pad", "linear_96x64"):
        assert name in numerics
    stock = load_model(folder, dtype="float32", kernels="stock").numerics
    assert (stock["kernels"], "row_tile" in stock) == ("stock", False)


@pytest.mark.parametrize(
    ("written", "in_config", "expected"), [([2, 7], 5, (2, 7)), (7, 5, (7,)), (None, 5, (5,)), (None, None, ())]
)
def test_eos_ids_come_from_the_generation_config_first(folder: Path, written, in_config, expected):
    change(folder, "generation_config.json", eos_token_id=written)
    change(folder, eos_token_id=in_config)
    assert load_model(folder, dtype="float32").eos_token_ids == expected


def test_a_missing_generation_config_is_no_error(folder: Path):
    (folder / "generation_config.json").unlink()
    assert load_model(folder, dtype="float32").eos_token_ids == (EOS_ID,)


def test_an_untested_architecture_is_refused_and_the_tested_named(folder: Path):
    change(folder, architectures=["FalconForCausalLM"])
    message = refusal(folder)
    assert "FalconForCausalLM" in message
    assert all(name in message for name in TESTED)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": None}, "(none)"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
        ({"rope_parameters": "dynamic", "architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"rope_parameters": None, "rope_scaling": {"type": "yarn"}}, "rope_type 'yarn'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
    ],
)
def test_untested_settings_are_refused_by_name(folder: Path, changes, named):
    change(folder, **changes)
    assert named in refusal(folder)


def test_pickled_weights_are_refused_unread(folder: Path):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    message = refusal(folder)
    assert "pytorch_model.bin" in message
    assert "safetensors" in message


def test_an_adapter_is_refused(folder: Path):
    (folder / "adapter_config.json").write_text("{}", encoding="utf-8")
    assert "LoRA" in refusal(folder)


def test_a_held_back_instruction_set_shows_in_the_numerics(folder: Path, monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert load_model(folder, dtype="float32").numerics["mkl_cbwr"] == "COMPATIBLE"


def test_code_in_the_folder_is_never_run(folder: Path):
    change(folder, auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})
    (folder / "evil.py").write_text("raise SystemExit('ran')\n", encoding="utf-8")
    assert load_model(folder, dtype="float32").architecture == "LlamaForCausalLM"


def test_missing_and_broken_files_are_named(folder: Path, tmp_path: Path):
    assert "config.json is missing" in refusal(tmp_path / "nowhere", ModelUnavailable)
    (folder / "model.safetensors").unlink()
    assert "no safetensors" in refusal(folder, ModelUnavailable)
    (folder / "config.json").write_text("{", encoding="utf-8")
    assert "is not JSON" in refusal(folder, ModelUnavailable)
    (folder / "config.json").write_text("[" * 100_000, encoding="utf-8")
    assert "is not JSON" in refusal(folder, ModelUnavailable)
    (folder / "config.json").write_text("[]", encoding="utf-8")
    assert "JSON object" in refusal(folder, ModelUnavailable)


def test_damaged_weights_are_refused(folder: Path):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "cannot be read: SafetensorError" in refusal(folder, ModelUnavailable)


def test_missing_tensors_are_refused_and_not_made_up(folder: Path):
    change(folder, num_hidden_layers=3)
    assert "missing keys, first model.layers.2.input_layernorm" in refusal(folder, ModelUnavailable)


def test_tensors_that_do_not_belong_are_refused(folder: Path):
    change(folder, num_hidden_layers=1)
    assert "unexpected keys, first model.layers.1" in refusal(folder, ModelUnavailable)


def test_tensors_of_another_size_are_refused(folder: Path):
    change(folder, intermediate_size=80)
    assert "mismatched keys" in refusal(folder, ModelUnavailable)


def test_other_dtypes_and_devices_are_refused(folder: Path):
    assert "float32, bfloat16" in refusal(folder, dtype="float16")
    assert "auto, cpu, cuda" in refusal(folder, UsageError, device="tpu")


def test_loading_leaves_global_settings_alone(folder: Path):
    transformers.utils.logging.enable_progress_bar()
    before = torch.random.get_rng_state(), torch.get_default_dtype(), torch.get_num_threads()
    load_model(folder, dtype="bfloat16")
    assert np.array_equal(before[0], torch.random.get_rng_state())
    assert (torch.get_default_dtype(), torch.get_num_threads()) == before[1:]
    assert transformers.utils.logging.is_progress_bar_enabled()


def test_loading_prints_nothing(folder: Path, capfd):
    load_model(folder, dtype="float32")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("kind", "changes", "kernels", "named"),
    [
        ("qwen3_moe", {"num_experts_per_tok": 0}, "exact", "does not run in this engine"),
        ("mixtral", {"num_experts_per_tok": 9}, "exact", "does not run in this engine"),
        ("mixtral", {"num_experts_per_tok": 9}, "stock", "does not run in this engine"),
        ("llama", {"num_key_value_heads": 3}, "exact", "do not fit|does not run"),
        ("llama", {"rms_norm_eps": -1.0}, "exact", "gives a row other bits"),
        ("llama", {"max_position_embeddings": 0}, "exact", "no usable max_position_embeddings"),
        ("mistral", {"sliding_window": 0}, "exact", "sees no token"),
        ("mistral", {"sliding_window": -5}, "stock", "sees no token"),
    ],
)
def test_numbers_that_no_model_has_are_refused_when_it_is_loaded(tmp_path: Path, kind, changes, kernels, named):
    folder = make_model(tmp_path / kind, kind)
    change(folder, **changes)
    with pytest.raises((ModelUnavailable, UnsupportedModel), match=named) as caught:
        load_model(folder, dtype="float32", kernels=kernels)
    assert caught.value.remedy


@pytest.mark.parametrize("value", ["x", [2, "x"], [[1]], 2.5, -1, 1 << 40, True])
def test_an_end_that_is_no_token_id_is_refused(folder: Path, value):
    change(folder, "generation_config.json", eos_token_id=value)
    assert "eos_token_id" in refusal(folder, ModelUnavailable)


def test_a_file_that_cannot_be_opened_is_named(folder: Path):
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert "config.json cannot be read" in refusal(folder, ModelUnavailable)
