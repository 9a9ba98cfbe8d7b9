from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from replay.errors import ModelUnavailable, UnsupportedModel
from replay.models.safetensors_header import MAX_HEADER_BYTES, read_header


def write(path: Path, header: object, data: bytes = b"", *, length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def test_agrees_with_the_library(tmp_path: Path) -> None:
    arrays: dict[str, NDArray[np.generic]] = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.arange(5, dtype=np.uint8),
        "scalar": np.array(7, dtype=np.int64),
        "none": np.zeros((0, 3), dtype=np.float16),
    }
    path = tmp_path / "w.safetensors"
    save_file(arrays, path, metadata={"format": "pt"})
    content = path.read_bytes()
    found = {tensor.name: tensor for tensor in read_header(path)}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        assert content[found[name].start : found[name].end] == array.tobytes()


def entry(**changes: object) -> dict[str, object]:
    return {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    ("header", "data", "says"),
    [
        (b"", b"", "not JSON"),
        (b"[1]", b"", "not a JSON object"),
        (b'{"t": NaN}', b"", "NaN"),
        (b'{"t": 1, "t": 2}', b"", "stands twice"),
        (b"[" * 100_000, b"", "nested"),
        (b'{"t": ' + b"9" * 5000 + b"}", b"", "an integer of"),
        (b"\xff\xfe{", b"", "not UTF-8"),
        (entry(), b"1234567", "end at byte"),
        (entry(), b"123456789", "end at byte"),
        (entry(shape=[3]), b"12345678", "cannot take"),
        (entry(shape=[-2]), b"12345678", "malformed"),
        (entry(shape=[True, 2]), b"12345678", "malformed"),
        (entry(shape=[2.0]), b"12345678", "malformed"),
        (entry(shape=[2**40, 2**40]), b"12345678", "cannot take"),
        (entry(shape=[1] * 17), b"12345678", "malformed"),
        (entry(data_offsets=[8, 0]), b"12345678", "cannot take"),
        (entry(data_offsets=[0]), b"12345678", "malformed"),
        (entry(data_offsets=[8, 16]), b"1234567812345678", "starts at byte"),
        ({"t": 5}, b"", "malformed"),
        (entry() | {"u": entry()["t"]}, b"12345678", "starts at byte"),
    ],
)
def test_damage_is_named(tmp_path: Path, header: object, data: bytes, says: str) -> None:
    path = write(tmp_path / "w.safetensors", header, data)
    with pytest.raises(ModelUnavailable, match=says):
        read_header(path)


def test_unknown_dtype(tmp_path: Path) -> None:
    path = write(tmp_path / "w.safetensors", entry(dtype="F7"), b"12345678")
    with pytest.raises(UnsupportedModel, match="'F7'"):
        read_header(path)


@pytest.mark.parametrize("length", [3, MAX_HEADER_BYTES + 1, 2**63, 2**64 - 1])
def test_length_field_is_checked_before_anything_is_read(tmp_path: Path, length: int) -> None:
    path = write(tmp_path / "w.safetensors", b"{", length=length)
    with pytest.raises(ModelUnavailable, match=f"header of {length} bytes"):
        read_header(path)


def test_a_header_above_the_limit_in_a_file_that_is_large_enough(tmp_path: Path) -> None:
    path = write(tmp_path / "w.safetensors", b"{}", length=MAX_HEADER_BYTES + 1)
    with path.open("r+b") as file:
        file.truncate(MAX_HEADER_BYTES * 2)  # sparse
    with pytest.raises(ModelUnavailable, match="header of"):
        read_header(path)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="No such file"):
        read_header(tmp_path / "absent.safetensors")
    (tmp_path / "empty.safetensors").touch()
    with pytest.raises(ModelUnavailable, match="0 bytes"):
        read_header(tmp_path / "empty.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "w.safetensors"
    save_file({"a": np.arange(4, dtype=np.float32), "b": np.arange(3, dtype=np.int16)}, path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch") / "w.safetensors"


@given(data=st.data())
def test_damaged_bytes_give_our_errors_or_what_the_library_reads(
    whole: bytes, scratch: Path, data: st.DataObject
) -> None:
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    scratch.write_bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    _ours_is_never_laxer(scratch)


@given(raw=st.binary(max_size=200), honest=st.booleans())
def test_any_bytes_give_our_errors_or_what_the_library_reads(scratch: Path, raw: bytes, honest: bool) -> None:
    scratch.write_bytes(struct.pack("<Q", len(raw)) + raw if honest else raw)
    _ours_is_never_laxer(scratch)


def _ours_is_never_laxer(path: Path) -> None:
    try:
        ours = {tensor.name: list(tensor.shape) for tensor in read_header(path)}
    except (ModelUnavailable, UnsupportedModel):
        return
    try:
        with safe_open(path, framework="np") as library:
            theirs = {name: library.get_slice(name).get_shape() for name in library.keys()}  # noqa: SIM118
    except SafetensorError as error:
        pytest.fail(f"the library refuses what we accept: {error}")
    assert ours == theirs
