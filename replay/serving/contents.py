"""Which KV blocks' contents go into a dump, and a copy of them taken before they can be handed out again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch

from dumps.ledger import record
from dumps.schema import state_pb2 as pb
from dumps.schema.writer import SectionData
from dumps.tensors import le32
from replay.engine.checks import first_non_finite
from replay.engine.failure import Failure
from replay.engine.kv_store import KVStore
from replay.engine.request import Request


class RecordKv(StrEnum):
    """Whose contents a dump holds: none, blocks with a non-finite value in them, or all blocks in use."""

    NONE = "none"
    FAULTY = "faulty"
    LIVE = "live"


_NOTES = {
    RecordKv.FAULTY: "of blocks in use that hold a non-finite value",
    RecordKv.LIVE: "of all blocks in use",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KvContents:
    """Copies of physical blocks, ``data`` as C-ordered bytes of [len(blocks), *block_shape] in ``dtype``."""

    selection: RecordKv
    blocks: tuple[int, ...]
    data: bytes
    dtype: str
    block_shape: tuple[int, ...]

    def put(self, state: pb.RuntimeState) -> list[SectionData]:
        """Name the blocks in ``state`` and give the section that belongs to them."""
        state.kv.contents_selection = self.selection.value
        state.kv.contents_blocks = le32(self.blocks)
        if self.selection is RecordKv.NONE:
            return []
        record(state, "kv.contents_blocks", pb.OBSERVED, _NOTES[self.selection])
        if not self.blocks:
            return []
        shape = (len(self.blocks), *self.block_shape)
        return [SectionData(kind="kv-contents", data=self.data, dtype=self.dtype, shape=shape)]


class KvWatch:
    """The engine's `FailureWatch`: finds the non-finite value, and copies blocks while the failing request has them."""

    def __init__(self, kv: KVStore, running: Sequence[Request], selection: RecordKv) -> None:
        self._kv = kv
        self._running = running
        self._selection = selection
        self._held: dict[int, None] = {}

    def explain(self, failure: Failure, request: Request) -> Failure:
        """Adds where the cache holds its first non-finite value, and remembers the request's blocks for the dump."""
        self._held.update(dict.fromkeys(request.blocks))
        return replace(failure, non_finite=first_non_finite(self._kv, [request]))

    def collect(self) -> KvContents:
        """Contents for a dump, of blocks in use and of those whose request has just ended in a failure."""
        held = self._held | dict.fromkeys(block for request in self._running for block in request.blocks)
        self._held = {}
        blocks: list[int] = []
        if self._selection is RecordKv.LIVE:
            blocks = sorted(held)
        elif self._selection is RecordKv.FAULTY:
            blocks = sorted(block for block in held if not self._finite(block))
        return KvContents(
            selection=self._selection,
            blocks=tuple(blocks),
            data=self._kv.read_blocks(blocks).tobytes() if blocks else b"",
            dtype=self._kv.dtype,
            block_shape=self._kv.block_shape,
        )

    def _finite(self, block: int) -> bool:
        first = block * self._kv.block_size
        return bool(torch.isfinite(self._kv.data[:, first : first + self._kv.block_size]).all())
