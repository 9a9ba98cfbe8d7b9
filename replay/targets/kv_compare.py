"""Finds where recorded KV contents differ, bit for bit, from what a replay computed from the tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay.report import finding

Owners = Mapping[tuple[int, int], tuple[str, int]]
"""(block, slot) of a computed token -> request id and position."""


@dataclass(order=True, frozen=True, slots=True)
class _Place:
    """A differing number. They are ordered: deeper layers only inherit the damage, and values that of keys."""

    layer: int
    tensor: int
    block: int
    slot: int
    what: str = field(compare=False)
    recorded: str = field(compare=False)
    computed: str = field(compare=False)


class KvComparison:
    """Takes blocks as they are read. Slots that hold no computed token are not compared, and unless ``strict``, where
    rounding may differ, only a recorded NaN or infinity counts."""

    def __init__(self, owners: Owners, *, strict: bool) -> None:
        self.compared = self.count = 0
        self._owners = owners
        self.strict = strict
        self._first: _Place | None = None

    def add(self, blocks: list[int], recorded: NDArray[Any], computed: NDArray[Any], what: str = "") -> None:
        """Compare contents [n, layers, 2, block_size, kv heads, ...] of ``blocks``: values, or what ``what`` names."""
        ours, theirs = (_bits(numbers).reshape(*numbers.shape[:4], -1) for numbers in (computed, recorded))
        holds = np.array([[(block, slot) in self._owners for slot in range(ours.shape[3])] for block in blocks])
        self.compared += int(holds.sum()) * ours[0, :, :, 0].size
        differs = (ours != theirs) & holds[:, None, None, :, None]
        if not self.strict:
            differs &= _not_finite(theirs)
        self.count += int(differs.sum())
        found = np.argwhere(differs.any(axis=4))
        if not found.size:
            return
        row, layer, tensor, slot = found.T
        first = found[np.lexsort((slot, np.array(blocks)[row], tensor, layer))[0]].tolist()
        index = (*first, int(differs[tuple(first)].argmax()))
        place = _Place(first[1], first[2], blocks[first[0]], first[3], what, _hex(theirs[index]), _hex(ours[index]))
        if self._first is None or place < self._first:
            self._first = place

    def findings(self) -> list[dict[str, Any]]:
        """One finding with the first differing number, or none."""
        if self._first is None:
            return []
        first = self._first
        owner, position = self._owners[first.block, first.slot]
        name = ("key", "value")[first.tensor] + first.what
        values = f"recorded bits {first.recorded}, computed {first.computed}"
        return [
            finding(
                "kv-differs",
                f"recorded KV differs from what the tokens give in {self.count} of {self.compared} values, first in "
                f"layer {first.layer}, {name}, block {first.block}, slot {first.slot} (request {owner}, position "
                f"{position}): {values}",
                count=self.count,
                layer=first.layer,
                tensor=name,
                block=first.block,
                slot=first.slot,
                request=owner,
                position=position,
                recorded_bits=first.recorded,
                computed_bits=first.computed,
            )
        ]


def _not_finite(bits: NDArray[Any]) -> NDArray[np.bool_]:
    """Where all exponent bits of a bfloat16 or float32 are set; nowhere in codes of int8."""
    if bits.dtype.itemsize == 1:
        return np.zeros(bits.shape, dtype=bool)
    exponent = {2: 0x7F80, 4: 0x7F800000}[bits.dtype.itemsize]
    result: NDArray[np.bool_] = (bits & exponent) == exponent
    return result


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    return values.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[values.dtype.itemsize])


def _hex(value: Any) -> str:
    return f"0x{int(value):0{value.dtype.itemsize * 2}x}"
