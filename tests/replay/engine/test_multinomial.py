"""The quirk multinomial: draws like ours where float16 holds, and fails like the real thing where it does not."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from replay.engine.failure import NonFinitePlace, blamed
from replay.engine.multinomial import draw
from replay.engine.request import Request, SamplingParams


def drawn(row, position=3, **sampling) -> int:
    one = Request(id="r", tokens=[1, 2, 3], num_prompt=3, sampling=SamplingParams(**sampling))
    return draw(np.asarray(row, dtype=np.float32), one, position=position)


ROW = [0.0, 1.0, 2.0, 3.0, -np.inf]


def test_greedy_takes_the_maximum():
    assert drawn(ROW, temperature=0.0) == 3


def test_a_draw_depends_on_seed_and_position_alone():
    assert len({drawn(ROW, position=3, seed=5) for _ in range(5)}) == 1
    assert len({drawn(ROW, position=place, seed=5) for place in range(40)}) > 1
    assert len({drawn(ROW, position=3, seed=seed) for seed in range(40)}) > 1


def test_tokens_come_as_often_as_their_probability_says():
    counts = Counter(drawn(ROW, position=place) for place in range(2000))
    weights = np.exp(ROW)
    for token, share in enumerate(weights / weights.sum()):
        assert abs(counts[token] / 2000 - share) < 0.04


@pytest.mark.parametrize(
    ("cut", "kept"), [({"top_k": 2}, {2, 3}), ({"top_p": 0.8}, {2, 3}), ({"min_p": 0.2}, {2, 3}), ({"top_k": 1}, {3})]
)
def test_cuts_leave_the_best(cut, kept):
    assert {drawn(ROW, position=place, temperature=1.0, **cut) for place in range(200)} == kept


def test_a_tiny_temperature_overflows_float16_and_torch_raises_with_request_and_stage():
    with pytest.raises(RuntimeError, match="probability tensor contains either `inf`, `nan` or element < 0") as caught:
        drawn([0.0, 9.0, 8.0], temperature=1e-4)
    evidence = blamed(caught.value)
    assert evidence is not None
    assert (evidence.request_id, evidence.position) == ("r", 3)
    assert evidence.non_finite == NonFinitePlace(where="temperature")
    assert drawn([0.0, 6.0, 5.0], temperature=1e-4) == 1  # 60,000 is below the largest float16
