"""int8 codes and scales: how far off a value can be, what does not depend on neighbours, what is measured."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from replay.engine.quantise import LEVELS, Distortion, dequantise, quantise

WIDTH = 8
DTYPES = (torch.float32, torch.bfloat16)

vectors = arrays(
    np.float32,
    st.tuples(st.integers(1, 20), st.just(WIDTH)),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


def read_back(values: torch.Tensor) -> torch.Tensor:
    codes, scales = quantise(values)
    out = torch.empty_like(values)
    dequantise(codes, scales, out)
    return out


@given(vectors, st.sampled_from(DTYPES))
def test_a_value_is_off_by_at_most_half_a_scale_and_its_rounding(numbers, dtype):
    values = torch.from_numpy(numbers).to(dtype)
    largest = values.double().abs().amax(dim=1, keepdim=True)
    rounding = {torch.float32: 2.0**-22, torch.bfloat16: 2.0**-8}[dtype] * largest + 1e-38
    error = (values.double() - read_back(values).double()).abs()
    assert (error <= largest / 254 + rounding).all()


@given(vectors, st.data())
def test_a_vector_does_not_depend_on_its_neighbours(numbers, data):
    values = torch.from_numpy(numbers)
    codes, scales = quantise(values)
    row = data.draw(st.integers(0, len(numbers) - 1))
    alone, scale = quantise(values[row : row + 1].clone())
    assert torch.equal(alone[0], codes[row])
    assert scale.view(torch.int32)[0] == scales.view(torch.int32)[row]


def test_the_largest_magnitude_gets_the_largest_code_whatever_its_sign():
    codes, scales = quantise(torch.tensor([[0.5, -2.54, 0.0, 1.0], [2.54, -0.5, 0.02, 0.0]]))
    assert codes.tolist() == [[25, -LEVELS, 0, 50], [LEVELS, -25, 1, 0]]
    assert scales.tolist() == pytest.approx([0.02, 0.02])


@pytest.mark.parametrize("tiny", [0.0, 1e-45])
def test_a_scale_of_zero_reads_as_zeros(tiny):
    codes, scales = quantise(torch.full((1, WIDTH), tiny))
    assert (scales.tolist(), codes.abs().max()) == ([0.0], 0)
    assert read_back(torch.full((1, WIDTH), tiny)).tolist() == [[0.0] * WIDTH]


@pytest.mark.parametrize("damage", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_damage_stays_visible_and_in_its_vector(damage, dtype):
    values = torch.ones((3, WIDTH), dtype=dtype)
    values[1, 5] = damage
    codes, scales = quantise(values)
    assert torch.isfinite(scales).tolist() == [True, False, True]
    assert not codes[1].any()
    assert torch.isnan(read_back(values)).all(dim=1).tolist() == [False, True, False]


def test_distortion_is_that_of_what_was_written():
    values = torch.zeros((2, 2, 1, 4))
    values[0, 0, 0] = torch.tensor([127.0, 0.4, 0.0, 0.0])  # 0.4 is read as 0
    values[1, 0, 0] = torch.tensor([127.0, 3.0, -5.0, 0.0])  # exact
    values[0, 1, 0] = torch.tensor([math.nan, 1.0, 1.0, 1.0])
    measured = Distortion(2)
    measured.add(1, values, *quantise(values))
    assert (measured.vectors, measured.non_finite) == (4, 1)
    key, value = measured.layers()[2:]
    assert (key.layer, key.tensor, value.tensor) == (1, "key", "value")
    assert key.largest == pytest.approx(0.4 / 127)
    assert key.rms == pytest.approx(0.4 / math.sqrt(2 * 127**2 + 0.4**2 + 3**2 + 5**2))
    assert (value.largest, value.rms) == (0.0, 0.0)
    assert [layer.largest for layer in measured.layers()[:2]] == [0.0, 0.0]


def test_distortion_counts_the_rounding_to_the_dtype_that_is_read():
    values = torch.full((1, 2, 1, 4), 0.3, dtype=torch.bfloat16)
    measured = Distortion(1)
    measured.add(0, values, *quantise(values))
    read = read_back(values[0, 0])
    expected = float((read.double() - values[0, 0].double()).abs().max()) / float(values[0, 0, 0, 0])
    assert measured.layers()[0].largest == pytest.approx(expected, rel=1e-6)
