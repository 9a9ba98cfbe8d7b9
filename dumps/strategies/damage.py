"""Damaged files: what disks, transfers, editors and attackers do to bytes.

`damaged` is a Hypothesis strategy. `damage` does the same with any source of numbers, such as a seeded generator: a
strategy is too slow for as many files as a reader must survive.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from hypothesis import strategies as st

DrawFn = Callable[[st.SearchStrategy[Any]], Any]
Draw = Callable[[int, int], int]
"""An integer between two bounds, both included; the lower one is the simplest."""

Edit = Callable[[bytes, Draw], bytes]

MOST_EDITS = 3
_MOST_FOREIGN = 16
_LONGEST_RANGE = 200


@st.composite
def damaged(draw: DrawFn, data: bytes) -> bytes:
    """``data`` after one to three edits; it can come out as it went in, as damage may cancel out.

    Shrinks to one edit near the start of the file.
    """
    return damage(data, lambda low, high: draw(st.integers(low, high)))


def damage(data: bytes, draw: Draw) -> bytes:
    """``data`` after one to three edits that ``draw`` chooses."""
    edits = [EDITS[draw(0, len(EDITS) - 1)] for _ in range(draw(1, MOST_EDITS))]
    return reduce(lambda current, edit: edit(current, draw) if current else current, edits, data)


def flip_bit(data: bytes, draw: Draw) -> bytes:
    """A bad cell of memory or disk."""
    at = draw(0, len(data) - 1)
    return data[:at] + bytes([data[at] ^ 1 << draw(0, 7)]) + data[at + 1 :]


def set_byte(data: bytes, draw: Draw) -> bytes:
    """Any other value, so that tags and lengths turn into any other."""
    at = draw(0, len(data) - 1)
    return data[:at] + bytes([draw(0, 255)]) + data[at + 1 :]


def cut(data: bytes, draw: Draw) -> bytes:
    """A writer that died, or a copy that stopped."""
    return data[: draw(0, len(data) - 1)]


def cut_out(data: bytes, draw: Draw) -> bytes:
    """A lost packet: bytes are missing in the middle."""
    start, end = _range(data, draw)
    return data[:start] + data[end:]


def splice(data: bytes, draw: Draw) -> bytes:
    """Foreign bytes in the middle."""
    at = draw(0, len(data))
    return data[:at] + _foreign(draw) + data[at:]


def append(data: bytes, draw: Draw) -> bytes:
    """Bytes after the end."""
    return data + _foreign(draw)


def duplicate(data: bytes, draw: Draw) -> bytes:
    """A range written twice, as a retried write does."""
    start, end = _range(data, draw)
    return data[:end] + data[start:end] + data[end:]


def zero(data: bytes, draw: Draw) -> bytes:
    """A hole: blocks that never reached the disk read as zeros."""
    start, end = _range(data, draw)
    return data[:start] + bytes(end - start) + data[end:]


def swap(data: bytes, draw: Draw) -> bytes:
    """Two neighbouring ranges in the wrong order."""
    start, end = _range(data, draw)
    middle = draw(start, end)
    return data[:start] + data[middle:end] + data[start:middle] + data[end:]


EDITS: tuple[Edit, ...] = (flip_bit, set_byte, cut, cut_out, splice, append, duplicate, zero, swap)


def _foreign(draw: Draw) -> bytes:
    return bytes(draw(0, 255) for _ in range(draw(1, _MOST_FOREIGN)))


def _range(data: bytes, draw: Draw) -> tuple[int, int]:
    start = draw(0, len(data) - 1)
    return start, draw(start + 1, min(len(data), start + _LONGEST_RANGE))
