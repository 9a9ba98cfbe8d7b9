"""Hypothesis strategies for damaged files: what disks, transfers, editors and attackers do to bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from hypothesis import strategies as st

DrawFn = Callable[[st.SearchStrategy[Any]], Any]
Edit = Callable[[bytes, DrawFn], bytes]


@st.composite
def damaged(draw: DrawFn, data: bytes) -> bytes:
    """``data`` after one to three edits; it can come out as it went in, as damage may cancel out.

    Shrinks to one edit near the start of the file.
    """
    edits = draw(st.lists(st.sampled_from(EDITS), min_size=1, max_size=3))
    return reduce(lambda current, edit: edit(current, draw) if current else current, edits, data)


def flip_bit(data: bytes, draw: DrawFn) -> bytes:
    """A bad cell of memory or disk."""
    at = draw(st.integers(0, len(data) - 1))
    bit: int = draw(st.integers(0, 7))
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def set_byte(data: bytes, draw: DrawFn) -> bytes:
    """Any other value, so that tags and lengths turn into any other."""
    at = draw(st.integers(0, len(data) - 1))
    return data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]


def cut(data: bytes, draw: DrawFn) -> bytes:
    """A writer that died, or a copy that stopped."""
    length: int = draw(st.integers(0, len(data) - 1))
    return data[:length]


def cut_out(data: bytes, draw: DrawFn) -> bytes:
    """A lost packet: bytes are missing in the middle."""
    start, end = _range(data, draw)
    return data[:start] + data[end:]


def splice(data: bytes, draw: DrawFn) -> bytes:
    """Foreign bytes in the middle."""
    at = draw(st.integers(0, len(data)))
    foreign: bytes = draw(st.binary(min_size=1, max_size=16))
    return data[:at] + foreign + data[at:]


def append(data: bytes, draw: DrawFn) -> bytes:
    """Bytes after the end."""
    foreign: bytes = draw(st.binary(min_size=1, max_size=16))
    return data + foreign


def duplicate(data: bytes, draw: DrawFn) -> bytes:
    """A range written twice, as a retried write does."""
    start, end = _range(data, draw)
    return data[:end] + data[start:end] + data[end:]


def zero(data: bytes, draw: DrawFn) -> bytes:
    """A hole: blocks that never reached the disk read as zeros."""
    start, end = _range(data, draw)
    return data[:start] + bytes(end - start) + data[end:]


def swap(data: bytes, draw: DrawFn) -> bytes:
    """Two neighbouring ranges in the wrong order."""
    start, end = _range(data, draw)
    middle = draw(st.integers(start, end))
    return data[:start] + data[middle:end] + data[start:middle] + data[end:]


EDITS: tuple[Edit, ...] = (flip_bit, set_byte, cut, cut_out, splice, append, duplicate, zero, swap)


def _range(data: bytes, draw: DrawFn) -> tuple[int, int]:
    start = draw(st.integers(0, len(data) - 1))
    return start, draw(st.integers(start + 1, min(len(data), start + 200)))
