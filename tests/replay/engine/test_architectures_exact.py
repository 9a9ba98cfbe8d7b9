"""Bits of every tested architecture: alone, mixed, whole, in chunks, decoded; any blocks, one and two threads; on the
CPU and (with ``-m gpu``) on CUDA."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replay.engine.loaded import LoadedModel
from replay.engine.weights import load_model
from tests import mixing
from tests.devices import DEVICES
from tests.tiny_models import CONFIGS, make_model

DTYPES = ("float32", "bfloat16")
LENGTH = 28
NUM_BLOCKS = 64
PER_REQUEST = -(-LENGTH // mixing.BLOCK_SIZE)

ODD = {"intermediate_size": 205, "n_inner": 205}
"""Widths at which torch's own activations have a scalar tail, and products depend on the row count."""

# Stock kernels take experts of multiples of 8 only.
WIDTHS = {"mixtral": {"intermediate_size": 104}}


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")

    @cache
    def folder(kind, window):
        config = CONFIGS[kind]
        changes = {name: size for name, size in WIDTHS.get(kind, ODD).items() if name in config}
        if window:
            changes |= {"sliding_window": window, "max_position_embeddings": 1024}
        return make_model(root / f"{kind}-{window}", kind, **changes)

    @cache
    def cached(kind, dtype, threads, kernels, window, device):
        return load_model(folder(kind, window), dtype=dtype, kernels=kernels, device=device)

    def load(
        kind: str, dtype: str, threads: int = 1, kernels: str = "exact", window: int = 0, device: str = "cpu"
    ) -> LoadedModel:
        """A model, with torch set to the threads on which it was probed."""
        torch.set_num_threads(threads)
        model: LoadedModel = cached(kind, dtype, threads, kernels, window, device)
        return model

    return load


def run(model: LoadedModel, lengths, *, mates: int = 0, first_block: int = 0, backwards: bool = False):
    """Logits and KV of one request, computed in chunks of `lengths` among `mates` others of uneven chunks."""
    tokens = mixing.random_tokens(LENGTH, model.vocab_size, seed=1)
    blocks = range(first_block, first_block + PER_REQUEST)
    others = [
        mixing.make_request(
            mixing.random_tokens(LENGTH, model.vocab_size, seed=10 + index),
            range(20 + PER_REQUEST * index, 20 + PER_REQUEST * (index + 1)),
            name=f"o{index}",
        )
        for index in range(mates)
    ]
    return mixing.run_among(
        mixing.poisoned_runner(model, num_blocks=NUM_BLOCKS),
        mixing.make_request(tokens, blocks[::-1] if backwards else blocks),
        lengths,
        others=others,
        other_length=lambda step, index: (1, 5, 1, 1, 19, 1, 1)[(step + index) % 7],
        place=mates // 2,
    )


def assert_same(expected, found, name):
    (logits, kv), (other_logits, other_kv) = expected, found
    differing = (logits.view(np.uint32) != other_logits.view(np.uint32)).any(axis=1)
    assert not differing.any(), f"{name}: {differing.sum()} of {len(differing)} rows differ"
    used = LENGTH % mixing.BLOCK_SIZE
    assert np.array_equal(kv[:-1], other_kv[:-1]), name
    assert np.array_equal(kv[-1, :, :, :used], other_kv[-1, :, :, :used]), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", CONFIGS)
def test_same_bits_whole_chunked_decoded_and_mixed_on_one_and_two_threads(load, kind, dtype, device):
    model = load(kind, dtype, device=device)
    expected = run(model, [LENGTH])
    assert np.isfinite(expected[0]).all()
    assert_same(expected, run(model, mixing.chunks_of(1, LENGTH)), "decoded alone")
    decoded = [LENGTH - 10, *mixing.chunks_of(1, 10)]
    assert_same(expected, run(model, decoded, mates=3, first_block=7, backwards=True), "decoded in a mix")
    assert_same(expected, run(model, mixing.chunks_of(7, LENGTH), mates=7, first_block=9), "chunks of 7 in a mix")
    model = load(kind, dtype, threads=2, device=device)
    assert_same(expected, run(model, mixing.chunks_of(7, LENGTH), mates=5, backwards=True), "chunks of 7, two threads")
    assert_same(expected, run(model, [LENGTH - 4, *mixing.chunks_of(1, 4)]), "the last 4 decoded, two threads")


@pytest.mark.parametrize("kind", CONFIGS)
def test_stock_kernels_do_differ(load, kind):
    """The comparison must be able to fail, and does for every architecture on torch's own kernels."""
    model = load(kind, "bfloat16", kernels="stock")
    expected = run(model, [LENGTH])
    with pytest.raises(AssertionError, match="rows differ"):
        assert_same(expected, run(model, mixing.chunks_of(1, LENGTH)), "decoded alone")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kind", "window", "dtype"),
    [("mistral", 20, "float32"), ("mistral", 20, "bfloat16"), ("gemma3", 530, "bfloat16")],
)
def test_same_bits_where_a_window_hides_a_whole_block_of_keys(load, kind, window, dtype, device):
    """Beyond 512 keys, the block in which the attention kernel takes them; a short window sees none of the first."""
    model = load(kind, dtype, window=window, device=device)
    tokens = mixing.random_tokens(1040, model.vocab_size, seed=3)
    blocks = range(-(-len(tokens) // mixing.BLOCK_SIZE))
    whole, _ = mixing.run_among(
        mixing.poisoned_runner(model, num_blocks=70), mixing.make_request(tokens, blocks), [len(tokens)]
    )
    lengths = [500, 3, 1, 40, *mixing.chunks_of(1, 20), 466, *mixing.chunks_of(1, 10)]
    stepped, _ = mixing.run_among(
        mixing.poisoned_runner(model, num_blocks=70), mixing.make_request(tokens, blocks[::-1]), lengths
    )
    assert np.isfinite(whole).all()
    assert np.array_equal(whole, stepped)


@given(st.data())
def test_same_bits_in_any_mix_chunking_placement_and_number_of_threads(load, data):
    kind = data.draw(st.sampled_from(sorted(CONFIGS)), label="kind")
    threads = data.draw(st.sampled_from([1, 2]), label="threads")
    model = load(kind, data.draw(st.sampled_from(DTYPES), label="dtype"), threads)
    length = data.draw(st.integers(2, 48), label="length")
    tokens = mixing.random_tokens(length, model.vocab_size, seed=data.draw(st.integers(0, 9), label="seed"))
    runner = mixing.poisoned_runner(model, num_blocks=NUM_BLOCKS)
    expected, expected_kv = mixing.run_among(
        runner, mixing.make_request(tokens, range(-(-length // mixing.BLOCK_SIZE))), [length]
    )
    _, logits, kv = mixing.run_in_drawn_mix(
        data, mixing.poisoned_runner(model, num_blocks=NUM_BLOCKS), tokens, other_tokens=48
    )
    assert np.array_equal(expected, logits)
    assert np.array_equal(expected_kv[:-1], kv[:-1])
