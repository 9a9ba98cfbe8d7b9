"""The header of a safetensors file, read by hand: names, dtypes, shapes and offsets, with every number checked.

Format: https://github.com/huggingface/safetensors#format. The library would read it too, but it wants torch or numpy
dtypes for the tensors, and fingerprints need only their bytes.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from replay import strict_json
from replay.errors import ModelUnavailable, UnsupportedModel

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
MAX_TENSORS = 1_000_000
MAX_DIMENSIONS = 16
MAX_ELEMENTS = 2**48

# Bits, since two formats pack values of 4 and 6 bits.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor; ``start`` and ``end`` are byte offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> list[Tensor]:
    """All tensors in order of offset. They fill the file from the header to its end without gap or overlap.

    Raises `ModelUnavailable` for a damaged or unreadable file, `UnsupportedModel` for a dtype not known here.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                _damaged(path, f"it has {size} bytes, fewer than the 8 of its length field")
            (length,) = struct.unpack("<Q", prefix)
            if length > min(MAX_HEADER_BYTES, size - 8):
                _damaged(path, f"it claims a header of {length} bytes in a file of {size}")
            raw = file.read(length)
    except OSError as error:
        raise ModelUnavailable(f"{path}: {error.strerror}", remedy="Check that the file can be read.") from error
    return _tensors(path, _parse(path, raw), data_start=8 + length, size=size)


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        header = strict_json.loads(raw)
    except strict_json.InvalidJson as error:
        _damaged(path, f"its header cannot be read: {error}")
    if not isinstance(header, dict):
        _damaged(path, "its header is not a JSON object")
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        _damaged(path, f"its header lists {len(header)} tensors, more than {MAX_TENSORS}")
    return header


def _tensors(path: Path, header: dict[str, Any], *, data_start: int, size: int) -> list[Tensor]:
    tensors = [_tensor(path, name, entry, data_start) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.end))
    position = data_start
    for tensor in tensors:
        if tensor.start != position:
            _damaged(path, f"tensor {tensor.name!r} starts at byte {tensor.start}, expected {position}")
        position = tensor.end
    if position != size:
        _damaged(path, f"its tensors end at byte {position}, the file at {size}")
    return tensors


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> Tensor:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, end]} if len(
            shape
        ) <= MAX_DIMENSIONS and all(_is_count(n) for n in (*shape, start, end)):
            pass
        case _:
            _damaged(path, f"the entry of tensor {name!r} is malformed")
    if dtype not in DTYPE_BITS:
        raise UnsupportedModel(f"{path}: tensor {name!r} has dtype {dtype!r}, which is not supported")
    elements = math.prod(shape)
    if elements > MAX_ELEMENTS or end - start != -(-elements * DTYPE_BITS[dtype] // 8):
        _damaged(path, f"tensor {name!r} of shape {shape} in {dtype} cannot take {end - start} bytes")
    return Tensor(name=name, dtype=dtype, shape=tuple(shape), start=data_start + start, end=data_start + end)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _damaged(path: Path, reason: str) -> NoReturn:
    raise ModelUnavailable(f"{path} is damaged: {reason}", remedy="Fetch the weights again.")
