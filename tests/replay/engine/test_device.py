"""Which device a wish means, what is set for it, and what is said of it. Nothing here needs a GPU."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from replay.engine import device
from replay.engine.attention import TileSizes
from replay.engine.device import Settings
from replay.engine.kernels.cuda import choose_backend
from replay.engine.loaded import LoadedModel
from replay.engine.probe import AttentionShape, NoExactKernel
from replay.engine.runner import ModelRunner
from replay.engine.weights import load_model
from replay.errors import DeviceUnavailable, UsageError
from tests.mixing import BLOCK_SIZE, chunks_of, make_request, random_tokens, run_among
from tests.tiny import make_tiny_model

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens on a machine without a GPU")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_the_cpu_is_the_cpu_and_auto_goes_where_it_was_recorded():
    assert device.resolve("cpu", recorded="cuda") == "cpu"
    assert device.resolve("auto", recorded="cpu") == "cpu"


@pytest.mark.parametrize("word", ["gpu", "cuda:", "cuda:-1", "cuda:one", "cpu:0", "CUDA", "", "cuda:²"])
def test_other_words_are_refused(word):
    with pytest.raises(UsageError, match="no such device") as caught:
        device.resolve(word)
    assert "auto, cpu, cuda or cuda:N" in caught.value.remedy


@without_gpu
@pytest.mark.parametrize("word", ["cuda", "cuda:0", "cuda:7"])
def test_cuda_is_refused_without_a_gpu_with_what_to_do(word):
    with pytest.raises(DeviceUnavailable, match=r"built without CUDA|no CUDA device can be used") as caught:
        device.resolve(word)
    assert "--device cpu" in caught.value.remedy
    assert caught.value.exit_code == 20


@without_gpu
@pytest.mark.parametrize("kernels", ["exact", "stock"])
def test_a_model_is_not_loaded_on_what_is_not_there(tiny, kernels):
    with pytest.raises(DeviceUnavailable):
        load_model(tiny, dtype="float32", kernels=kernels, device="cuda")


@without_gpu
@pytest.mark.parametrize("recorded", ["", "cuda", "mps"])
def test_auto_is_the_cpu_where_there_is_no_gpu(recorded):
    assert device.resolve("auto", recorded=recorded) == "cpu"


def flags() -> tuple[object, ...]:
    matmul = torch.backends.cuda.matmul
    try:
        older: object = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = "newer switches only"
    return (
        older,
        matmul.fp32_precision,
        torch.backends.mkldnn.matmul.fp32_precision,
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction_split_k,
        str(torch.backends.cuda.preferred_blas_library()),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
    )


@pytest.fixture
def flags_kept():
    """Whatever a test sets, the next one finds torch as it was."""
    matmul, reset = torch.backends.cuda.matmul, flags()
    newer = matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.set_float32_matmul_precision("highest")
    matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = newer
    matmul.allow_bf16_reduced_precision_reduction = True
    assert flags() == reset


def older_high() -> None:
    torch.set_float32_matmul_precision("high")


def newer_tf32() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"


def no_reduction() -> None:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)


@pytest.mark.usefixtures("flags_kept")
@pytest.mark.parametrize("before", [lambda: None, older_high, newer_tf32, no_reduction])
def test_settings_hold_inside_and_are_put_back_also_after_an_error(before):
    before()
    kept = flags()
    settings = Settings(blas="cublas", attention="math")
    inside = []

    def fail() -> None:
        with settings.applied():
            inside.append(flags())
            with settings.applied():  # a probe within a load
                inside.append(flags())
            inside.append(flags())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    expected = ("highest", "ieee", "ieee", False, True, "_BlasBackend.Cublas", False, False, False, True)
    assert inside == [expected] * 3
    assert flags() == kept


def test_nothing_is_set_for_the_cpu(monkeypatch):
    monkeypatch.delenv(device.WORKSPACE, raising=False)
    settings, kept = device.prepare("cpu"), flags()
    assert settings == Settings()
    with settings.applied():
        assert flags() == kept
    assert device.WORKSPACE not in os.environ
    assert device.device_facts("cpu", settings) == {}


def test_facts_of_a_gpu_are_those_that_choose_its_kernels():
    h200 = SimpleNamespace(name="NVIDIA H200", multi_processor_count=132, major=9, minor=0, total_memory=1)
    expected = {"gpu": "NVIDIA H200", "gpu_processors": "132", "gpu_capability": "9.0"}
    assert device.gpu_facts(h200) == expected


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.169  Thu Jun 12 2025\nGCC version: 12.3.0\n", "570.169"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC 13.2\n", "580.65.06"),
        ("NVRM version: something else\nGCC version: 123.4.5\n", "unknown"),
        ("", "unknown"),
    ],
)
def test_the_drivers_version(text, version):
    assert device.driver_version(text) == version


def test_a_loaded_library_is_found_by_its_name():
    path = device.loaded_library("libtorch_cpu.so")
    assert path is not None
    assert Path(path).is_file()
    assert device.loaded_library("libnot_there.so") is None


# The choice of a backend is the same code on any device; on the CPU the first backend does not exist.


def computed(model: LoadedModel, lengths, *, mates: int = 0):
    """Logits and KV of one request among others."""
    tokens = random_tokens(70, model.vocab_size, seed=1)
    others = [
        make_request(random_tokens(70, model.vocab_size, seed=i), range(5 * i, 5 * i + 5), name=f"o{i}")
        for i in range(1, mates + 1)
    ]
    kv = model.kv_store(num_blocks=64, block_size=BLOCK_SIZE)
    kv.fill_blocks(range(64), float("nan"))
    logits, contents = run_among(
        ModelRunner(model, kv),
        make_request(tokens, range(5)),
        lengths,
        others=others,
        other_length=lambda step, index: (1, 23, 5)[(step + index) % 3],
        place=mates // 2,
    )
    return logits, contents[:-1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_backend_that_is_chosen_gives_a_row_the_same_bits_everywhere(tiny, dtype):
    model = load_model(tiny, dtype=dtype)
    shape = AttentionShape(model.num_heads, model.num_kv_heads, model.head_dim, getattr(torch, dtype))
    with torch.inference_mode():
        settings, sizes = choose_backend(shape, Settings(), rows=model.sizes.rows, max_keys=256, device="cpu")
    assert settings == Settings(attention="math")
    model = replace(model, settings=settings, sizes=sizes)
    logits, kv = computed(model, [70])
    for lengths, mates in (([1] * 70, 0), (chunks_of(7, 70), 5), ([33, *[1] * 37], 5)):
        other_logits, other_kv = computed(model, lengths, mates=mates)
        assert np.array_equal(logits, other_logits)
        assert np.array_equal(kv, other_kv)


def test_where_tiles_may_not_share_a_call_each_has_its_own(tiny, monkeypatch):
    """A kernel whose bits depend on the number of tiles still gives each row one result."""
    model = load_model(tiny, dtype="float32")
    plain = torch.nn.functional.scaled_dot_product_attention

    def depends_on_tiles(query, key, value, **options):
        result = plain(query, key, value, **options)
        return result * (1 + 1e-6 * (query.shape[0] + key.shape[2] // 512))

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", depends_on_tiles)
    shape = AttentionShape(model.num_heads, model.num_kv_heads, model.head_dim, torch.float32)
    settings, sizes = choose_backend(shape, Settings(), rows=model.sizes.rows, max_keys=1000, device="cpu")
    assert sizes == TileSizes(rows=model.sizes.rows, decode=16, prefill=16, keys=1024, alone=True)
    logits, kv = computed(replace(model, settings=settings, sizes=sizes), [70])
    assert np.isfinite(logits).all()
    for lengths, mates in (([1] * 70, 2), (chunks_of(7, 70), 5)):
        other_logits, other_kv = computed(replace(model, settings=settings, sizes=sizes), lengths, mates=mates)
        assert np.array_equal(logits, other_logits)
        assert np.array_equal(kv, other_kv)
    shared = replace(model, settings=settings, sizes=replace(sizes, alone=False))
    assert not np.array_equal(logits, computed(shared, [70])[0]), "the kernel depends on the number of tiles"


def test_a_kernel_that_differs_in_a_few_last_bits_only_is_not_trusted(monkeypatch):
    """At three tiles a call, and in the order of a sum: with ordinary numbers bfloat16 would hide it."""
    fused = torch.nn.functional.scaled_dot_product_attention

    def plain(query, key, value, *, attn_mask, scale):
        """In float64, so that no processor's way of cutting it shows in the result."""
        wide = [part.double() for part in (query, key, value)]
        return fused(*wide, attn_mask=attn_mask.double(), scale=scale).to(query.dtype)

    def other_order(query, key, value, *, attn_mask, scale):
        if query.shape[0] != 3:
            return plain(query, key, value, attn_mask=attn_mask, scale=scale)
        backwards = [part.flip(2) for part in (key, value)]
        return fused(query, *backwards, attn_mask=attn_mask.flip(3), scale=scale)

    shape = AttentionShape(4, 2, 16, torch.bfloat16)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", plain)
    assert not choose_backend(shape, Settings(), rows=4, max_keys=64, device="cpu")[1].alone
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", other_order)
    assert choose_backend(shape, Settings(), rows=4, max_keys=64, device="cpu")[1].alone


def test_a_shape_that_no_backend_takes_is_refused(monkeypatch):
    def none(*unused, **also_unused):
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", none)
    with pytest.raises(NoExactKernel, match=r"heads of 16 in torch\.float32 on cpu"):
        choose_backend(AttentionShape(4, 2, 16, torch.float32), Settings(), rows=4, max_keys=64, device="cpu")
