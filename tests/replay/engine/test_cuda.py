"""The engine on CUDA beside the engine on the CPU. All of it needs a GPU: see tests/devices.py for how to run it.

That a row's bits do not depend on its batch is tested by the same tests for both devices: test_exactness,
test_architectures_exact, test_int8_kv, and tests/replay/targets/test_device_replays for whole replays.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from replay.engine import device
from replay.engine.checks import first_non_finite
from replay.engine.damage import flip_top_exponent_bit
from replay.engine.fast_forward import fast_forward
from replay.engine.kv_store import KVStore
from replay.engine.loaded import LoadedModel
from replay.engine.runner import ModelRunner
from replay.engine.weights import load_model
from replay.errors import DeviceUnavailable
from tests.mixing import BLOCK_SIZE, make_request, random_tokens
from tests.peer import our_generate, our_logits
from tests.tiny import make_tiny_model
from tests.tiny_models import CONFIGS, make_model

pytestmark = pytest.mark.gpu

LARGEST_DIFFERENCE = {"float32": (1.0, 2e-3), "bfloat16": (0.9, 0.1)}
"""At which share of positions no logit may differ by more than which part of the largest logit. In bfloat16 rounding
can send a token to another expert, and then its logits are others."""

AGREEMENT = {"float32": 0.98, "bfloat16": 0.85}
"""Least share of positions at which both devices have the same best token. Random models have many near ties."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request, tiny) -> LoadedModel:
    return load_model(tiny, dtype=request.param, device="cuda")


def assert_close(ours, theirs, dtype: str) -> None:
    """Logits [positions, vocab] of the same tokens on two devices."""
    assert np.isfinite(ours).all()
    share, largest = LARGEST_DIFFERENCE[dtype]
    assert np.quantile(np.abs(ours - theirs).max(axis=1), share) <= largest * np.abs(theirs).max()
    assert (ours.argmax(axis=1) == theirs.argmax(axis=1)).mean() >= AGREEMENT[dtype]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_architecture_computes_what_it_does_on_the_cpu(tmp_path, kind, dtype):
    folder = make_model(tmp_path / kind, kind)
    here, there = (load_model(folder, dtype=dtype, device=name) for name in ("cpu", "cuda"))
    tokens = random_tokens(20, here.vocab_size, seed=1)
    tokens += our_generate(here, [tokens], 60)[0]
    assert len(set(tokens[20:])) >= 8, "the model repeats itself, so equal tokens prove little"
    assert_close(our_logits(there, tokens), our_logits(here, tokens), dtype)
    stock = load_model(folder, dtype=dtype, device="cuda", kernels="stock")
    assert_close(our_logits(stock, tokens), our_logits(here, tokens), dtype)


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_real_model_chooses_the_tokens_that_it_does_on_the_cpu(smollm2, dtype):
    there = load_model(smollm2, dtype=dtype, device="cuda")
    tokens = random_tokens(16, 4000, seed=2)
    tokens += our_generate(there, [tokens], 80)[0]
    here = load_model(smollm2, dtype=dtype)
    assert_close(our_logits(there, tokens), our_logits(here, tokens), dtype)


def test_the_numerics_name_the_gpu_its_libraries_and_what_the_probe_found(model, tiny):
    numerics = model.numerics
    assert numerics["device"] == "cuda"
    assert numerics["gpu"] == torch.cuda.get_device_name(0)
    assert int(numerics["gpu_processors"]) > 0
    assert numerics["row_tile"] in ("64", "128")
    assert numerics["attention_backend"] in device.BACKENDS
    assert (numerics["matmul_precision"], numerics["bf16_reduction"]) == ("ieee", "False")
    assert numerics["blas"] in ("cublaslt", "cublas")
    assert "unknown" not in (numerics["cublas"], numerics["cuda"])
    assert all(isinstance(value, str) and value for value in numerics.values())
    assert "threads" not in numerics
    again = load_model(tiny, dtype=model.dtype, device="cuda:0")
    assert again.numerics == numerics, "the probe finds something else the second time"


def test_the_workspace_is_set_and_nothing_else_stays(tiny):
    matmul = torch.backends.cuda.matmul

    def flags():
        return (
            torch.get_float32_matmul_precision(),
            matmul.fp32_precision,
            matmul.allow_bf16_reduced_precision_reduction,
            matmul.allow_bf16_reduced_precision_reduction_split_k,
            torch.backends.cuda.preferred_blas_library(),
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
        )

    before = flags()
    our_logits(load_model(tiny, dtype="bfloat16", device="cuda"), random_tokens(20, 256, seed=1))
    assert flags() == before
    assert os.environ[device.WORKSPACE] == device.SMALL_WORKSPACE


def test_auto_is_the_gpu_unless_the_record_says_cpu_and_numbers_are_checked():
    assert [device.resolve("auto", recorded=one) for one in ("", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]
    assert device.resolve("cuda:0") == "cuda:0"
    with pytest.raises(DeviceUnavailable, match="no CUDA device 99: this process sees") as caught:
        device.resolve("cuda:99")
    assert "CUDA_VISIBLE_DEVICES" in caught.value.remedy


@pytest.mark.parametrize("quant_bits", [0, 8])
def test_a_cache_on_the_gpu_holds_what_one_in_memory_does(model, quant_bits):
    values = torch.randn((24, 2, 3, 8), generator=torch.Generator().manual_seed(1))
    stores, gathered = [], []
    for name in ("cpu", "cuda"):
        store = KVStore(
            num_blocks=6,
            block_size=4,
            num_layers=2,
            num_kv_heads=3,
            head_dim=8,
            dtype=model.dtype,
            device=name,
            quant_bits=quant_bits,
            measure=True,
        )
        slots, out = torch.arange(24, device=name), torch.empty(values.shape, dtype=store.compute_dtype, device=name)
        for layer in range(2):
            store.write(layer, slots, (values + layer).to(name, store.compute_dtype))
            store.stamp(range(24), step=layer, owner="r", first_position=0)
        store.copy_block(1, 4)
        store.fill_blocks([2], 3.0)
        store.gather(1, slots, out)
        stores.append(store)
        gathered.append(out.float().cpu())
    here, there = stores
    contents, scales = here.read_blocks(range(6)), here.read_scales(range(6))
    if quant_bits:  # a GPU multiplies by 1/127 where a CPU divides
        assert torch.allclose(*gathered, rtol=0.02, atol=0.05)
        assert here.distortion is not None
        assert there.distortion is not None
        for ours, theirs in zip(there.distortion.layers(), here.distortion.layers(), strict=True):
            assert ours.largest == pytest.approx(theirs.largest, 0.1)
            assert ours.rms == pytest.approx(theirs.rms, 0.01)
    else:
        assert torch.equal(*gathered)
        assert np.array_equal(contents, there.read_blocks(range(6)))
    order = [3, 0, 5, 1, 2, 4]
    there.write_blocks(order, contents, scales)
    assert np.array_equal(there.read_blocks(order), contents)
    kept = there.read_scales(order)
    assert (kept is None) == (scales is None)
    assert kept is None or scales is None or np.array_equal(kept, scales)
    there.write(1, torch.tensor([9], device="cuda"), torch.full((1, 2, 3, 8), float("nan")).to("cuda", out.dtype))
    there.stamp([9], step=3, owner="r", first_position=9)
    assert [there.finite_block(block) for block in range(6)] == [block != 2 for block in range(6)]


def test_a_flipped_bit_is_located_on_the_gpu(model):
    runner = ModelRunner(model, model.kv_store(num_blocks=8, block_size=BLOCK_SIZE))
    request = make_request(random_tokens(40, model.vocab_size, seed=1), [5, 2, 7])
    fast_forward(runner, request, 40)
    request.num_computed = 40
    assert first_non_finite(runner.kv, [request]).where == "logits"
    key = runner.kv.data[1, request.slot(20, BLOCK_SIZE), 0].view(-1)
    key[3] = 1.5
    flip_top_exponent_bit(key, 3)
    assert torch.isnan(key[3])
    place = first_non_finite(runner.kv, [request])
    assert (place.layer, place.tensor, place.block, place.slot, place.position) == (1, "key", 2, 4, 20)


def test_one_tile_a_call_has_the_bits_of_a_fixed_shape(model):
    """The form for GPUs on which tiles may not share a call, which the probe may never choose here."""
    alone = replace(model, sizes=replace(model.sizes, decode=model.sizes.prefill, alone=True))
    tokens = random_tokens(70, model.vocab_size, seed=1)
    assert_close(our_logits(alone, tokens), our_logits(model, tokens), model.dtype)
    results = []
    for chunk in (70, 7, 1):
        runner = ModelRunner(alone, alone.kv_store(num_blocks=5, block_size=BLOCK_SIZE), digests=True)
        request = make_request(tokens, range(5), num_prompt=1)
        results.append([check.sample.digest for check in fast_forward(runner, request, 70, check_from=1, chunk=chunk)])
    assert results[0] == results[1] == results[2]
