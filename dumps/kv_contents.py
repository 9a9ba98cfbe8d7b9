"""KV contents in a dump: whether its tensors are what the rest of the dump says, and their blocks part by part."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dumps.errors import InvalidState
from dumps.schema.reader import Dump
from dumps.tensors import from_le32

CONTENTS = "kv-contents"
SCALES = "kv-scales"
"""Kinds of the sections: values in the order of ``kv.contents_blocks``, and the scales of an int8 cache."""

REMEDY = "replay with --kv recompute"


class ContentsPart(NamedTuple):
    """Some blocks: physical ids, values [n, num_layers, 2, block_size, num_kv_heads, head_dim], and of an int8 cache
    the scales, without the last dimension. Read-only, and perhaps views of the mapped file."""

    blocks: list[int]
    values: NDArray[Any]
    scales: NDArray[Any] | None


class RecordedContents:
    """The KV contents that an open dump holds. ``dtype`` is that of the computation, ``quant_bits`` 0 or 8."""

    def __init__(self, dump: Dump) -> None:
        """Raises `InvalidState` when the tensors contradict the dump's own description, or are not all there."""
        kv = dump.state.kv
        self.dtype, self.quant_bits = kv.dtype, kv.quant_bits
        self.blocks = from_le32(kv.contents_blocks)
        self.block_shape = (kv.num_layers, 2, kv.block_size, kv.num_kv_heads, kv.head_dim)
        self._dump = dump
        if len(set(self.blocks)) < len(self.blocks) or not all(0 <= block < kv.num_blocks for block in self.blocks):
            raise _invalid(CONTENTS, f"names a block twice, or one outside 0 to {kv.num_blocks - 1}")
        self._parts = self._checked(CONTENTS, "int8" if kv.quant_bits else kv.dtype, self.block_shape)
        self._scales = self._checked(SCALES, "float32", self.block_shape[:-1]) if kv.quant_bits else ()
        self._first_rows = np.cumsum([0] + [info.shape[0] for info in self._parts])
        self._all_scales: NDArray[Any] | None = None

    @property
    def num_parts(self) -> int:
        return len(self._parts)

    @property
    def num_bytes(self) -> int:
        """Of values and scales, decoded."""
        return sum(info.raw_size for info in (*self._parts, *self._scales))

    def read_scales(self) -> None:
        """Read what all parts of an int8 cache share. Call it before `part`."""
        if self._scales:
            self._all_scales = self._dump.tensor(SCALES)

    def part(self, index: int) -> ContentsPart:
        """One part, verified. Different parts may be read by several threads. Raises `CorruptDump`."""
        rows = slice(int(self._first_rows[index]), int(self._first_rows[index + 1]))
        values = self._dump.tensor_part(self._parts[index])
        scales = None if self._all_scales is None else self._all_scales[rows]
        return ContentsPart(self.blocks[rows], values, scales)

    def _checked(self, kind: str, dtype: str, block_shape: tuple[int, ...]) -> tuple[Any, ...]:
        parts = tuple(info for info in self._dump.sections if info.kind == kind)
        rows = sum(info.shape[0] for info in parts if info.shape)
        if not parts:
            raise _invalid(kind, "is missing")
        if not self.blocks or rows != len(self.blocks) or any(info.shape[1:] != block_shape for info in parts):
            wanted = [len(self.blocks), *block_shape]
            raise _invalid(kind, f"has shape {[rows, *parts[0].shape[1:]]}, the dump's own facts give {wanted}")
        if wrong := {info.dtype for info in parts} - {dtype}:
            raise _invalid(kind, f"is {' and '.join(sorted(wrong))}, the cache is {dtype}")
        return parts


def has_contents(dump: Dump) -> bool:
    return any(section.kind == CONTENTS for section in dump.sections)


def _invalid(kind: str, problem: str) -> InvalidState:
    return InvalidState(f"section {kind} {problem}", remedy=REMEDY)
