"""An int8 cache leaves a row's bits as independent of its batch as a cache of floats, and changes them.

Inside a chunk attention reads the codes of the chunk's own tokens too, as it would have in single steps.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.engine.checks import first_non_finite
from replay.engine.fast_forward import fast_forward
from replay.engine.runner import ModelRunner
from replay.engine.weights import load_model
from tests import mixing
from tests.devices import DEVICES
from tests.tiny import make_tiny_model

LENGTH = 70
BLOCKS = -(-LENGTH // mixing.BLOCK_SIZE)


@pytest.fixture(scope="module", params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request, device, tmp_path_factory):
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny"), intermediate_size=1539)
    return load_model(folder, dtype=request.param, device=device)


def new_runner(model, *, quant_bits: int = 8) -> ModelRunner:
    runner = mixing.poisoned_runner(model, num_blocks=64, quant_bits=quant_bits)
    runner.digests = True
    return runner


def whole(model, **options):
    runner = new_runner(model, **options)
    tokens = mixing.random_tokens(LENGTH, model.vocab_size, seed=1)
    logits, _ = mixing.run_among(runner, mixing.make_request(tokens, range(BLOCKS)), [LENGTH])
    return logits, *contents(runner, range(BLOCKS - 1))


def contents(runner: ModelRunner, blocks) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of blocks; of a cache without scales its contents twice."""
    codes, scales = runner.kv.read_blocks(blocks), runner.kv.read_scales(blocks)
    return codes, codes if scales is None else scales


@settings(max_examples=15)
@given(data=st.data())
def test_same_bits_in_any_mix_chunking_and_placement(model, data):
    expected = whole(model)
    runner = new_runner(model)
    tokens = mixing.random_tokens(LENGTH, model.vocab_size, seed=1)
    request, logits, _ = mixing.run_in_drawn_mix(data, runner, tokens, most_others=5)
    assert np.array_equal(logits.view(np.uint32), expected[0].view(np.uint32))
    for ours, theirs in zip(contents(runner, request.blocks[:-1]), expected[1:], strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_single_steps_give_what_a_fast_forward_gives(model):
    tokens = mixing.random_tokens(LENGTH, model.vocab_size, seed=1)
    stepped = new_runner(model)
    logits, _ = mixing.run_among(stepped, mixing.make_request(tokens, range(BLOCKS)), mixing.chunks_of(1, LENGTH))
    assert np.array_equal(logits.view(np.uint32), whole(model)[0].view(np.uint32))
    for chunk in (7, 32, 256):
        runner, request = new_runner(model), mixing.make_request(tokens, range(9, 9 + BLOCKS)[::-1], num_prompt=1)
        checks = fast_forward(runner, request, LENGTH, check_from=1, chunk=chunk)
        digests = [runner.sample(row, request, position=place + 1).digest for place, row in enumerate(logits[:-1])]
        assert [check.sample.digest for check in checks] == digests
        written = contents(runner, request.blocks[:-1]), contents(stepped, range(BLOCKS - 1))
        assert all(ours.tobytes() == theirs.tobytes() for ours, theirs in zip(*written, strict=True))


def test_int8_changes_the_logits_and_not_by_much(model):
    plain, quantised = whole(model, quant_bits=0)[0], whole(model)[0]
    assert np.array_equal(plain[0].argmax(), quantised[0].argmax())
    assert 0 < np.abs(plain - quantised).max() < 0.25 * np.abs(plain).max()


def test_two_caches_of_one_step_can_be_of_different_kinds(model):
    """As in a batch of several dumps."""
    from replay.engine.attention import Placed
    from replay.engine.runner import forward
    from replay.engine.schedule import Chunk

    tokens = mixing.random_tokens(40, model.vocab_size, seed=4)
    alone = []
    for bits in (0, 8):
        runner = new_runner(model, quant_bits=bits)
        alone.append(runner.compute([Chunk(mixing.make_request(tokens, range(3)), 0, 40)], step=0))
    stores = [new_runner(model, quant_bits=bits).kv for bits in (0, 8)]
    hidden = forward(model, [Placed(Chunk(mixing.make_request(tokens, range(3)), 0, 40), kv) for kv in stores])
    assert torch.equal(hidden[:40], alone[0])
    assert torch.equal(hidden[40:], alone[1])
    assert not torch.equal(alone[0], alone[1])


def test_a_nan_in_an_int8_cache_is_located(model):
    runner = new_runner(model)
    request = mixing.make_request(mixing.random_tokens(LENGTH, model.vocab_size, seed=1), [4, 9, 2, 7, 5])
    mixing.run_among(runner, request, [LENGTH])
    request.num_computed = LENGTH
    assert first_non_finite(runner.kv, [request]).where == "logits"
    assert runner.kv.scales is not None
    runner.kv.scales[1, request.slot(37, mixing.BLOCK_SIZE), 0, 1] = float("nan")
    place = first_non_finite(runner.kv, [request])
    assert (place.layer, place.tensor, place.block, place.slot, place.position) == (1, "key", 2, 5, 37)
