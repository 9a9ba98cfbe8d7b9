"""Integer lists and tensors as bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.errors import CorruptDump
from dumps.tensors import NUMPY_DTYPES, as_tensor, from_le32, le32, tensor_bytes


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_ids_come_back(ids):
    assert from_le32(le32(ids)) == ids


def test_ids_are_little_endian_whatever_they_came_in():
    assert le32([1, -1]) == b"\x01\0\0\0\xff\xff\xff\xff"
    assert le32(np.array([1, 2], dtype=">i8")) == le32([1, 2]) == le32(iter([1, 2]))


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_an_id_that_does_not_fit(value):
    with pytest.raises(OverflowError):
        le32([0, value])


def test_half_an_id():
    with pytest.raises(CorruptDump, match="not a multiple of 4"):
        from_le32(b"12345")


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_every_dtype(dtype):
    size = NUMPY_DTYPES[dtype].itemsize
    tensor = as_tensor(bytes(range(6 * size)), dtype, [2, 3])
    assert tensor.shape == (2, 3)
    assert tensor.tobytes() == bytes(range(6 * size))
    assert not tensor.flags.writeable


def test_bfloat16_keeps_its_bits():
    assert as_tensor(b"\x80\x3f", "bfloat16", [1]).tolist() == [0x3F80]


def test_a_product_that_would_wrap():
    assert tensor_bytes("float32", [2**63, 2**63]) == 2**128
    with pytest.raises(CorruptDump, match="takes"):
        as_tensor(b"", "float32", [2**32, 2**32])


@pytest.mark.parametrize("dtype", ["object", "O", "complex64", ""])
def test_dtypes_that_no_dump_holds(dtype):
    with pytest.raises(CorruptDump, match="unknown tensor dtype"):
        as_tensor(b"", dtype, [0])


def test_scalars_and_empty_tensors():
    assert as_tensor(b"\0\0\x80\x3f", "float32", []).item() == 1.0
    assert as_tensor(b"", "float32", [0, 7]).shape == (0, 7)
