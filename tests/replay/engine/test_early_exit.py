"""Early exit without a model: confidence of hand-made rows, what ends an answer, and which decisions are traced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from replay.engine import early_exit
from replay.engine.early_exit import FallbackReason
from replay.engine.engine import Engine
from replay.engine.live import LiveScheduler
from replay.engine.request import FinishCause, FinishReason, InternalFlags, Request, SamplingParams
from replay.engine.schedule import Confidence, EngineConfig, Sample, StepPlan

CONFIG = EngineConfig(num_blocks=16, block_size=4, max_model_len=32)


class Scripted:
    """Draws token 7 at the confidences given, one for each token of an answer."""

    def __init__(self, confidences: Sequence[float], token: int = 7) -> None:
        self._confidences = confidences
        self._token = token

    def execute(self, plan: StepPlan) -> dict[str, Sample]:
        return {chunk.request.id: self._sample(chunk.request) for chunk in plan.chunks if chunk.samples}

    def _sample(self, request: Request) -> Sample:
        seen = Confidence(((self._token, self._confidences[request.num_output]),))
        return Sample(self._token, confidence=seen, early_exit=early_exit.reached(request.flags, seen))


def answer(
    confidences: Sequence[float], flags: InternalFlags, *, eos: int = 99, **sampling
) -> tuple[Request, list[tuple[int, float, str]]]:
    """The request after its end, and (position, confidence, reason) of each traced decision."""
    engine = Engine(scheduler=LiveScheduler(CONFIG, eos_token_ids=(eos,)), executor=Scripted(confidences))
    request = Request(
        id="r", tokens=[1, 2, 3], num_prompt=3, flags=flags, sampling=SamplingParams(**({"max_tokens": 5} | sampling))
    )
    engine.add(request)
    traced = []
    while engine.has_work:
        outcome = engine.step()
        assert outcome is not None
        traced += [(f.position, f.confidence.top, f.reason.value) for f in outcome.fallbacks]
        assert all((f.step, f.token, f.request) == (outcome.plan.index, 7, request) for f in outcome.fallbacks)
    return request, traced


def test_the_confidence_of_a_row_is_its_softmax():
    row = np.log(np.array([0.1, 0.05, 0.5, 0.2, 0.025, 0.125], dtype=np.float32)) + np.float32(3.0)
    seen = early_exit.confidence(row)
    assert [token for token, _ in seen.candidates] == [2, 3, 5, 0, 1]
    assert seen.top == pytest.approx(0.5, rel=1e-6)
    assert [p for _, p in seen.candidates] == pytest.approx([0.5, 0.2, 0.125, 0.1, 0.05], rel=1e-6)


def test_ties_go_to_the_lower_id_and_masked_ids_are_no_candidates():
    assert early_exit.confidence(np.zeros(8, dtype=np.float32)).candidates == tuple((i, 0.125) for i in range(5))
    masked = np.array([-np.inf, 1.0, -np.inf, 1.0], dtype=np.float32)
    assert early_exit.confidence(masked).candidates == ((1, 0.5), (3, 0.5))
    nothing = early_exit.confidence(np.full(4, -np.inf, dtype=np.float32))
    assert (nothing.candidates, nothing.top) == ((), 0.0)


@given(hnp.arrays(np.float32, st.integers(1, 400), elements=st.floats(-100, 100, width=32)))
def test_the_confidence_is_that_of_numpy_at_float64(row):
    seen = early_exit.confidence(row)
    exact = np.exp(row.astype(np.float64) - float(row.max()))
    exact /= math.fsum(exact)
    assert seen.top == pytest.approx(float(exact.max()), rel=1e-12)
    assert seen.candidates[0][0] == int(row.argmax())
    assert 0.0 < seen.top <= 1.0
    order = [(-float(row[token]), token) for token, _ in seen.candidates]
    assert order == sorted(order)
    assert min(row[token] for token, _ in seen.candidates) >= np.sort(row)[-early_exit.CANDIDATES :][0]


def test_an_answer_ends_with_the_token_that_reaches_the_threshold():
    request, traced = answer([0.1, 0.79, 0.8, 0.9], InternalFlags(early_exit=0.8, fallback_trace=True))
    assert request.output == [7, 7, 7]
    assert (request.finish_reason, request.finish_cause) == (FinishReason.STOP, FinishCause.EARLY_EXIT)
    assert traced == [(3, 0.1, "below-threshold"), (4, 0.79, "below-threshold")]


def test_min_tokens_come_first():
    flags = InternalFlags(early_exit=0.5, fallback_trace=True)
    request, traced = answer([0.9, 0.2, 0.9], flags, min_tokens=3)
    assert (request.num_output, request.finish_cause) == (3, FinishCause.EARLY_EXIT)
    assert traced == [(3, 0.9, "min-tokens"), (4, 0.2, "below-threshold")]


def test_a_trace_without_a_threshold_shows_what_one_would_have_done():
    request, traced = answer([0.9, 1.0, 0.3], InternalFlags(fallback_trace=True), max_tokens=3)
    assert request.finish_cause is FinishCause.MAX_TOKENS
    assert traced == [(3, 0.9, "no-threshold"), (4, 1.0, "no-threshold")]


def test_without_the_trace_nothing_is_traced():
    request, traced = answer([0.1, 0.9], InternalFlags(early_exit=0.8))
    assert (request.finish_cause, traced) == (FinishCause.EARLY_EXIT, [])


@pytest.mark.parametrize(
    ("sampling", "eos", "cause"),
    [
        ({}, 7, FinishCause.EOS),
        ({"stop_token_ids": (7,)}, 99, FinishCause.STOP_TOKEN),
        ({"max_tokens": 1}, 99, FinishCause.EARLY_EXIT),
    ],
)
def test_what_a_client_asked_for_explains_an_end_before_the_confidence_does(sampling, eos, cause):
    request, traced = answer([1.0], InternalFlags(early_exit=0.5, fallback_trace=True), eos=eos, **sampling)
    assert (request.num_output, request.finish_cause, traced) == (1, cause, [])


def test_a_sample_that_is_not_finite_decides_nothing():
    request = Request(id="r", tokens=[1], num_prompt=1, flags=InternalFlags(fallback_trace=True))
    sample = Sample(-1, finite=False)
    assert early_exit.fallback(request, step=0, position=1, sample=sample) is None


def test_reasons_are_those_of_the_flags():
    request = Request(id="r", tokens=[1], num_prompt=1, flags=InternalFlags(early_exit=0.5, fallback_trace=True))
    sample = Sample(7, confidence=Confidence(((7, 0.4),)))
    made = early_exit.fallback(request, step=3, position=1, sample=sample)
    assert made is not None
    assert (made.reason, made.step, made.position, made.token) == (FallbackReason.BELOW_THRESHOLD, 3, 1, 7)
    request.flags = replace(request.flags, fallback_trace=False)
    assert early_exit.fallback(request, step=3, position=1, sample=sample) is None


@given(st.floats(0.001, 0.999), st.floats(-3, 3))
def test_rounding_explains_what_it_can_move_across_the_threshold(confidence, moved):
    """Two tokens: moving their difference by ``moved`` moves the odds by e^moved."""
    odds = confidence / (1 - confidence) * math.exp(moved)
    threshold = odds / (1 + odds)
    seen = Confidence(((0, confidence),))
    assert early_exit.explained(seen, threshold, abs(moved) + 1e-6)
    assert not early_exit.explained(seen, threshold, abs(moved) - 1e-6)


def test_certainty_has_finite_odds():
    assert early_exit.explained(Confidence(((0, 1.0),)), 1.0, 0.0)
    assert not early_exit.explained(Confidence(((0, 0.5),)), 1.0, 2.5)
