"""The paged KV cache: where keys and values lie, who wrote each slot, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Data types of the computation and of the cache."""

NEVER = -1
"""Stamp of a slot that no step has written."""


class KVStore:
    """Keys and values of all layers, by flat slot number: physical block times block size, plus the place in the block.

    ``data`` is [num_layers, num_slots, 2 (key, value), num_kv_heads, head_dim]. Key and value of a slot lie together so
    that one gather fetches both. ``written_step``, ``owner`` and ``position`` say for each slot which step wrote it
    last, for which request id, and which of its token positions; ``just_written`` are the slots of the latest
    step, which no request counts as computed until that step is committed. Whoever writes ``data`` directly stamps too.
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
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_slots = num_blocks * block_size
        self.num_layers = num_layers
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        self.data = torch.zeros(
            (num_layers, self.num_slots, 2, num_kv_heads, head_dim), dtype=DTYPES[dtype], device=device
        )
        self.written_step: NDArray[np.int64] = np.full(self.num_slots, NEVER, dtype=np.int64)
        self.position: NDArray[np.int64] = np.full(self.num_slots, NEVER, dtype=np.int64)
        self.owner: list[str | None] = [None] * self.num_slots
        self.just_written: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def write(self, layer: int, slots: torch.Tensor, keys_values: torch.Tensor) -> None:
        """Store one layer's new keys and values, [len(slots), 2, num_kv_heads, head_dim], at flat slots."""
        self.data[layer].index_copy_(0, slots, keys_values)

    def gather(self, layer: int, slots: torch.Tensor, out: torch.Tensor) -> None:
        """Read one layer's keys and values at flat slots into `out`, [len(slots), 2, num_kv_heads, head_dim]."""
        torch.index_select(self.data[layer], 0, slots, out=out)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        values = self.num_layers * self.block_size * 2 * self.num_kv_heads * self.head_dim
        return values * int(self.data.element_size())

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
        index = torch.as_tensor(list(blocks), dtype=torch.long, device=self.data.device)
        picked = self._paged()[:, index].permute(1, 0, 3, 2, 4, 5).contiguous().cpu()
        return _as_bits(picked)

    def write_blocks(self, blocks: Sequence[int], contents: NDArray[Any] | torch.Tensor) -> None:
        """Put contents as `read_blocks` gives them into physical blocks. Slots keep their stamps.

        Raises `ValueError` when the shape or the data type is another one.
        """
        tensor = contents if isinstance(contents, torch.Tensor) else _from_bits(contents, self.data.dtype)
        if tensor.dtype != self.data.dtype or tuple(tensor.shape) != (len(blocks), *self.block_shape):
            raise ValueError(
                f"KV contents are {tensor.dtype} {tuple(tensor.shape)}, "
                f"expected {self.data.dtype} {(len(blocks), *self.block_shape)}"
            )
        index = torch.as_tensor(list(blocks), dtype=torch.long, device=self.data.device)
        self._paged()[:, index] = tensor.to(self.data.device).permute(1, 0, 3, 2, 4, 5)

    def copy_block(self, source: int, target: int) -> None:
        """Copy a block's contents and stamps, so that a sharer can write without the others seeing it."""
        old, new = (slice(block * self.block_size, (block + 1) * self.block_size) for block in (source, target))
        self.data[:, new] = self.data[:, old]
        self.written_step[new] = self.written_step[old]
        self.position[new] = self.position[old]
        self.owner[new] = self.owner[old]

    def fill_blocks(self, blocks: Sequence[int], value: float) -> None:
        """Set every element of the blocks, e.g. to NaN so that a read after free shows. Stamps are cleared."""
        for block in blocks:
            first, stop = block * self.block_size, (block + 1) * self.block_size
            self.data[:, first:stop] = value
            self.written_step[first:stop] = NEVER
            self.position[first:stop] = NEVER
            self.owner[first:stop] = [None] * self.block_size

    def _paged(self) -> torch.Tensor:
        """`data` with the slots split: [num_layers, num_blocks, block_size, 2, num_kv_heads, head_dim], a view."""
        return self.data.view(self.num_layers, self.num_blocks, self.block_size, 2, self.num_kv_heads, self.head_dim)


def _as_bits(tensor: torch.Tensor) -> NDArray[Any]:
    """A CPU tensor as numpy, which has no bfloat16: its bits stand in as uint16."""
    array: NDArray[Any] = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def _from_bits(array: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    # A copy: the array may be a read-only view of a mapped dump, which torch must not alias.
    tensor = torch.from_numpy(np.array(array, copy=True))
    return tensor.view(torch.bfloat16) if dtype == torch.bfloat16 and array.dtype == np.uint16 else tensor
