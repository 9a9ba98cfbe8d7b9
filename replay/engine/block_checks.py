"""Checks that every slot a step reads holds what its request takes it for, and that nobody else is written over.

They follow an engine's plans and need neither model nor cache, so they also run where there is none. Of what a step
reads, every slot must hold the reader's own token at that position, or that of a request whose tokens are equal up to
there. A block that a step writes must be in no other table. A block that became free, and that no prefix cache knows,
holds nothing; with a cache to act on it is filled with NaN, so that a read shows in the numbers too.

A failed check is a failure of kind contamination, one for each request that meets it. It does not stop the engine:
what the dead process did next has to come back as well. Where that is an exception, the failed check is what it follows
from; see `BlockChecks.untold` and `BlockChecks.behind`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import ne
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from replay.engine.contamination import misread, not_computed, written_over
from replay.engine.engine import StepOutcome
from replay.engine.failure import Failure, SlotRead, blamed
from replay.engine.live import LiveScheduler
from replay.engine.ownership import BlockEvent, BlockHistory
from replay.engine.request import Request
from replay.engine.schedule import Chunk, StepPlan
from replay.engine.slots import EMPTY, UNKNOWN, Expected, SlotLedger

NAN = float("nan")


class StampedCache(Protocol):
    """As much of a `KVStore` as the checks touch: the position that each slot was written for, and poisoning."""

    position: NDArray[np.int64]

    def fill_blocks(self, blocks: Sequence[int], value: float) -> None: ...


@dataclass(slots=True)
class _Holder:
    """A request with blocks, as far as it has been followed.

    ``blocks`` is its table, which a scheduler extends in place and replaces when it gives the blocks back; ``table`` a
    copy of what stood in it. Slots of positions below ``upto`` were right when they were last looked at, and nothing
    has touched them since, unless the request is a suspect. ``pending`` are the steps that wrote the last positions
    below ``upto``, which the ledger has not got yet.
    """

    expected: Expected
    blocks: list[int]
    table: list[int]
    upto: int = 0
    pending: list[int] = field(default_factory=list)


class BlockChecks:
    """An `EngineHooks` that checks one scheduler's steps. It adds its failures to the outcome of their step.

    It must stand before a recorder among an engine's hooks, and behind whatever frees blocks from outside.

    Nearly all steps only append to blocks that one request holds alone. So what was read once is looked at again only
    if its table changed, or a block in it was given away or written by somebody else; and writes reach the ledger
    together, when somebody else gets to see their blocks.
    """

    def __init__(self, scheduler: LiveScheduler, kv: StampedCache | None = None, *, poison: bool = True) -> None:
        """``kv`` is the cache that is computed into from the first step on; see `computes_into` for a later one."""
        self.history = BlockHistory()
        self.found: list[Failure] = []
        self.not_computed: list[Failure] = []
        self._ledger = SlotLedger(scheduler.config.num_blocks, scheduler.config.block_size)
        self._scheduler = scheduler
        self._kv = kv
        self._poison = poison
        self._events: list[tuple[str, int]] = []
        self._dead: set[int] = set()
        self._freed: set[int] = set()  # of the dead, those that nobody took since
        self._poisoned: set[int] = set()
        self._holders: dict[Request, _Holder] = {}
        self._tables: dict[Request, list[int]] = {}  # those of the holders, the same lists
        self._suspects: set[Request] = set()  # holders that must be looked at again
        self._holding: dict[int, list[Request]] = {}
        self._shared: set[int] = set()  # blocks in more than one table
        self._hit: dict[Request, int] = {}
        self._met: set[Request] = set()
        self._spoilt: dict[int, Failure] = {}  # the first failed check of each block since no table had it
        self._new: list[Failure] = []
        scheduler.pool.watch = self._watch
        self._begin()

    def computes_into(self, kv: StampedCache, *, poison: bool = True) -> None:
        """From the next step on the plans are computed into `kv`, which holds what the steps so far have written."""
        self._kv, self._poison = kv, poison

    def planned(self, plan: StepPlan) -> None:
        """Follow what planning did to the pool, then check the step's reads and writes before it is computed."""
        self._leave(plan, bool(plan.aborted or plan.exhausted or plan.finished))
        self._dead -= self._maybe_known()
        for block in self._dead:
            if self._holding.get(block):
                self._touched(block)
            elif self._spoilt:
                self._spoilt.pop(block, None)
        if plan.prefix_hits:
            self._empty_and_copy(plan.copies)
        elif self._dead:
            self._ledger.clear(self._dead)
            self._spoil(self._dead)
        self._dead, self._freed = set(), set()
        if plan.admitted:
            self._hit.update(dict.fromkeys(plan.admitted, 0))
            self._hit.update((hit.request, hit.num_tokens) for hit in plan.prefix_hits)
        requests = [chunk.request for chunk in plan.chunks]
        tables = [request.blocks for request in requests]
        for request in compress(requests, map(ne, map(self._tables.get, requests), tables)):
            self._hold(request)
        # A layer writes all of a step's keys and values before it reads any.
        self._write(zip(plan.chunks, map(self._holders.__getitem__, requests), strict=True), plan.index)
        if self._suspects:
            for chunk in plan.chunks:
                if chunk.request in self._suspects:
                    self._check(chunk, plan.index)
        if self._kv is not None:
            copied_from = {target: source for source, target in plan.copies}
            for chunk in plan.chunks:
                if chunk.request not in self._met:
                    self._check_cache(self._kv, chunk, plan.index, copied_from)

    def stepped(self, outcome: StepOutcome) -> None:
        """Add what was found, and forget the requests that ended."""
        outcome.failures.extend(self._new)
        self._new = []
        self._leave(outcome.plan, bool(outcome.finished))

    @property
    def untold(self) -> Sequence[Failure]:
        """What was found in a step that raised before its end, and so is in no outcome."""
        return tuple(self._new)

    def behind(self, error: Exception) -> Failure | None:
        """The failed check that an exception follows from: the first one of the block that was released too often.

        Failed checks of earlier owners are not meant, unless the block has been in somebody's table ever since.
        """
        evidence = blamed(error)
        return None if evidence is None or evidence.block is None else self._spoilt.get(evidence.block)

    def _begin(self) -> None:
        """Take what is in use when the record begins for right: nobody knows better."""
        scheduler, cache = self._scheduler, self._scheduler.cache
        for block in range(scheduler.config.num_blocks):
            if cache is not None and block in cache:
                self._ledger.trust(block)
        for request in scheduler.running:
            holder = self._hold(request)
            holder.pending += [-1] * request.num_computed
            holder.upto = request.num_computed
            self._flush(request, holder)

    # Blocks that change hands.

    def _watch(self, event: str, block: int) -> None:
        """Nobody may read a block that was handed out, or that nothing refers to any more. A step later copies from
        such a block before anything is computed, so this takes effect when the plan is complete."""
        self._events.append((event, block))
        if event == "allocate":
            self._dead.add(block)
            self._freed.discard(block)
        elif event != "share" and self._scheduler.pool.ref_counts[block] == 0:
            cache = self._scheduler.cache
            if cache is None or block not in cache:
                self._dead.add(block)
                (self._freed.add if event == "free" else self._freed.discard)(block)

    def _maybe_known(self) -> set[int]:
        """Blocks given back whose contents a prefix cache may know, while we do not: the token ids of those who wrote
        them are not on record, and so neither is the hash. Whoever is said to hit them may read them."""
        if self._scheduler.cache is None:
            return set()
        size, vague = self._ledger.block_size, self._ledger.vague
        known = {block for block in self._freed if vague[block * size : (block + 1) * size].any()}
        for block in known:
            self._ledger.trust(block)
        return known

    def _leave(self, plan: StepPlan, ended: bool) -> None:
        """Take leave of requests that gave their blocks back, and put the pool's events since the last call on record,
        with the requests that took or gave blocks.

        ``ended`` says that requests may have lost their blocks without an event, since others share all of them.
        """
        if not (ended or self._events):
            return
        left: list[tuple[Request, _Holder]] = []
        if ended or any(event == "free" for event, _ in self._events):
            left += ((request, one) for request, one in self._holders.items() if request.blocks is not one.blocks)
        takers = {block: chunk.request for chunk in plan.chunks if chunk.new_blocks for block in chunk.new_blocks}
        takers |= {block: hit.request for hit in plan.prefix_hits for block in hit.blocks}
        for event, block in self._events:
            request: Request | None = None
            if event in ("allocate", "share"):
                request = takers.get(block)
            elif event == "free":
                request = next((giver for giver, one in left if block in one.blocks), None)
            self.history.add(BlockEvent(plan.index, block, event, request.id if request else None))
        self._events.clear()
        for request, one in left:
            self._drop(request, one)
            if request.finished:
                self._hit.pop(request, None)
                self._met.discard(request)

    def _hold(self, request: Request) -> _Holder:
        """Follow a request's table. One that was changed otherwise than at its end is looked at as a new one."""
        one = self._holders.get(request)
        if one is not None and request.blocks[: len(one.table)] != one.table:
            self._drop(request, one)
            one = None
        if one is None:
            table = self._tables[request] = []
            one = self._holders[request] = _Holder(Expected(request), request.blocks, table)
        for block in request.blocks[len(one.table) :]:
            one.table.append(block)
            holding = self._holding.setdefault(block, [])
            holding.append(request)
            if len(holding) > 1:
                self._shared.add(block)
        return one

    def _drop(self, request: Request, one: _Holder) -> None:
        self._flush(request, one)
        for block in one.table:
            holding = self._holding[block]
            holding.remove(request)
            if len(holding) < 2:
                self._shared.discard(block)
        del self._holders[request], self._tables[request]
        self._suspects.discard(request)

    def _touched(self, block: int) -> None:
        """Somebody else got the block, or wrote it: those who hold it look at all of theirs again."""
        for request in self._holding.get(block, ()):
            self._flush(request, self._holders[request])
            self._suspects.add(request)

    def _publish(self, *blocks: int) -> None:
        """Bring the ledger up to date on blocks that somebody is about to look at."""
        if not blocks:
            return
        wanted, size = set(blocks), self._ledger.block_size
        for request in dict.fromkeys(request for block in blocks for request in self._holding.get(block, ())):
            one = self._holders[request]
            if not wanted.isdisjoint(one.table[(one.upto - len(one.pending)) // size : -(-one.upto // size)]):
                self._flush(request, one)

    def _flush(self, request: Request, one: _Holder) -> None:
        if not one.pending:
            return
        steps, stop = np.array(one.pending), one.upto
        start = stop - steps.size
        one.pending.clear()
        self._ledger.write(
            self._ledger.slots(one.table, stop)[start:],
            one.expected.upto(stop)[start:],
            writer=request.id,
            start=start,
            steps=steps,
            vague=not one.expected.known,
        )

    def _empty_and_copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Dead blocks hold nothing from now on, but a copy is of what its source held until then."""
        sources = {source for source, _ in copies}
        self._publish(*sources)
        contents = self._ledger.copied(copies)
        self._ledger.clear(self._dead)
        self._ledger.paste(contents)
        self._spoil(self._dead - sources)

    def _spoil(self, blocks: set[int]) -> None:
        if self._kv is not None and self._poison and (fresh := blocks - self._poisoned):
            self._kv.fill_blocks(sorted(fresh), NAN)
            self._poisoned |= fresh

    # Slots that are written and read.

    def _write(self, chunks: Iterable[tuple[Chunk, _Holder]], step: int) -> None:
        size, counts = self._ledger.block_size, self._scheduler.pool.ref_counts
        shared, poisoned = self._shared, self._poisoned
        for chunk, one in chunks:
            start, count = chunk.start, chunk.num_tokens
            if one.upto != start:
                self._flush(chunk.request, one)
                self._suspects.add(chunk.request)
            one.upto = start + count
            if count == 1:
                one.pending.append(step)
                block = one.table[start // size]
                if counts[block] == 1 and block not in shared and not poisoned:
                    continue
            else:
                one.pending += [step] * count
            for block in one.table[start // size : -(-one.upto // size)]:
                if counts[block] != 1:
                    self._fail(chunk.request, self._written_over(chunk.request, step, block, start))
                if block in shared:
                    self._touched(block)
                poisoned.discard(block)

    def _check(self, chunk: Chunk, step: int) -> None:
        request, stop = chunk.request, chunk.start + chunk.num_tokens
        one = self._holders[request]
        self._publish(*one.table)
        slots, expected = self._ledger.slots(one.table, stop), one.expected
        self._suspects.discard(request)
        held = self._ledger.digest[slots]
        wrong = (held != expected.upto(stop)) & (held != UNKNOWN)
        # Whether tokens of a prefix are equal, only the record can say where it does not tell them.
        hit = slice(self._hit.get(request, 0))
        wrong[hit] &= (held[hit] == EMPTY) | (expected.known & ~self._ledger.vague[slots[hit]])
        if wrong.any():
            position = int(wrong.argmax())
            slot = int(slots[position])
            read = self._read(slot)
            unwritten = bool(self._ledger.digest[slot] == EMPTY)
            self._fail(
                request, misread(request, step, position, read, free=self._is_free(read.block), unwritten=unwritten)
            )

    def _check_cache(self, kv: StampedCache, chunk: Chunk, step: int, copied_from: dict[int, int]) -> None:
        """Whether the cache holds what the plans have written so far: a replay may have computed only some of it."""
        # What this step writes, and copies, is still to come.
        table = chunk.request.blocks
        if copied_from:
            table = [copied_from.get(block, block) for block in table]
        slots = self._ledger.slots(table, chunk.start)
        wrong = kv.position[slots] != np.arange(slots.size)
        if wrong.any():
            self._publish(*table)
            wrong &= self._ledger.written_step[slots] != step  # by another request that shares the block
        if wrong.any():
            position = int(wrong.argmax())
            read = self._read(int(slots[position]))
            self.not_computed.append(not_computed(chunk.request, step, position, read))

    def _written_over(self, request: Request, step: int, block: int, start: int) -> Failure:
        size = self._ledger.block_size
        position = max(start, self._holders[request].table.index(block) * size)
        read = self._read(block * size + position % size)
        return written_over(request, step, position, read, free=self._is_free(block))

    def _is_free(self, block: int) -> bool:
        return self._scheduler.pool.ref_counts[block] == 0

    @property
    def ledger(self) -> SlotLedger:
        """What every slot holds by the steps so far."""
        for request, one in self._holders.items():
            self._flush(request, one)
        return self._ledger

    def last_writer(self, block: int, slot: int) -> str | None:
        """Id of the request that a slot of a block was last written for."""
        self._publish(block)
        return self._ledger.writer(block * self._ledger.block_size + slot)

    def written_steps(self, block: int) -> NDArray[np.int64]:
        """The step that wrote each slot of a block last; -1 where none of the record did."""
        self._publish(block)
        size = self._ledger.block_size
        return self._ledger.written_step[block * size : (block + 1) * size]

    def _read(self, slot: int) -> SlotRead:
        ledger = self._ledger
        block, place = divmod(slot, ledger.block_size)
        self._publish(block)
        step, position = int(ledger.written_step[slot]), int(ledger.position[slot])
        return SlotRead(
            block=block,
            slot=place,
            writer=ledger.writer(slot),
            writer_position=position if position >= 0 else None,
            written_by_step=step if step >= 0 else None,
        )

    def _fail(self, request: Request, failure: Failure) -> None:
        """Once for each request: what it does afterwards follows from it."""
        if request in self._met:
            return
        self._met.add(request)
        self.found.append(failure)
        self._new.append(failure)
        assert failure.read is not None
        self._spoilt.setdefault(failure.read.block, failure)
