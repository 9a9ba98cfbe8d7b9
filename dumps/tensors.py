"""Integer lists and tensors as plain bytes: little-endian, with dtype and shape beside them, never pickled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from dumps.errors import CorruptDump

NUMPY_DTYPES: dict[str, np.dtype] = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    # numpy has no bfloat16: its bits are kept as they are and the name says what they mean.
    "bfloat16": np.dtype("<u2"),
    "float8_e4m3fn": np.dtype("u1"),
    "float8_e5m2": np.dtype("u1"),
    "int64": np.dtype("<i8"),
    "int32": np.dtype("<i4"),
    "int16": np.dtype("<i2"),
    "int8": np.dtype("i1"),
    "uint64": np.dtype("<u8"),
    "uint32": np.dtype("<u4"),
    "uint16": np.dtype("<u2"),
    "uint8": np.dtype("u1"),
    "bool": np.dtype("u1"),
}
"""dtype name in a dump -> the numpy dtype that holds its bytes."""

LE32 = np.dtype("<i4")
LE32_BYTES = 4


def le32(ids: Iterable[int]) -> bytes:
    """Token ids or block ids as little-endian int32 bytes. Raises OverflowError for one that does not fit."""
    values = ids if isinstance(ids, np.ndarray) else np.array(list(ids), dtype=np.int64)
    narrow = values.astype(LE32)
    if not np.array_equal(narrow, values):
        raise OverflowError("an id does not fit in 32 bits")
    return narrow.tobytes()


def from_le32(data: bytes) -> list[int]:
    """The ids in ``data`` as Python ints. Raises `CorruptDump` when the length is not a multiple of four."""
    if len(data) % 4:
        raise CorruptDump(f"an int32 list of {len(data)} bytes: not a multiple of 4")
    ids: list[int] = np.frombuffer(data, dtype=LE32).tolist()
    return ids


def tensor_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor with this dtype name and shape. Raises `CorruptDump` for a dtype that no dump can hold."""
    if dtype not in NUMPY_DTYPES:
        raise CorruptDump(f"unknown tensor dtype {dtype[:40]!r}; known: {', '.join(NUMPY_DTYPES)}")
    # Python ints: a product of uint64 dimensions must not wrap.
    return math.prod(int(n) for n in shape) * NUMPY_DTYPES[dtype].itemsize


def as_tensor(data: bytes | memoryview, dtype: str, shape: Sequence[int]) -> npt.NDArray[np.generic]:
    """View ``data`` as a read-only array of ``shape``. bfloat16 comes as uint16, bool and float8 as uint8.

    Raises `CorruptDump` when bytes, dtype and shape do not agree.
    """
    wanted = tensor_bytes(dtype, shape)
    if wanted != len(data):
        raise CorruptDump(f"{dtype} tensor {list(shape)} takes {wanted} bytes, there are {len(data)}")
    try:
        return np.frombuffer(data, dtype=NUMPY_DTYPES[dtype]).reshape([int(n) for n in shape])
    except (ValueError, OverflowError):  # beside a dimension of 0 the others can be of any size
        raise CorruptDump(f"no array can have the shape {list(shape)}") from None
