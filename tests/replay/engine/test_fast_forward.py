"""Fast-forward gives what single steps gave, and finds where a non-finite value begins."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest

from replay.engine.fast_forward import fast_forward
from replay.engine.request import Request, SamplingParams
from replay.engine.runner import ModelRunner
from replay.engine.schedule import Chunk, StepPlan
from replay.engine.weights import load_model
from tests.mixing import make_request, random_tokens
from tests.tiny import make_tiny_model

BLOCK, PROMPT, LENGTH = 8, 11, 90


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request, tmp_path_factory):
    return load_model(make_tiny_model(tmp_path_factory.mktemp("tiny")), dtype=request.param)


def new_runner(model) -> ModelRunner:
    return ModelRunner(model, model.kv_store(num_blocks=16, block_size=BLOCK), digests=True)


@pytest.fixture
def lived(model) -> tuple[Request, ModelRunner, list[int | None]]:
    """A request decoded step by step, its runner, and the digests on the way."""
    runner = new_runner(model)
    request = make_request(random_tokens(PROMPT, model.vocab_size, seed=2), range(12))
    request.sampling = SamplingParams(temperature=0.7, seed=5, repetition_penalty=1.1, frequency_penalty=0.2)
    digests = []
    for step in range(LENGTH - PROMPT):
        chunk = Chunk(request, 0, PROMPT) if step == 0 else Chunk(request, request.num_tokens - 1, 1)
        sample = runner.execute(StepPlan(index=step, chunks=[chunk]))["r"]
        request.tokens.append(sample.token)
        digests.append(sample.digest)
    return request, runner, digests


def again(request: Request) -> Request:
    """The same tokens, as known from a dump, at other blocks."""
    copy = make_request(request.tokens, range(3, 15)[::-1], num_prompt=PROMPT)
    copy.sampling = request.sampling
    return copy


@pytest.mark.parametrize("chunk", [7, 32, 256])
def test_cache_tokens_and_digests_are_those_of_single_steps(model, lived, chunk):
    request, lived_runner, digests = lived
    runner, copy = new_runner(model), again(request)
    seen = []
    checks = fast_forward(
        runner, copy, LENGTH - 1, check_from=0, chunk=chunk, on_progress=lambda done, total: seen.append((done, total))
    )
    assert [check.position for check in checks] == list(range(PROMPT, LENGTH))
    assert all(check.agrees for check in checks)
    assert [check.sample.digest for check in checks] == digests
    used = (LENGTH - 1) // BLOCK
    ours, theirs = runner.kv.read_blocks(copy.blocks[:used]), lived_runner.kv.read_blocks(request.blocks[:used])
    assert ours.tobytes() == theirs.tobytes()
    assert seen[-1] == (LENGTH - 1, LENGTH - 1)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert (copy.num_computed, copy.num_tokens) == (0, LENGTH)


def test_only_what_is_asked_for_is_checked(model, lived):
    copy = again(lived[0])
    assert fast_forward(new_runner(model), copy, 50) == []
    checks = fast_forward(new_runner(model), copy, 50, check_from=40, chunk=16)
    assert [check.position for check in checks] == list(range(40, 51))
    whole = fast_forward(new_runner(model), copy, LENGTH, check_from=LENGTH - 2)
    assert [check.position for check in whole] == [LENGTH - 2, LENGTH - 1]


def test_an_altered_token_disagrees_there_first(model, lived):
    copy = again(lived[0])
    copy.tokens[60] = (copy.tokens[60] + 1) % 320
    checks = fast_forward(new_runner(model), copy, LENGTH - 1, check_from=0)
    wrong = [check.position for check in checks if not check.agrees]
    assert wrong[0] == 60
    first = next(check for check in checks if not check.agrees)
    assert first.recorded == copy.tokens[60]
    assert first.sample.gap is not None
    assert first.sample.token == lived[0].tokens[60]


def test_it_goes_on_from_what_is_there(model, lived):
    request = lived[0]
    runner, copy = new_runner(model), again(request)
    fast_forward(runner, copy, 33)
    checks = fast_forward(runner, copy, LENGTH - 1, start=33, check_from=0)
    assert [check.position for check in checks] == list(range(34, LENGTH))
    assert all(check.agrees for check in checks)


def test_slots_are_stamped_with_the_recorded_steps(model, lived):
    runner, copy = new_runner(model), again(lived[0])
    steps = [0] * PROMPT + list(range(1, LENGTH))
    fast_forward(runner, copy, 40, written_by=steps)
    slots = runner.kv.slots_of(copy.blocks, 0, 40)
    assert runner.kv.written_step[slots].tolist() == steps[:40]
    assert runner.kv.position[slots].tolist() == list(range(40))


@contextmanager
def overflowing(runner: ModelRunner, token: int):
    """The model's embedding of one token is infinite meanwhile."""
    weight = runner.model.model.embed_tokens.weight.data
    before = weight[token].clone()
    weight[token] = float("inf")
    yield
    weight[token] = before


def test_a_non_finite_value_is_reported_where_it_begins(model, lived):
    """Inside a chunk the NaN also reaches earlier rows, so this needs the single steps."""
    runner, copy = new_runner(model), again(lived[0])
    bad = next(token for token in range(320) if token not in copy.tokens)
    copy.tokens[50] = bad
    with overflowing(runner, bad):
        hidden = runner.compute([Chunk(copy, 0, 64)], step=0)
        assert not np.isfinite(runner.logits(hidden, [49])).all(), "a chunk no longer spreads NaN backwards"
        checks = fast_forward(runner, copy, LENGTH - 1, check_from=0, chunk=64)
    finite = [check.position for check in checks if check.sample.finite]
    assert finite == list(range(PROMPT, 51))
    assert [check.position for check in checks] == list(range(PROMPT, LENGTH))


def test_an_exception_in_a_chunk_is_raised_by_the_step_that_causes_it(model, lived):
    runner, copy = new_runner(model), again(lived[0])
    copy.tokens[50] = 320  # outside the vocabulary
    done = []
    with pytest.raises(IndexError):
        fast_forward(runner, copy, LENGTH - 1, on_progress=lambda at, _: done.append(at), chunk=32)
    assert done == [32]
    assert runner.kv.position[runner.kv.slots_of(copy.blocks, 49, 51)].tolist() == [49, -1]


def test_the_search_for_the_first_non_finite_value_halves_the_chunk(model, lived, monkeypatch):
    runner, copy = new_runner(model), again(lived[0])
    bad = next(token for token in range(320) if token not in copy.tokens)
    copy.tokens[50] = bad
    computed = []
    compute = runner.compute

    def counting(chunks, *, step):
        computed.append(chunks[0].num_tokens)
        return compute(chunks, step=step)

    monkeypatch.setattr(runner, "compute", counting)
    with overflowing(runner, bad):
        fast_forward(runner, copy, LENGTH - 1, chunk=64)
    # 50 lies in the second half of the chunk, in its first quarter, and so on down to the token itself.
    assert computed[:2] == [64, 32]
    assert sum(computed) <= 3 * 64 + LENGTH - 64
    assert len(computed) <= 2 * 6 + 2


def test_what_a_failed_chunk_wrote_counts_as_never_written(model, lived, monkeypatch):
    """Its stamps go back to what they were; the step that fails is left with what the steps before it wrote."""
    runner, copy = new_runner(model), again(lived[0])
    slots = runner.kv.slots_of(copy.blocks, 0, 64)
    runner.kv.stamp(slots, step=7, owner="before", first_position=100)
    compute = runner.compute

    def fails_with_token_50(chunks, *, step):
        hidden = compute(chunks, step=step)  # stamps the slots first
        if chunks[0].start <= 50 < chunks[0].start + chunks[0].num_tokens:
            raise RuntimeError("token 50")
        return hidden

    monkeypatch.setattr(runner, "compute", fails_with_token_50)
    with pytest.raises(RuntimeError, match="token 50"):
        fast_forward(runner, copy, LENGTH - 1, chunk=64)
    assert runner.kv.position[slots[:50]].tolist() == list(range(50))
    assert runner.kv.position[slots[51:]].tolist() == list(range(151, 164))
    assert runner.kv.written_step[slots[51:]].tolist() == [7] * 13
    assert {runner.kv.owner[slot] for slot in slots[51:]} == {"before"}


def test_chunks_end_at_multiples_of_their_size(model, lived):
    runner, copy = new_runner(model), again(lived[0])
    done = []
    fast_forward(runner, copy, 10)
    fast_forward(runner, copy, 70, start=10, chunk=32, on_progress=lambda at, _: done.append(at))
    assert done == [22, 54, 60]


def test_digests_are_made_where_they_are_wanted(model, lived):
    digests = lived[2]
    checks = fast_forward(new_runner(model), again(lived[0]), LENGTH - 1, check_from=0, digest_at={20, 70})
    assert [check.position for check in checks if check.sample.digest is not None] == [20, 70]
    assert [check.sample.digest for check in checks if check.sample.digest] == [digests[9], digests[59]]


def test_positions_that_do_not_exist_are_refused(model, lived):
    with pytest.raises(ValueError, match="90 tokens"):
        fast_forward(new_runner(model), again(lived[0]), LENGTH + 1)
