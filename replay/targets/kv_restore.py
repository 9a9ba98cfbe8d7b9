"""Puts recorded KV contents into the cache of a replay, just before the recorded failing step.

The contents were read when the failure showed, so they are those that the failing step read. They can be used in two
ways. Laid over a cache that was computed from tokens, they are checked against it: a difference is the damage itself,
found bit by bit, finite or not. Used instead of computing (``--kv restore``), they bring the replay to the failing step
without the model, and only what that step needs and the dump lacks is computed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dumps.kv_contents import ContentsPart, RecordedContents, has_contents
from dumps.ledger import weakest
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import Dump
from dumps.tensors import from_le32
from replay.engine.kv_store import NEVER, KVStore
from replay.engine.recorded import RecordedStep
from replay.engine.request import Request
from replay.engine.slots import SlotLedger
from replay.errors import UsageError
from replay.report import finding
from replay.targets.forward import written_by
from replay.targets.kv_compare import KvComparison
from replay.targets.rebuild import Rebuilt
from replay.verdict import Reason


@dataclass(slots=True)
class Plan:
    """Which requests are restored from the dump, and which must be computed since a block of theirs is not in it."""

    restored: list[Request] = field(default_factory=list)
    computed: list[Request] = field(default_factory=list)


class KvRestore:
    """The contents of a dump, for a cache of a replay that stands just before the failing step.

    ``following``: the replay is of exactly what was recorded so far, so that its block tables are the recorded ones.
    """

    def __init__(self, dump: Dump, rebuilt: Rebuilt, kv: KVStore, *, following: bool) -> None:
        """Raises `InvalidState` when the contents contradict the dump, `UsageError` when the cache is another one."""
        self.contents = RecordedContents(dump)
        self._kv = kv
        self._steps = rebuilt.steps
        self._following = following
        self._check_fits()
        self._rows = {block: row for row, block in enumerate(self.contents.blocks)}
        names = [request.id for request in rebuilt.requests]
        self._holders: dict[int, set[tuple[str, int]]] = {}
        for table in dump.state.kv.tables:
            name = names[table.request] if table.request < len(names) else ""
            for index, block in enumerate(from_le32(table.blocks)):
                self._holders.setdefault(block, set()).add((name, index))
        # A block in no table is there because its request ended in the last step.
        self._in_last_step = {chunk.request.id for chunk in self._last_step.chunks}

    def plan(self, running: Sequence[Request], *, at_failure: bool) -> Plan:
        """Sorts the requests whose keys and values the failing step reads. Where the replay is not ``following``, that
        can be any that runs; where it left the record before the failing step, all of them are computed."""
        plan = Plan()
        for request in running:
            if not request.num_computed or (self._following and request.id not in self._in_last_step):
                continue
            needed = range(-(-request.num_computed // self._kv.block_size))
            whole = at_failure and all(self._is_of(request, index) for index in needed)
            (plan.restored if whole else plan.computed).append(request)
        return plan

    def lay_over(
        self,
        running: Sequence[Request],
        *,
        restored: Collection[Request] = (),
        computed: Collection[Request] | None = None,
        before: int,
        strict: bool,
        ledger: SlotLedger | None = None,
    ) -> list[dict[str, Any]]:
        """Put the recorded blocks into the cache. What is there already of requests that were ``computed`` is
        compared; None means all that are not ``restored``.

        ``before`` is the step to come: slots of ``restored`` are stamped with the steps that wrote them, as the
        schedule's own ``ledger`` has them. Returns the findings. Raises `CorruptDump`.
        """
        kv, skipped, owners = self._kv, set(), {}
        for request in running:
            for index, block in enumerate(request.blocks[: -(-request.num_computed // kv.block_size)]):
                if block in self._rows and not self._is_of(request, index):
                    skipped.add(block)
            if request in computed if computed is not None else request not in restored:
                for position in range(request.num_computed):
                    block = request.blocks[position // kv.block_size]
                    if block in self._rows and self._is_of(request, position // kv.block_size):
                        owners[block, position % kv.block_size] = (request.id, position)
        for request in running:
            # Shared with one whose block it is.
            held = enumerate(request.blocks)
            skipped -= {block for index, block in held if block in self._rows and self._is_of(request, index)}
        comparison = KvComparison(owners, strict=strict)
        compared = {block for block, _ in owners}
        self.contents.read_scales()
        if not compared and kv.data.device.type == "cpu":
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                list(pool.map(lambda index: self._put(self.contents.part(index), skipped), range(self.num_parts)))
        else:
            for index in range(self.num_parts):
                part = self.contents.part(index)
                self._compare(comparison, part, compared)
                self._put(part, skipped)
        if restored:
            self._stamp(restored, before, ledger)
            self._fill_copied({block for request in running for block in request.blocks})
        return comparison.findings() or self._agreement(comparison, compared)

    def _agreement(self, comparison: KvComparison, compared: Collection[int]) -> list[dict[str, Any]]:
        """The finding that nothing differs: a check that is silent looks like one that was not made."""
        if not comparison.compared:
            return []
        blocks = len(compared)  # without those that the failing step was the first to write to
        what = "all bits as computed"
        if not comparison.strict:
            what = "no NaN or infinity that computing did not give; other bits are not compared in a forced replay"
        return [finding("kv-agrees", f"recorded KV: {blocks} block{'s' * (blocks != 1)}, {what}", blocks=blocks)]

    def has_blocks(self, blocks: Sequence[int]) -> bool:
        """Whether the dump holds these blocks, or copies of them that the failing step made."""
        copied = {source for source, copy in self._copies if copy in self._rows}
        return all(block in self._rows or block in copied for block in blocks)

    @property
    def num_parts(self) -> int:
        return self.contents.num_parts

    def report(self, plan: Plan) -> dict[str, Any]:
        """The finding that says what was restored, and what the replay's agreement then covers."""
        blocks, size = len(self.contents.blocks), self.contents.num_bytes
        whole, tokens = len(plan.restored), sum(request.num_computed for request in plan.computed)
        text = f"recorded KV of {blocks} blocks ({size:,} bytes) was used instead of computing {whole} request(s)"
        if plan.computed:
            text += f"; {tokens} tokens of {len(plan.computed)} more were computed, since blocks of theirs are missing"
        text += "; what agrees with the record is the failing step alone"
        return finding(
            "kv-restored",
            text,
            requests=[request.id for request in plan.restored],
            computed=[request.id for request in plan.computed],
            blocks=blocks,
            bytes=size,
        )

    @property
    def _last_step(self) -> RecordedStep:
        return self._steps[-1]

    @property
    def _copies(self) -> list[tuple[int, int]]:
        """(source, copy) of the blocks that the failing step copies."""
        hits = [(hit.copied_from, hit.blocks) for hit in self._last_step.prefix_hits]
        most = self._kv.num_blocks
        return [(source, blocks[-1]) for source, blocks in hits if source is not None and source < most and blocks]

    def _is_of(self, request: Request, index: int) -> bool:
        """Whether the dump holds the block at this place of a request's table, with that request's content."""
        block = request.blocks[index]
        if block not in self._rows:
            return False
        holders = self._holders.get(block, set())
        if (request.id, index) in holders:
            return True
        return request.id in self._in_last_step and (self._following or not holders)

    def _check_fits(self) -> None:
        contents, kv = self.contents, self._kv
        theirs = (contents.dtype, contents.quant_bits, contents.block_shape)
        if theirs != (kv.dtype, kv.quant_bits, kv.block_shape) or max(contents.blocks) >= kv.num_blocks:
            recorded, here = _named(contents.dtype, contents.quant_bits), _named(kv.dtype, kv.quant_bits)
            raise UsageError(
                f"the recorded KV contents are {recorded} blocks of shape {list(contents.block_shape)} up to id "
                f"{max(contents.blocks)}; the cache of this replay has {kv.num_blocks} {here} ones of "
                f"{list(kv.block_shape)}",
                remedy="add --kv recompute, or leave block size, number of blocks, dtype, KV bits and model as they "
                "were recorded",
            )

    def _put(self, part: ContentsPart, skipped: Collection[int]) -> None:
        rows: Any = slice(None)
        if skipped:
            rows = [row for row, block in enumerate(part.blocks) if block not in skipped]
        blocks = [part.blocks[row] for row in rows] if skipped else part.blocks
        self._kv.write_blocks(blocks, part.values[rows], None if part.scales is None else part.scales[rows])

    def _compare(self, comparison: KvComparison, part: ContentsPart, compared: Collection[int]) -> None:
        rows = [row for row, block in enumerate(part.blocks) if block in compared]
        if not rows:
            return
        blocks = [part.blocks[row] for row in rows]
        if part.scales is not None:
            scales = self._kv.read_scales(blocks)
            assert scales is not None
            comparison.add(blocks, part.scales[rows], scales, " scale")
        comparison.add(blocks, part.values[rows], self._kv.read_blocks(blocks))

    def _fill_copied(self, held: Collection[int]) -> None:
        """A block that the failing step copies, for a request that it admits, may be nobody's and not recorded; then
        its copy stands for it."""
        for source, copy in self._copies:
            if source not in held and source not in self._rows and copy in self._rows:
                self._kv.copy_block(copy, source)

    def _stamp(self, restored: Collection[Request], before: int, ledger: SlotLedger | None) -> None:
        """Note who wrote the slots of requests, and of prefixes that the failing step hits, and when."""
        tables: list[tuple[str | None, list[int], NDArray[np.int64]]] = [
            (
                request.id,
                request.blocks,
                np.array(written_by(self._steps, request, before=before)[: request.num_computed]),
            )
            for request in restored
        ]
        # What a request takes from the prefix cache are whole blocks, which others wrote.
        for hit in self._last_step.prefix_hits:
            if all(block in self._rows for block in hit.blocks):
                tables.append((None, list(hit.blocks), np.full(len(hit.blocks) * self._kv.block_size, NEVER)))
        for owner, blocks, steps in tables:
            slots = self._kv.slots_of(blocks, 0, steps.size)
            new = np.flatnonzero((steps != NEVER) | (self._kv.position[slots] == NEVER))
            self._kv.position[slots[new]] = new
            self._kv.written_step[slots[new]] = steps[new]
            if ledger is not None:
                known = new[ledger.position[slots[new]] == new]
                self._kv.written_step[slots[known]] = ledger.written_step[slots[known]]
            for slot in slots[new].tolist():
                self._kv.owner[slot] = owner if ledger is None else ledger.writer(slot)


def why_unusable(dump: Dump, rebuilt: Rebuilt, last: int, *, unchecked: bool) -> str:
    """Why the contents cannot stand for what step ``last`` read; empty where they can. ``unchecked``: nothing is
    computed that they are compared with."""
    if not has_contents(dump):
        return "the dump holds no KV contents"
    if not rebuilt.steps or rebuilt.steps[-1].index != last:
        return f"they are those after the last recorded step, and the failure showed in step {last}"
    if unchecked and not dump.state.model.weights_fingerprint:
        return "the dump does not say which weights its contents were computed with"
    return ""


def cannot_restore(dump: Dump, rebuilt: Rebuilt, last: int) -> dict[str, Any] | None:
    """The finding that says why ``--kv restore`` cannot go to step ``last``, and what can; None where it can."""
    problem = why_unusable(dump, rebuilt, last, unchecked=True)
    if not problem:
        return None
    remedy = "--kv recompute computes the cache from tokens; "
    if weakest(dump.state, "threads").grade == pb.ABSENT and not has_contents(dump):
        # What a live process can say of itself only is absent from a ring: stacks, and contents with them.
        problem += ", as it was recovered from a flight recorder's file, which never has any"
        remedy += "a dump that the living server writes has them, with --record tokens --record-kv live"
    else:
        remedy += "pplx-server --record tokens --record-kv live records contents that can be restored"
    return finding(Reason.KV_CONTENTS_ABSENT.value, f"--kv restore: {problem}", remedy=remedy)


def check_numbers(dump: Dump, rebuilt: Rebuilt, last: int, *, dtype: str, unchecked: bool) -> None:
    """Raises `UsageError` when the contents would be used, and a replay in ``dtype`` has numbers of another kind in its
    cache. Needs no model."""
    if not has_contents(dump) or why_unusable(dump, rebuilt, last, unchecked=unchecked):
        return
    kv, bits = dump.state.kv, rebuilt.config.kv_quant_bits
    if (kv.dtype, kv.quant_bits) != (dtype, bits):
        theirs, ours = f"{_named(kv.dtype, kv.quant_bits)} blocks", f"{_named(dtype, bits)} ones"
        if kv.dtype != dtype:
            theirs, ours = f"{theirs}, computed in {kv.dtype}", f"{ours}, computed in {dtype}"
        raise UsageError(
            f"the recorded KV contents are {theirs}; the cache of this replay has {ours}",
            remedy="add --kv recompute, or leave dtype and KV bits as they were recorded",
        )


def _named(dtype: str, quant_bits: int) -> str:
    return f"int{quant_bits}" if quant_bits else dtype
