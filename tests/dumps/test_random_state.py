"""A generator's state as bytes: continues the same, and what is no state is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.random_state import SIZE, TwisterState


@given(seed=st.integers(0, 2**64), drawn=st.integers(0, 700), deviate=st.booleans())
def test_random_goes_on_as_it_would_have(seed: int, drawn: int, deviate: bool) -> None:
    generator = random.Random(seed)
    for _ in range(drawn):
        generator.getrandbits(32)
    if deviate:
        generator.gauss(0, 1)
    state = TwisterState.of_random(generator.getstate())
    again = random.Random()
    again.setstate(TwisterState.from_bytes(state.to_bytes()).for_random())
    assert again.getstate() == generator.getstate()
    assert [again.gauss(0, 1) for _ in range(3)] == [generator.gauss(0, 1) for _ in range(3)]


@given(seed=st.integers(0, 2**32 - 1), drawn=st.integers(0, 700))
def test_numpy_goes_on_as_it_would_have(seed: int, drawn: int) -> None:
    generator = np.random.RandomState(seed)
    generator.standard_normal(drawn)
    state = TwisterState.of_numpy(generator.get_state(legacy=False))
    again = np.random.RandomState()
    again.set_state(TwisterState.from_bytes(state.to_bytes()).for_numpy())
    assert again.standard_normal(5).tolist() == generator.standard_normal(5).tolist()


def test_what_is_no_state_is_refused() -> None:
    good = TwisterState.of_random(random.Random(1).getstate()).to_bytes()
    assert len(good) == SIZE
    with pytest.raises(ValueError, match="has 2512 bytes, this has 2511"):
        TwisterState.from_bytes(good[:-1])
    with pytest.raises(ValueError, match="position 625"):
        TwisterState.from_bytes(good[:2496] + (625).to_bytes(4, "little") + good[2500:])
    with pytest.raises(ValueError, match="flag 2"):
        TwisterState.from_bytes(good[:2500] + (2).to_bytes(4, "little") + good[2504:])
    with pytest.raises(ValueError, match="version 9"):
        TwisterState.of_random((9, (), None))
    with pytest.raises(ValueError, match="PCG64"):
        TwisterState.of_numpy({"bit_generator": "PCG64"})
