"""The sampler against plain definitions of each of its parts."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from replay.engine import sampler
from replay.engine.request import SamplingParams

VOCAB = 40
ROWS = hnp.arrays(np.float32, VOCAB, elements=st.floats(-30, 30, width=32))
# Few distinct values, so that ties are common.
TIED_ROWS = hnp.arrays(np.float32, VOCAB, elements=st.sampled_from([-2.0, 0.0, 0.5, 3.0]))
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=30)


def draw(row, sampling, *, prompt=(), output=(), sample_index=0, position=7, eos=()):
    return sampler.draw(
        row,
        sampling,
        prompt=prompt,
        output=output,
        sample_index=sample_index,
        position=position,
        eos_token_ids=eos,
    )


def reference_kept(row, sampling):
    """temperature, min_p, top_k, top_p by their definitions, one token at a time, ties to the lower id."""
    top = max(float(x) for x in row)
    scores = [(float(x) - top) / sampling.temperature for x in row]
    ids = list(range(len(scores)))
    if sampling.min_p:
        ids = [i for i in ids if math.exp(scores[i]) >= sampling.min_p * (1 - 1e-12)]
    ids.sort(key=lambda i: (-scores[i], i))
    if sampling.top_k:
        ids = ids[: sampling.top_k]
    if sampling.top_p < 1:
        total = math.fsum(math.exp(scores[i]) for i in ids)
        before, nucleus = 0.0, []
        for i in ids:
            if before / total < sampling.top_p:
                nucleus.append(i)
            before += math.exp(scores[i])
        ids = nucleus
    return set(ids), scores


@given(
    st.one_of(ROWS, TIED_ROWS),
    st.floats(0.05, 2.0),
    st.integers(0, VOCAB + 5),
    st.floats(0.01, 1.0),
    st.sampled_from([0.0, 0.03, 0.3, 0.9]),
)
def test_kept_tokens_are_those_of_the_definitions(row, temperature, top_k, top_p, min_p):
    sampling = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected, scores = reference_kept(row, sampling)
    ids, kept_scores = sampler.kept(row, sampling)
    difference = expected.symmetric_difference(ids.tolist())
    # Sums in another order may move the nucleus' border by one token whose cumulative mass meets top_p to rounding.
    assert len(difference) <= 1
    if difference:
        ranked = sorted(range(VOCAB), key=lambda i: (-scores[i], i))
        ranked = [i for i in ranked if i in expected or i in difference]
        mass = np.cumsum([math.exp(scores[i]) for i in ranked])
        everything, _ = reference_kept(row, replace(sampling, top_p=1.0))
        total = math.fsum(math.exp(scores[i]) for i in everything)
        assert np.abs(mass / total - top_p).min() < 1e-9
    assert kept_scores == pytest.approx([scores[i] for i in ids])


@given(
    ROWS,
    TOKENS,
    TOKENS,
    st.floats(0.5, 2.0, width=32),
    st.floats(-2, 2, width=32),
    st.floats(-2, 2, width=32),
    st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=32), max_size=4),
    st.integers(0, 12),
)
def test_adjusted_logits_are_those_of_the_definitions(
    row, prompt, output, repetition, presence, frequency, bias, min_tokens
):
    sampling = SamplingParams(
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=tuple(bias.items()),
        min_tokens=min_tokens,
        stop_token_ids=(5,),
    )
    before = row.copy()
    result = sampler.adjusted(row, sampling, prompt=prompt, output=output, eos_token_ids=(2, 3))
    assert np.array_equal(row, before)
    for token in range(VOCAB):
        value = float(row[token])
        if len(output) < min_tokens and token in (2, 3, 5):
            value = -math.inf
        value += bias.get(token, 0.0)
        if token in prompt or token in output:
            value = value / repetition if value > 0 else value * repetition
        value -= frequency * output.count(token)
        value -= presence * (token in output)
        assert float(result[token]) == pytest.approx(value, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("penalty", [5e-324, 1e-46, 1e-38, 1e38, 1e39, 1e300])
def test_no_penalty_that_a_dump_can_hold_makes_a_row_that_cannot_be_drawn_from(penalty):
    row = np.array([3e38, 1.0, 0.0, -1.0, -3e38], dtype=np.float32)
    sampling = SamplingParams(repetition_penalty=penalty, min_tokens=1, stop_token_ids=(1,), top_p=0.9)
    prompt = list(range(row.size))
    adjusted = sampler.adjusted(row, sampling, prompt=prompt, output=[])
    assert sampler.is_finite(adjusted)
    assert not np.isnan(adjusted).any()
    assert draw(row, sampling, prompt=prompt) in prompt


@given(st.one_of(ROWS, TIED_ROWS))
def test_temperature_zero_takes_the_maximum_and_the_lowest_id_at_a_tie(row):
    token = draw(row, SamplingParams(temperature=0.0, top_p=0.5, top_k=3, seed=9))
    assert token == row.tolist().index(max(row.tolist()))


@given(st.one_of(ROWS, TIED_ROWS), st.integers(0, 2**64 - 1))
def test_limits_that_leave_one_token_are_greedy(row, seed):
    greedy = draw(row, SamplingParams(temperature=0.0))
    for sampling in (SamplingParams(top_k=1), SamplingParams(top_p=1e-9), SamplingParams(temperature=1e-300)):
        token = draw(row, replace(sampling, seed=seed))
        assert row[token] == row[greedy]
    assert draw(row, SamplingParams(top_k=1, seed=seed)) == greedy


@given(ROWS, st.integers(0, 2**64 - 1), st.sampled_from([1e-4, 0.3, 1.0, 2.0]))
def test_limits_that_leave_everything_change_nothing(row, seed, temperature):
    plain = draw(row, SamplingParams(temperature=temperature, seed=seed))
    assert plain == draw(row, SamplingParams(temperature=temperature, seed=seed, top_k=VOCAB + 100, top_p=1.0))


@given(ROWS, st.integers(0, 2**64 - 1), st.integers(0, VOCAB - 1))
def test_a_bias_of_100_forces_and_of_minus_100_forbids(row, seed, token):
    assert draw(row, SamplingParams(logit_bias=((token, 100.0),), seed=seed)) == token
    assert draw(row, SamplingParams(logit_bias=((token, -100.0),), seed=seed)) != token


@given(ROWS, st.integers(0, 2**32), st.integers(1, VOCAB))
def test_a_token_drawn_from_more_choices_is_kept_by_a_smaller_set_that_holds_it(row, seed, top_k):
    """The noise belongs to the token, so a narrower limit changes the draw only if it cuts that token off."""
    token = draw(row, SamplingParams(seed=seed))
    ids, _ = sampler.kept(row, SamplingParams(top_k=top_k))
    narrowed = draw(row, SamplingParams(top_k=top_k, seed=seed))
    assert narrowed == token if token in ids else narrowed in ids


def test_nucleus_of_a_large_vocabulary_equals_a_full_sort():
    generator = np.random.Generator(np.random.PCG64(5))
    for scale in (0.01, 1.0, 4.0):
        row = (generator.standard_normal(20_000) * scale).astype(np.float32)
        for top_p in (0.1, 0.5, 0.95):
            ids, scores = sampler.kept(row, SamplingParams(top_p=top_p))
            order = np.argsort(-row, kind="stable")
            mass = np.cumsum(np.exp(row[order].astype(np.float64) - float(row.max())))
            expected = order[: int(np.searchsorted(mass / mass[-1], top_p)) + 1]
            assert abs(len(ids) - len(expected)) <= 1
            assert ids[: len(expected) - 1].tolist() == expected[:-1].tolist()
            assert np.all(np.diff(scores) <= 0)


def test_draws_follow_the_distribution():
    """Chi-square over 20,000 positions with 15 degrees of freedom: 37.7 is exceeded once in a thousand."""
    row = np.linspace(-1.5, 1.5, 16, dtype=np.float32)
    sampling = SamplingParams(temperature=0.8, seed=1234)
    drawn = [draw(row, sampling, position=position) for position in range(20_000)]
    weights = np.exp(row / 0.8)
    expected = weights / weights.sum() * len(drawn)
    observed = np.bincount(drawn, minlength=16)
    assert float(((observed - expected) ** 2 / expected).sum()) < 37.7


def test_seed_choice_and_position_each_change_the_noise():
    row = np.zeros(1000, dtype=np.float32)
    tokens = {
        draw(row, SamplingParams(seed=seed), sample_index=index, position=position)
        for seed in range(3)
        for index in range(3)
        for position in range(3)
    }
    assert len(tokens) > 20


def test_noise_of_one_token_does_not_depend_on_the_size_of_the_vocabulary():
    short = sampler.gumbel_noise(seed=1, sample_index=2, position=3, size=10)
    long = sampler.gumbel_noise(seed=1, sample_index=2, position=3, size=1003)
    assert np.array_equal(short, long[:10])


def test_noise_is_the_one_of_this_release():
    """Changing it makes every dump recorded before unreplayable."""
    noise = sampler.gumbel_noise(seed=2**64 - 1, sample_index=1, position=77, size=3)
    assert noise.tolist() == [8217583603582411812, 11691863754143789230, 15976639574724006372]


def test_threads_draw_the_same():
    generator = np.random.Generator(np.random.PCG64(8))
    rows = generator.standard_normal((64, 500)).astype(np.float32)

    def one(index):
        return draw(rows[index], SamplingParams(seed=index, top_p=0.9), position=index)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(64))) == [one(index) for index in range(64)]


@pytest.mark.parametrize(
    ("values", "finite"),
    [
        ([1.0, 2.0], True),
        ([-np.inf, 2.0], True),
        ([np.nan, 2.0], False),
        ([np.inf, 2.0], False),
        ([np.nan, np.inf], False),
        ([-np.inf, -np.inf], False),
    ],
)
def test_finite_means_that_a_token_can_be_drawn(values, finite):
    assert sampler.is_finite(np.array(values, dtype=np.float32)) is finite


def test_a_tiny_temperature_stays_finite():
    row = np.array([1000.0, 999.0, -1000.0], dtype=np.float32)
    assert draw(row, SamplingParams(temperature=1e-4, top_p=0.9, min_p=0.1)) == 0
    assert draw(row, SamplingParams(temperature=1e-4)) == 0


def test_margin_is_the_distance_of_the_two_best():
    assert sampler.margin(np.array([1.0, 5.0, 3.5], dtype=np.float32)) == 1.5
    assert sampler.margin(np.array([5.0, 5.0], dtype=np.float32)) == 0.0
    assert sampler.margin(np.array([5.0], dtype=np.float32)) == math.inf


@pytest.mark.parametrize("temperature", [0.3, 1.0, 30.0])
def test_only_those_that_can_win_are_compared_and_the_winner_is_that_of_all(temperature):
    """With a vocabulary in which luck is common, so that each of the ways to win is taken."""
    stream = np.random.PCG64(3)
    sampling = SamplingParams(temperature=temperature, seed=11)
    kinds = set()
    for position in range(60):
        row = ((stream.random_raw(20_000) >> np.uint64(40)).astype(np.float32) / np.float32(2**22) - 2) * np.float32(4)
        ids, scores = sampler.kept(row, sampling)
        noise = sampler.gumbel_noise(seed=11, sample_index=0, position=position, size=row.size)
        uniform = ((noise >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        values = scores - np.log(-np.log(uniform))
        winner = int(ids[values == values.max()].min())
        assert draw(row, sampling, position=position) == winner
        kinds.add(bool(noise[winner] >= sampler.LUCKY))
    assert kinds == {False, True} or temperature == 30.0


def test_without_luck_no_token_gains_more_than_stated():
    highest = (int(sampler.LUCKY) - 1 >> 12) + 0.5
    assert -math.log(-math.log(highest * 2.0**-52)) < sampler.MOST_WITHOUT_LUCK
