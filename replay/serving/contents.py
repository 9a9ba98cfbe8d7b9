"""Which KV blocks' contents go into a dump, and a copy of them taken before they can be handed out again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumps.kv_contents import CONTENTS, SCALES
from dumps.ledger import record
from dumps.schema import state_pb2 as pb
from dumps.schema.writer import SectionData
from dumps.tensors import le32
from replay.engine.checks import first_non_finite
from replay.engine.engine import EngineHooks, StepOutcome
from replay.engine.failure import Failure
from replay.engine.kv_store import KVStore
from replay.engine.request import Request
from replay.engine.schedule import StepPlan

PART_BYTES = 8 * 2**20
"""Of contents that a replay may restore: parts so small are verified and copied on several cores at once."""


class RecordKv(StrEnum):
    """Whose contents a dump holds: none, blocks with a non-finite value in them, or all blocks in use."""

    NONE = "none"
    FAULTY = "faulty"
    LIVE = "live"


_NOTES = {
    RecordKv.FAULTY: "of blocks in use that hold a non-finite value",
    RecordKv.LIVE: "of all blocks that were in use in the last step",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KvContents:
    """Copies of physical blocks as `KVStore` gives them: ``values`` [len(blocks), *block_shape], whose elements the
    name ``dtype`` means, and the ``scales`` of an int8 cache. Both are None where no block is kept."""

    selection: RecordKv
    blocks: tuple[int, ...] = ()
    values: NDArray[Any] | None = None
    dtype: str = ""
    scales: NDArray[np.float32] | None = None

    def put(self, state: pb.RuntimeState) -> list[SectionData]:
        """Name the blocks in ``state`` and give the sections that belong to them.

        All blocks in use are stored raw, which a replay copies straight from the mapped file: half the time of a
        compressed one, here and there, for a quarter more bytes in bfloat16 and a twelfth in float32.
        """
        state.kv.contents_selection = self.selection.value
        state.kv.contents_blocks = le32(self.blocks)
        if self.selection is RecordKv.NONE:
            return []
        record(state, "kv.contents_blocks", pb.OBSERVED, _NOTES[self.selection])
        tensors = ((CONTENTS, self.values, self.dtype), (SCALES, self.scales, "float32"))
        return [
            SectionData(
                kind=kind,
                data=tensor.data,
                dtype=dtype,
                shape=tensor.shape,
                compress=self.selection is RecordKv.FAULTY,
                part_bytes=max(PART_BYTES, tensor[0].nbytes),
            )
            for kind, tensor, dtype in tensors
            if tensor is not None
        ]


class KvWatch(EngineHooks):
    """The engine's `FailureWatch`: finds the non-finite value, and copies blocks before they are handed out again.

    As a hook it remembers whose tokens the latest step computes: what ends in that step gives its blocks back, and they
    still hold what the step read.
    """

    def __init__(self, kv: KVStore, running: Sequence[Request], selection: RecordKv) -> None:
        self._kv = kv
        self._running = running
        self._selection = selection
        self._held: dict[int, None] = {}
        self._computed: list[list[int]] = []

    def planned(self, plan: StepPlan) -> None:
        # The lists themselves: a request that ends gets a new one.
        self._computed = [chunk.request.blocks for chunk in plan.chunks]

    def stepped(self, outcome: StepOutcome) -> None:
        """The blocks may be handed out from the next `planned` on."""

    def explain(self, failure: Failure, request: Request) -> Failure:
        """Adds where the cache holds its first non-finite value, and remembers the request's blocks for the dump."""
        self._held.update(dict.fromkeys(request.blocks))
        return replace(failure, non_finite=first_non_finite(self._kv, [request]))

    def collect(self) -> KvContents:
        """Contents for a dump, of blocks in use and of those whose request has just ended in a failure."""
        kv = self._kv
        held = self._held | dict.fromkeys(block for request in self._running for block in request.blocks)
        self._held = {}
        blocks: list[int] = []
        if self._selection is RecordKv.LIVE:
            blocks = sorted(held | dict.fromkeys(block for table in self._computed for block in table))
        elif self._selection is RecordKv.FAULTY:
            blocks = sorted(block for block in held if not kv.finite_block(block))
        if not blocks:
            return KvContents(selection=self._selection)
        return KvContents(
            selection=self._selection,
            blocks=tuple(blocks),
            values=kv.read_blocks(blocks),
            dtype="int8" if kv.quant_bits else kv.dtype,
            scales=kv.read_scales(blocks),
        )
