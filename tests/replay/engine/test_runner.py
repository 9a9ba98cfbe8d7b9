"""The executor: samples for the chunks that sample, stamps, digests, non-finite rows."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from replay.engine.request import SamplingParams
from replay.engine.runner import ModelRunner
from replay.engine.schedule import Chunk, StepPlan
from replay.engine.weights import load_model
from replay.errors import ReplayError
from tests.mixing import make_request, random_tokens
from tests.tiny import make_tiny_model

BLOCK = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder, dtype="float32")


@pytest.fixture
def runner(model):
    return ModelRunner(model, model.kv_store(num_blocks=20, block_size=BLOCK), digests=True)


def requests_of(*lengths):
    return [
        make_request(random_tokens(length, 320, seed=index), range(5 * index, 5 * index + 5), name=f"r{index}")
        for index, length in enumerate(lengths)
    ]


def test_only_chunks_that_reach_the_last_token_sample(runner):
    whole, part = requests_of(10, 20)
    samples = runner.execute(StepPlan(index=3, chunks=[Chunk(part, 0, 12), Chunk(whole, 0, 10)]))
    assert list(samples) == ["r0"]
    assert runner.execute(StepPlan(index=4, chunks=[Chunk(part, 12, 4)])) == {}
    assert list(runner.execute(StepPlan(index=5, chunks=[Chunk(part, 16, 4)]))) == ["r1"]
    assert runner.execute(StepPlan(index=6)) == {}


def test_a_sample_carries_digest_margin_and_gap(runner):
    (request,) = requests_of(10)
    plan = StepPlan(index=0, chunks=[Chunk(request, 0, 10)])
    sample = runner.execute(plan, recorded={"r0": 100})["r0"]
    hidden = runner.compute(plan.chunks, step=0)
    (row,) = runner.logits(hidden, [9])
    best = np.sort(row)
    assert sample.token == int(row.argmax())
    assert sample.finite
    assert sample.margin == float(best[-1]) - float(best[-2])
    assert sample.gap == pytest.approx(float(row.max() - row[100]))
    assert sample.digest == int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "big")
    assert 0 <= sample.digest < 2**64
    runner.digests = False
    assert runner.execute(plan)["r0"].digest is None
    assert runner.execute(plan)["r0"].gap is None


def test_slots_are_stamped_with_step_owner_and_position(runner):
    first, second = requests_of(10, 12)
    runner.execute(StepPlan(index=1, chunks=[Chunk(first, 0, 10), Chunk(second, 0, 4)]))
    runner.execute(StepPlan(index=2, chunks=[Chunk(second, 4, 8)]))
    kv = runner.kv
    slots = kv.slots_of(second.blocks, 0, 12)
    assert kv.written_step[slots].tolist() == [1] * 4 + [2] * 8
    assert kv.position[slots].tolist() == list(range(12))
    assert {kv.owner[slot] for slot in slots} == {"r1"}
    assert kv.just_written.tolist() == slots[4:].tolist()
    assert (kv.written_step >= 0).sum() == 22


def test_noise_is_keyed_by_seed_choice_and_position_not_by_the_batch(model):
    def drawn(mates):
        runner = ModelRunner(model, model.kv_store(num_blocks=20, block_size=BLOCK))
        requests = requests_of(10, 7, 5)
        requests[0].sampling = SamplingParams(temperature=1.5, seed=77)
        tokens = []
        for step in range(12):
            chunks = [
                Chunk(r, 0 if step == 0 else r.num_tokens - 1, r.num_tokens if step == 0 else 1)
                for r in (*requests[1 : 1 + mates], requests[0])
            ]
            samples = runner.execute(StepPlan(index=step, chunks=chunks))
            for r in requests[: 1 + mates]:
                r.tokens.append(samples[r.id].token)
            tokens.append(samples["r0"].token)
        return tokens

    alone = drawn(0)
    assert alone == drawn(2)
    assert len(set(alone)) > 6


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_damaged_key_gives_a_sample_that_is_not_finite(runner, value):
    damaged, healthy = requests_of(10, 10)
    runner.compute([Chunk(damaged, 0, 9), Chunk(healthy, 0, 9)], step=0)
    runner.kv.data[0, damaged.slot(4, BLOCK), 0] = value
    samples = runner.execute(StepPlan(index=1, chunks=[Chunk(damaged, 9, 1), Chunk(healthy, 9, 1)]))
    assert not samples["r0"].finite
    assert samples["r0"].digest is not None
    assert samples["r1"].finite


def test_a_changed_thread_count_is_refused(runner):
    before = torch.get_num_threads()
    (request,) = requests_of(4)
    torch.set_num_threads(before + 1)
    try:
        with pytest.raises(ReplayError, match="threads"):
            runner.execute(StepPlan(index=0, chunks=[Chunk(request, 0, 4)]))
    finally:
        torch.set_num_threads(before)


def test_min_tokens_suppresses_the_models_own_eos(model):
    runner = ModelRunner(model, model.kv_store(num_blocks=20, block_size=BLOCK))
    (request,) = requests_of(4)
    bias = ((model.eos_token_ids[0], 100.0),)
    plan = StepPlan(index=0, chunks=[Chunk(request, 0, 4)])
    request.sampling = SamplingParams(temperature=0.0, logit_bias=bias)
    assert runner.execute(plan)["r0"].token == model.eos_token_ids[0]
    request.sampling = SamplingParams(temperature=0.0, logit_bias=bias, min_tokens=1)
    assert runner.execute(plan)["r0"].token != model.eos_token_ids[0]
