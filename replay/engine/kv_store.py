"""The paged KV cache: where keys and values lie, who wrote each slot, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from replay.engine.quantise import Distortion, dequantise, quantise

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Data types of the computation."""

QUANT_BITS = (0, 8)
"""Bits of a value in the cache; 0 stands for those of the computation's own dtype."""

NEVER = -1
"""Stamp of a slot that no step has written."""


class KVStore:
    """Keys and values of all layers, by flat slot number: physical block times block size, plus the place in the block.

    ``data`` is [num_layers, num_slots, 2 (key, value), num_kv_heads, head_dim]. Key and value of a slot lie together so
    that one gather fetches both. ``dtype`` is that of the computation, in which keys and values are written and
    gathered. With ``quant_bits`` 8 ``data`` is int8, and ``scales`` [num_layers, num_slots, 2, num_kv_heads] holds its
    factors in float32; with ``measure`` too, ``distortion`` adds up what that does to the values written.

    ``written_step``, ``owner`` and ``position`` say for each slot which step wrote it last, for which request id, and
    which of its token positions; ``just_written`` are the slots of the latest step, which no request counts as computed
    until that step is committed. Whoever writes ``data`` directly stamps too.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: str,
        device: str = "cpu",
        quant_bits: int = 0,
        measure: bool = False,
    ) -> None:
        if quant_bits not in QUANT_BITS:
            raise ValueError(f"a KV cache of {quant_bits} bits is not supported, only {QUANT_BITS}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_slots = num_blocks * block_size
        self.num_layers = num_layers
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        self.quant_bits = quant_bits
        self.compute_dtype = DTYPES[dtype]
        shape = (num_layers, self.num_slots, 2, num_kv_heads)
        held = torch.int8 if quant_bits else self.compute_dtype
        self.data = torch.zeros((*shape, head_dim), dtype=held, device=device)
        self.scales = torch.zeros(shape, dtype=torch.float32, device=device) if quant_bits else None
        self.distortion = Distortion(num_layers, device) if quant_bits and measure else None
        self.written_step: NDArray[np.int64] = np.full(self.num_slots, NEVER, dtype=np.int64)
        self.position: NDArray[np.int64] = np.full(self.num_slots, NEVER, dtype=np.int64)
        self.owner: list[str | None] = [None] * self.num_slots
        self.just_written: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def write(self, layer: int, slots: torch.Tensor, keys_values: torch.Tensor) -> None:
        """Store one layer's new keys and values, [len(slots), 2, num_kv_heads, head_dim], at flat slots."""
        if self.scales is None:
            self.data[layer].index_copy_(0, slots, keys_values)
            return
        codes, scales = quantise(keys_values)
        self.data[layer].index_copy_(0, slots, codes)
        self.scales[layer].index_copy_(0, slots, scales)
        if self.distortion is not None:
            self.distortion.add(layer, keys_values, codes, scales)

    def gather(self, layer: int, slots: torch.Tensor, out: torch.Tensor) -> None:
        """Read one layer's keys and values at flat slots into `out`, [len(slots), 2, num_kv_heads, head_dim]."""
        if self.scales is None:
            torch.index_select(self.data[layer], 0, slots, out=out)
        else:
            dequantise(self.data[layer].index_select(0, slots), self.scales[layer].index_select(0, slots), out)

    def finite(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        """Whether one layer's key and value at flat slots hold finite numbers only, [len(slots), 2] of bool."""
        held = self.data if self.scales is None else self.scales[..., None]
        return torch.isfinite(held[layer].index_select(0, slots)).flatten(2).all(dim=2)

    def finite_block(self, block: int) -> bool:
        """Whether a block holds finite numbers only, in all layers and all slots that a step has written.

        The others may hold the NaN that checks fill freed blocks with.
        """
        held = self.data if self.scales is None else self.scales
        slots = np.arange(block * self.block_size, (block + 1) * self.block_size)
        slots = slots[self.written_step[slots] != NEVER]
        return bool(torch.isfinite(held[:, torch.from_numpy(slots).to(held.device)]).all())

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, keys and values, with their scales."""
        vectors = self.num_layers * self.block_size * 2 * self.num_kv_heads
        scale = 0 if self.scales is None else int(self.scales.element_size())
        return vectors * (self.head_dim * int(self.data.element_size()) + scale)

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        """Shape of one block's contents: [num_layers, 2, block_size, num_kv_heads, head_dim]."""
        return self.num_layers, 2, self.block_size, self.num_kv_heads, self.head_dim

    def stamp(self, slots: Sequence[int] | NDArray[np.int64], *, step: int, owner: str, first_position: int) -> None:
        """Note that `step` wrote `slots` for consecutive positions of one request."""
        index = np.asarray(slots, dtype=np.int64)
        self.written_step[index] = step
        self.position[index] = np.arange(first_position, first_position + index.size)
        for slot in index.tolist():
            self.owner[slot] = owner

    def slots_of(self, blocks: Sequence[int], start: int, stop: int) -> NDArray[np.int64]:
        """Flat slots of positions ``start .. stop - 1`` of a sequence whose block table is `blocks`."""
        positions = np.arange(start, stop)
        table = np.asarray(blocks, dtype=np.int64)
        return table[positions // self.block_size] * self.block_size + positions % self.block_size

    def read_blocks(self, blocks: Sequence[int]) -> NDArray[Any]:
        """Contents of physical blocks as [n, *block_shape], a copy. bfloat16 comes as its bits in uint16."""
        return self._read(self.data, blocks)

    def read_scales(self, blocks: Sequence[int]) -> NDArray[np.float32] | None:
        """The scales of physical blocks as [n, *block_shape without head_dim], a copy. None for a cache without."""
        return None if self.scales is None else self._read(self.scales, blocks)

    def write_blocks(
        self, blocks: Sequence[int], contents: NDArray[Any], scales: NDArray[np.float32] | None = None
    ) -> None:
        """Put contents as `read_blocks` and `read_scales` give them into physical blocks. Slots keep their stamps.

        The arrays may be views of a mapped file: each block is copied once, straight into its place. Threads may write
        different blocks at once. Raises `ValueError` when a shape or a data type is another one.
        """
        if (scales is None) != (self.scales is None):
            raise ValueError(f"KV contents come {'without' if scales is None else 'with'} scales, expected otherwise")
        self._write(self.data, blocks, contents)
        if self.scales is not None and scales is not None:
            self._write(self.scales, blocks, scales)

    def copy_block(self, source: int, target: int) -> None:
        """Copy a block's contents and stamps, so that a sharer can write without the others seeing it."""
        old, new = (slice(block * self.block_size, (block + 1) * self.block_size) for block in (source, target))
        self.data[:, new] = self.data[:, old]
        if self.scales is not None:
            self.scales[:, new] = self.scales[:, old]
        self.written_step[new] = self.written_step[old]
        self.position[new] = self.position[old]
        self.owner[new] = self.owner[old]

    def fill_blocks(self, blocks: Sequence[int], value: float) -> None:
        """Set every element of the blocks, e.g. to NaN so that a read after free shows. Stamps are cleared."""
        codes, scales = quantise(torch.full((1,), value))
        for block in blocks:
            first, stop = block * self.block_size, (block + 1) * self.block_size
            if self.scales is None:
                self.data[:, first:stop] = value
            else:
                self.data[:, first:stop] = int(codes)
                self.scales[:, first:stop] = float(scales)
            self.written_step[first:stop] = NEVER
            self.position[first:stop] = NEVER
            self.owner[first:stop] = [None] * self.block_size

    def _read(self, held: torch.Tensor, blocks: Sequence[int]) -> NDArray[Any]:
        paged = self._paged(held)
        if held.device.type == "cpu":
            source = _as_bits(paged)
            found: NDArray[Any] = np.empty((len(blocks), *self.block_shape[: held.dim()]), dtype=source.dtype)
            for row, block in enumerate(blocks):
                found[row] = source[:, block].swapaxes(1, 2)
            return found
        return _take_blocks(paged, blocks)

    def _write(self, held: torch.Tensor, blocks: Sequence[int], contents: NDArray[Any]) -> None:
        wanted = (len(blocks), *self.block_shape[: held.dim()])
        expected = _as_bits(torch.empty(0, dtype=held.dtype)).dtype
        if contents.dtype != expected or contents.shape != wanted:
            raise ValueError(f"KV contents are {contents.dtype} {contents.shape}, expected {expected} {wanted}")
        paged = self._paged(held)
        if held.device.type == "cpu":
            # With numpy, since torch does not take read-only memory.
            target = _as_bits(paged)
            for row, block in enumerate(blocks):
                target[:, block] = contents[row].swapaxes(1, 2)
            return
        _put_blocks(paged, blocks, contents)

    def _paged(self, held: torch.Tensor) -> torch.Tensor:
        """`data` or `scales` with its slots split into blocks, [num_layers, num_blocks, block_size, ...], a view."""
        return held.view(self.num_layers, self.num_blocks, self.block_size, *held.shape[2:])


def _take_blocks(paged: torch.Tensor, blocks: Sequence[int]) -> NDArray[Any]:
    """Contents [n, num_layers, 2, block_size, ...] of blocks of a cache on any device, in one transfer."""
    index = torch.as_tensor(list(blocks), dtype=torch.long, device=paged.device)
    return _as_bits(paged[:, index].transpose(0, 1).transpose(2, 3).contiguous().cpu())


def _put_blocks(paged: torch.Tensor, blocks: Sequence[int], contents: NDArray[Any]) -> None:
    """Put such contents into blocks of a cache on any device, in one transfer."""
    index = torch.as_tensor(list(blocks), dtype=torch.long, device=paged.device)
    host = torch.from_numpy(np.array(contents, copy=True)).view(paged.dtype)
    paged[:, index] = host.to(paged.device).transpose(0, 1).transpose(2, 3)


def _as_bits(tensor: torch.Tensor) -> NDArray[Any]:
    """A CPU tensor as numpy, sharing its memory. numpy has no bfloat16: its bits stand in as uint16."""
    array: NDArray[Any] = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array
