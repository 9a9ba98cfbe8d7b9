"""The KV cache of a dump to look at: tables, free list, owners of a block, and contents where they were recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumps.errors import InvalidState
from dumps.kv_contents import RecordedContents, has_contents
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import Dump
from dumps.tensors import from_le32
from replay.runtime.errors import RuntimeReplayError


class NoSuchBlock(RuntimeReplayError):
    """A block id outside the pool, or a block whose contents the dump does not hold."""

    remedy = "See kv.num_blocks and kv.recorded_blocks."


@dataclass(frozen=True, slots=True)
class Owner:
    """A request that has a block in its table. Its tokens there stand at positions ``start`` to ``stop`` - 1."""

    request: str
    start: int
    stop: int


class KvView(Mapping[str, "NDArray[np.int32]"]):
    """Read-only. As a mapping: block tables (int32, in order of position) by request id.

    Arrays cannot be written. ``contents`` needs the open dump.
    """

    def __init__(self, state: pb.RuntimeState, dump: Dump | None = None) -> None:
        """Raises `CorruptDump` when a table is no int32 list, `InvalidState` when it is nobody's."""
        kv = state.kv
        self.block_size, self.num_blocks = kv.block_size, kv.num_blocks
        self.used_bytes, self.max_bytes = kv.used_bytes, kv.max_bytes
        self.free_blocks = _array(kv.free_blocks)
        self.ref_counts = _array(kv.ref_counts)
        self._dump = dump
        self._num_tokens: dict[str, int] = {}
        self._tables: dict[str, NDArray[np.int32]] = {}
        for table in kv.tables:
            if table.request >= len(state.requests):
                raise InvalidState(f"a block table names request {table.request} of {len(state.requests)}")
            request_id = state.requests[table.request].id
            self._tables[request_id] = _array(table.blocks)
            self._num_tokens[request_id] = table.num_tokens

    def __getitem__(self, request: str) -> NDArray[np.int32]:
        return self._tables[request]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def num_tokens(self, request: str) -> int:
        """Tokens of the request that are written in the cache."""
        return self._num_tokens[request]

    def owners(self, block: int) -> list[Owner]:
        """Who has the block in a table: none for a free one, several for one that is shared. Raises `NoSuchBlock`."""
        if not 0 <= block < self.num_blocks:
            raise NoSuchBlock(f"block {block} is not one of the pool's {self.num_blocks}")
        found = []
        for request, blocks in self._tables.items():
            for index in np.flatnonzero(blocks == block):
                start = int(index) * self.block_size
                stop = max(min(start + self.block_size, self._num_tokens[request]), start)
                found.append(Owner(request, start, stop))
        return found

    def is_free(self, block: int) -> bool:
        return bool(np.any(self.free_blocks == block))

    @cached_property
    def recorded_blocks(self) -> tuple[int, ...]:
        """Blocks whose contents can be read here."""
        return () if self._contents is None else tuple(self._contents.blocks)

    def contents(self, block: int) -> NDArray[Any]:
        """Keys and values of one block: [num_layers, 2, block_size, num_kv_heads, head_dim] in the cache's own dtype
        (int8 for a quantised cache, see `scales`). Raises `NoSuchBlock`, `CorruptDump`."""
        values, _ = self._row(block)
        return values

    def scales(self, block: int) -> NDArray[Any] | None:
        """Factors of an int8 block, float32, the same shape without head_dim; None for any other cache."""
        return self._row(block)[1]

    @cached_property
    def _contents(self) -> RecordedContents | None:
        if self._dump is None or not has_contents(self._dump):
            return None
        contents = RecordedContents(self._dump)
        contents.read_scales()
        return contents

    def _row(self, block: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
        if self._contents is None or block not in self.recorded_blocks:
            raise NoSuchBlock(
                f"the contents of block {block} are not at hand: they were not recorded, or no dump is open"
            )
        for index in range(self._contents.num_parts):
            part = self._contents.part(index)
            if block in part.blocks:
                row = part.blocks.index(block)
                return part.values[row], None if part.scales is None else part.scales[row]
        raise NoSuchBlock(f"block {block} is in no part of the recorded contents")


def _array(data: bytes) -> NDArray[np.int32]:
    array = np.array(from_le32(data), dtype=np.int32)
    array.flags.writeable = False
    return array
