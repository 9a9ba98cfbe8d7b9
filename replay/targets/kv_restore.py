"""Puts recorded KV contents into the cache just before the recorded failing step, and says where they differ.

The contents were read when the failure showed, so they are those that the failing step read. Our own cache at that
point was computed from tokens. A difference between the two is the damage itself, found bit by bit, finite or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dumps.errors import InvalidState
from dumps.schema.reader import Dump
from dumps.tensors import from_le32
from replay.engine.kv_store import KVStore
from replay.engine.request import Request
from replay.errors import UsageError
from replay.report import finding

SECTION = "kv-contents"


def has_contents(dump: Dump) -> bool:
    return any(section.kind == SECTION for section in dump.sections)


def restore(dump: Dump, kv: KVStore, running: Sequence[Request], *, strict: bool) -> list[dict[str, Any]]:
    """Write the recorded blocks into ``kv``. Returns one finding with the first differing value, or none.

    Compared are slots that hold a computed token of a running request. Unless ``strict``, where rounding may differ,
    only a recorded NaN or infinity counts. Raises `InvalidState` when the recorded tensor contradicts the dump's own
    description, and `UsageError` when this replay's cache is another one.
    """
    blocks = from_le32(dump.state.kv.contents_blocks)
    recorded = dump.tensor(SECTION)
    _check(dump, blocks, recorded.shape)
    if recorded.shape[1:] != kv.block_shape or max(blocks) >= kv.num_blocks or dump.state.kv.dtype != kv.dtype:
        raise UsageError(
            f"the recorded KV contents are {dump.state.kv.dtype} blocks of shape {list(recorded.shape[1:])} up to id "
            f"{max(blocks)}; the cache of this replay has {kv.num_blocks} {kv.dtype} ones of {list(kv.block_shape)}",
            remedy="add --kv recompute, or leave block size, number of blocks, dtype and model as they were recorded",
        )
    computed = kv.read_blocks(blocks)
    differs = _bits(recorded) != _bits(computed)
    if not strict:
        differs &= _not_finite(_bits(recorded))
    findings = _compare(blocks, _bits(recorded), _bits(computed), differs, _owners(blocks, kv, running))
    kv.write_blocks(blocks, recorded)
    return findings


def _check(dump: Dump, blocks: list[int], shape: tuple[int, ...]) -> None:
    kv = dump.state.kv
    wanted = (len(blocks), kv.num_layers, 2, kv.block_size, kv.num_kv_heads, kv.head_dim)
    dtypes = {section.dtype for section in dump.sections if section.kind == SECTION}
    wrong = ""
    if not blocks or shape != wanted:
        wrong = f"has shape {list(shape)}, the dump's own facts give {list(wanted)}"
    elif dtypes != {kv.dtype}:
        wrong = f"is {' and '.join(sorted(dtypes))}, the cache is {kv.dtype}"
    elif len(set(blocks)) < len(blocks) or not all(0 <= block < kv.num_blocks for block in blocks):
        wrong = f"names a block twice, or one outside 0 to {kv.num_blocks - 1}"
    if wrong:
        raise InvalidState(f"section {SECTION} {wrong}", remedy="replay with --kv recompute")


def _owners(blocks: list[int], kv: KVStore, running: Sequence[Request]) -> dict[tuple[int, int], tuple[str, int]]:
    """Request id and position by (row in ``blocks``, slot), for slots that hold a computed token."""
    owners = {}
    row = {block: index for index, block in enumerate(blocks)}
    for request in running:
        for position in range(request.num_computed):
            block = request.blocks[position // kv.block_size]
            if block in row:
                owners[row[block], position % kv.block_size] = (request.id, position)
    return owners


def _compare(
    blocks: list[int],
    recorded: np.ndarray[Any, Any],
    computed: np.ndarray[Any, Any],
    differs: np.ndarray[Any, Any],
    owners: dict[tuple[int, int], tuple[str, int]],
) -> list[dict[str, Any]]:
    """All arrays are [n, layers, 2, block_size, heads, dim]; ``recorded`` and ``computed`` hold bits."""
    holds = np.zeros((len(blocks), differs.shape[3]), dtype=bool)
    for row, slot in owners:
        holds[row, slot] = True
    differs = differs & holds[:, None, None, :, None, None]
    count, compared = int(differs.sum()), len(owners) * recorded[0, :, :, 0].size
    if not count:
        return []
    # The first by layer, then key before value, block and slot: deeper layers only inherit the damage.
    index = min(zip(*np.nonzero(differs), strict=True), key=lambda i: (i[1], i[2], i[0], i[3]))
    n, layer, tensor, slot = (int(i) for i in index[:4])
    owner, position = owners[n, slot]
    name = "value" if tensor else "key"
    width = recorded.dtype.itemsize * 2
    values = f"recorded bits 0x{int(recorded[index]):0{width}x}, computed 0x{int(computed[index]):0{width}x}"
    return [
        finding(
            "kv-differs",
            f"recorded KV differs from what the tokens give in {count} of {compared} "
            f"values, first in layer {layer}, {name}, block {blocks[n]}, slot {slot} (request {owner}, position "
            f"{position}): {values}",
            count=count,
            layer=layer,
            tensor=name,
            block=blocks[n],
            slot=slot,
            request=owner,
            position=position,
            recorded_bits=f"0x{int(recorded[index]):0{width}x}",
            computed_bits=f"0x{int(computed[index]):0{width}x}",
        )
    ]


def _not_finite(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Where all exponent bits of a bfloat16 or float32 are set."""
    exponent = {2: 0x7F80, 4: 0x7F800000}[bits.dtype.itemsize]
    result: np.ndarray[Any, Any] = (bits & exponent) == exponent
    return result


def _bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return values.view({2: np.uint16, 4: np.uint32}[values.dtype.itemsize])
