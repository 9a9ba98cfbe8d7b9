"""A row's bits do not depend on its batch: alone, mixed, whole, in chunks, decoded; any threads, any blocks, on the CPU
and (with ``-m gpu``) on CUDA."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replay.engine.weights import LoadedModel, load_model
from tests.devices import DEVICES
from tests.mixing import (
    BLOCK_SIZE,
    chunks_of,
    make_request,
    poisoned_runner,
    random_tokens,
    run_among,
    run_in_drawn_mix,
)
from tests.tiny import make_tiny_model

DTYPES = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    # Wide and odd, so that stock activations have a scalar tail and stock products depend on the row count.
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"), intermediate_size=1539)

    @cache
    def cached(dtype, threads, kernels, device) -> LoadedModel:
        return load_model(folder, dtype=dtype, kernels=kernels, device=device)

    def load(dtype: str, threads: int = 1, kernels: str = "exact", device: str = "cpu") -> LoadedModel:
        """A model, with torch set to the threads on which it was probed."""
        torch.set_num_threads(threads)
        return cached(dtype, threads, kernels, device)

    return load


def ways(model: LoadedModel, length: int, decoded: int):
    """(name, logits, KV) of one request computed in every way. Decoding takes the last `decoded` tokens one by one."""
    tokens = random_tokens(length, model.vocab_size, seed=1)
    per_request = -(-length // BLOCK_SIZE)
    others = [
        make_request(
            random_tokens(length, model.vocab_size, seed=index),
            range(index * per_request, (index + 1) * per_request),
            name=f"other-{index}",
        )
        for index in range(2, 9)
    ]

    def varied(step: int, index: int) -> int:
        return (1, 5, 1, 1, 23, 1, 1)[(step + index) % 7]

    for name, lengths in (
        ("whole", [length]),
        ("chunks of 7", chunks_of(7, length)),
        ("chunks of 64", chunks_of(64, length)),
        ("decoded", [length - decoded] * (decoded < length) + [1] * decoded),
    ):
        for mates in ((), others):
            # Decoding among decoding mates is the usual case, and one that real weights take in seconds.
            count = (lambda step, index: 1) if name == "decoded" else varied
            request = make_request(tokens, range(per_request)[::-1])
            runner = poisoned_runner(model, num_blocks=9 * per_request)
            logits, kv = run_among(runner, request, lengths, others=mates, other_length=count, place=len(mates) // 2)
            yield f"{name}, {'in a mix of 8' if mates else 'alone'}", logits, kv


def assert_same_bits(model: LoadedModel, length: int, *, decoded: int | None = None):
    results = list(ways(model, length, length if decoded is None else decoded))
    _, logits, kv = results[0]
    used = length % BLOCK_SIZE or BLOCK_SIZE
    assert np.isfinite(logits).all()
    for name, other_logits, other_kv in results[1:]:
        differing = (logits.view(np.uint32) != other_logits.view(np.uint32)).any(axis=1)
        assert not differing.any(), f"{name}: {differing.sum()} of {length} rows differ"
        assert np.array_equal(kv[:-1], other_kv[:-1]), name
        assert np.array_equal(kv[-1, :, :, :used], other_kv[-1, :, :, :used]), name
    return logits


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_alone_and_mixed_whole_chunked_and_decoded(tiny, dtype, device):
    one = assert_same_bits(tiny(dtype, 1, device=device), 100)
    two = assert_same_bits(tiny(dtype, 2, device=device), 100)
    assert np.array_equal(one, two)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_stock_kernels_do_differ(tiny, dtype, device):
    """The comparison above must be able to fail, and does on torch's own kernels."""
    with pytest.raises(AssertionError, match="rows differ"):
        assert_same_bits(tiny(dtype, 1, "stock", device), 100)


@pytest.mark.parametrize("device", DEVICES)
def test_bits_do_not_depend_on_how_many_keys_are_padded(tiny, device):
    """Positions on both sides of a padding boundary, so that decode and prefill pad differently."""
    model = tiny("bfloat16", 1, device=device)
    boundary = model.sizes.keys
    tokens = random_tokens(boundary + 40, model.vocab_size, seed=3)
    blocks = range(-(-len(tokens) // BLOCK_SIZE))
    whole, _ = run_among(poisoned_runner(model, num_blocks=128), make_request(tokens, blocks), [len(tokens)])
    lengths = [boundary - 10, *chunks_of(1, 50)]
    stepped, _ = run_among(poisoned_runner(model, num_blocks=128), make_request(tokens, blocks), lengths)
    assert np.array_equal(whole, stepped)


@pytest.mark.parametrize("device", DEVICES)
@given(data=st.data())
def test_same_bits_in_any_mix_chunking_and_placement(tiny, device, data):
    model = tiny(data.draw(st.sampled_from(DTYPES), label="dtype"), 1, device=device)
    length = data.draw(st.integers(2, 70), label="length")
    tokens = random_tokens(length, model.vocab_size, seed=data.draw(st.integers(0, 9), label="seed"))
    runner = poisoned_runner(model, num_blocks=128)
    expected, _ = run_among(runner, make_request(tokens, range(-(-length // BLOCK_SIZE))), [length])
    _, logits, _ = run_in_drawn_mix(data, poisoned_runner(model, num_blocks=128), tokens)
    assert np.array_equal(expected, logits)


@pytest.mark.model
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_on_the_real_model(smollm2: Path, dtype, device):
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        model = load_model(smollm2, dtype=dtype, device=device)
        results.append(assert_same_bits(model, 72, decoded=12))
    assert np.array_equal(*results)


@pytest.mark.parametrize("lengths", [[13, 20], [1, 1, 1, 1, 17, 12], [20, 13]], ids=str)
@pytest.mark.parametrize("seed", [2, 3])
def test_long_calls_have_the_bits_of_short_ones_where_they_rarely_differ(tiny, lengths, seed):
    """Found by drawing on a processor with AMX: two of 2,112 values of one layer differed above 32 rows."""
    model = tiny("bfloat16", 1)
    tokens = random_tokens(33, model.vocab_size, seed=seed)
    blocks = range(-(-33 // BLOCK_SIZE))
    whole, _ = run_among(poisoned_runner(model, num_blocks=128), make_request(tokens, blocks), [33])
    cut, _ = run_among(poisoned_runner(model, num_blocks=128), make_request(tokens, blocks), lengths)
    assert np.array_equal(whole, cut)
