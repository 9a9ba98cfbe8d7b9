"""Checks that every slot a step reads holds what its request takes it for, and that nobody else is written over.

They follow an engine's plans and need neither model nor cache, so they also run where there is none. Of what a step
reads, every slot must hold the reader's own token at that position, or that of a request whose tokens are equal up to
there. A block that a step writes must be in no other table. A block that became free, and that no prefix cache knows,
holds nothing; with a cache to act on it is filled with NaN, so that a read shows in the numbers too.

A failed check is a failure of kind contamination, one for each request that meets it. It does not stop the engine:
what the dead process did next has to come back as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from replay.engine.engine import StepOutcome
from replay.engine.failure import Failure, FailureKind, SlotRead
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
    has touched them since, unless ``suspect``. ``pending`` are the steps that wrote the positions from
    ``pending_from`` on, which the ledger has not got yet.
    """

    expected: Expected
    blocks: list[int]
    table: list[int] = field(default_factory=list)
    upto: int = 0
    suspect: bool = False
    pending_from: int = 0
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
        self._holding: dict[int, list[Request]] = {}
        self._hit: dict[Request, int] = {}
        self._met: set[Request] = set()
        self._new: list[Failure] = []
        scheduler.pool.watch = self._watch
        self._begin()

    def computes_into(self, kv: StampedCache, *, poison: bool = True) -> None:
        """From the next step on the plans are computed into `kv`, which holds what the steps so far have written."""
        self._kv, self._poison = kv, poison

    def planned(self, plan: StepPlan) -> None:
        """Follow what planning did to the pool, then check the step's reads and writes before it is computed."""
        takers = {block: chunk.request for chunk in plan.chunks for block in chunk.new_blocks}
        takers |= {block: hit.request for hit in plan.prefix_hits for block in hit.blocks}
        self._leave(plan.index, takers)
        self._dead -= self._maybe_known()
        for block in self._dead:
            self._touched(block)
        sources = {source for source, _ in plan.copies}
        for source in sources:
            self._publish(source)
        contents = self._ledger.copied(plan.copies)
        for block in self._dead:
            self._ledger.clear(block)
        self._ledger.paste(contents)
        self._spoil(self._dead - sources)
        self._dead, self._freed = set(), set()
        self._hit.update(dict.fromkeys(plan.admitted, 0))
        self._hit.update((hit.request, hit.num_tokens) for hit in plan.prefix_hits)
        holders = self._holders
        for chunk in plan.chunks:
            one = holders.get(chunk.request)
            if one is None or one.table != chunk.request.blocks:
                self._hold(chunk.request)
        # A layer writes all of a step's keys and values before it reads any.
        self._write(plan.chunks, plan.index)
        for chunk in plan.chunks:
            one = holders[chunk.request]
            if one.upto < chunk.start or one.suspect:
                self._check(one, chunk, plan.index)
            else:
                one.upto = chunk.start + chunk.num_tokens
        if self._kv is not None:
            copied_from = {target: source for source, target in plan.copies}
            for chunk in plan.chunks:
                if chunk.request not in self._met:
                    self._check_cache(self._kv, chunk, plan.index, copied_from)

    def stepped(self, outcome: StepOutcome) -> None:
        """Add what was found, and forget the requests that ended."""
        outcome.failures.extend(self._new)
        self._new = []
        self._leave(outcome.plan.index, {})

    def _begin(self) -> None:
        """Take what is in use when the record begins for right: nobody knows better."""
        scheduler, cache = self._scheduler, self._scheduler.cache
        for block in range(scheduler.config.num_blocks):
            if cache is not None and block in cache:
                self._ledger.trust(block)
        for request in scheduler.running:
            holder = self._hold(request)
            holder.pending += [-1] * request.num_computed
            self._flush(request, holder)
            holder.upto = request.num_computed

    # Blocks that change hands.

    def _watch(self, event: str, block: int) -> None:
        """Nobody may read a block that was handed out, or that nothing refers to any more. A step later copies from
        such a block before anything is computed, so this takes effect when the plan is complete."""
        self._events.append((event, block))
        cache, free = self._scheduler.cache, self._scheduler.pool.ref_counts[block] == 0
        if event == "allocate" or (event in ("free", "evict") and free and not (cache is not None and block in cache)):
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

    def _leave(self, step: int, takers: dict[int, Request]) -> None:
        """Take leave of requests that gave their blocks back, and put the pool's events since the last call on record,
        with the requests that took or gave blocks."""
        left = [(request, one) for request, one in self._holders.items() if request.blocks is not one.blocks]
        for event, block in self._events:
            request: Request | None = None
            if event in ("allocate", "share"):
                request = takers.get(block)
            elif event == "free":
                request = next((giver for giver, one in left if block in one.blocks), None)
            self.history.add(BlockEvent(step, block, event, request.id if request else None))
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
            one = self._holders[request] = _Holder(Expected(request), request.blocks)
        for block in request.blocks[len(one.table) :]:
            one.table.append(block)
            self._holding.setdefault(block, []).append(request)
        return one

    def _drop(self, request: Request, one: _Holder) -> None:
        self._flush(request, one)
        for block in one.table:
            self._holding[block].remove(request)
        del self._holders[request]

    def _touched(self, block: int) -> None:
        """Somebody else got the block, or wrote it: those who hold it look at all of theirs again."""
        for request in self._holding.get(block, ()):
            one = self._holders[request]
            self._flush(request, one)
            one.suspect = True

    def _publish(self, block: int) -> None:
        """Bring the ledger up to date on a block that somebody is about to look at."""
        for request in self._holding.get(block, ()):
            self._flush(request, self._holders[request])

    def _flush(self, request: Request, one: _Holder) -> None:
        if not one.pending:
            return
        start, steps = one.pending_from, np.array(one.pending)
        stop = start + steps.size
        one.pending.clear()
        self._ledger.write(
            self._ledger.slots(one.table, stop)[start:],
            one.expected.upto(stop)[start:],
            writer=request.id,
            start=start,
            steps=steps,
            vague=not one.expected.known,
        )

    def _spoil(self, blocks: set[int]) -> None:
        if self._kv is not None and self._poison and (fresh := blocks - self._poisoned):
            self._kv.fill_blocks(sorted(fresh), NAN)
            self._poisoned |= fresh

    # Slots that are written and read.

    def _write(self, chunks: Sequence[Chunk], step: int) -> None:
        size, counts = self._ledger.block_size, self._scheduler.pool.ref_counts
        holders, holding, poisoned = self._holders, self._holding, self._poisoned
        for chunk in chunks:
            request, start, stop = chunk.request, chunk.start, chunk.start + chunk.num_tokens
            one = holders[request]
            pending = one.pending
            if one.pending_from + len(pending) != start:
                self._flush(request, one)
            if not pending:
                one.pending_from = start
            if stop - start == 1:
                pending.append(step)
            else:
                pending += [step] * (stop - start)
            first, last = start // size, (stop - 1) // size
            for block in (one.table[first],) if first == last else one.table[first : last + 1]:
                if counts[block] != 1:
                    self._fail(request, step, self._written_over(request, block, start))
                if len(holding[block]) > 1:
                    self._touched(block)
                if block in poisoned:
                    poisoned.discard(block)

    def _check(self, one: _Holder, chunk: Chunk, step: int) -> None:
        request, stop = chunk.request, chunk.start + chunk.num_tokens
        for block in one.table:
            self._publish(block)
        slots, expected = self._ledger.slots(one.table, stop), one.expected
        one.upto, one.suspect = stop, False
        held = self._ledger.digest[slots]
        wrong = (held != expected.upto(stop)) & (held != UNKNOWN)
        # Whether tokens of a prefix are equal, only the record can say where it does not tell them.
        hit = slice(self._hit.get(request, 0))
        wrong[hit] &= (held[hit] == EMPTY) | (expected.known & ~self._ledger.vague[slots[hit]])
        if wrong.any():
            one.suspect = True
            position = int(wrong.argmax())
            self._fail(request, step, self._misread(request, position, int(slots[position])))

    def _check_cache(self, kv: StampedCache, chunk: Chunk, step: int, copied_from: dict[int, int]) -> None:
        """Whether the cache holds what the plans have written so far: a replay may have computed only some of it."""
        # What this step writes, and copies, is still to come.
        table = chunk.request.blocks
        if copied_from:
            table = [copied_from.get(block, block) for block in table]
        slots = self._ledger.slots(table, chunk.start)
        wrong = kv.position[slots] != np.arange(slots.size)
        if wrong.any():
            for block in table:
                self._publish(block)
            wrong &= self._ledger.written_step[slots] != step  # by another request that shares the block
        if wrong.any():
            position = int(wrong.argmax())
            slot = int(slots[position])
            block, place = divmod(slot, self._ledger.block_size)
            where = f"request {chunk.request.id} reads position {position} in block {block}, slot {place}"
            message = f"{where}, which was not computed for that position"
            wrong_stamp = ("slot-not-computed", message, position, self._read(slot))
            self.not_computed.append(self._failure(chunk.request, step, wrong_stamp))

    def _misread(self, request: Request, position: int, slot: int) -> tuple[str, str, int, SlotRead]:
        block, place = divmod(slot, self._ledger.block_size)
        where = f"request {request.id} reads position {position} in block {block}, slot {place}"
        read = self._read(slot)
        if self._scheduler.pool.ref_counts[block] == 0:
            return "slot-freed", f"{where}, and the block is free", position, read
        if self._ledger.digest[slot] == EMPTY:
            return "slot-unwritten", f"{where}, not written since the block was handed out", position, read
        writer = f"position {read.writer_position} of request {read.writer}"
        return "slot-foreign", f"{where}, which holds {writer}", position, read

    def _written_over(self, request: Request, block: int, start: int) -> tuple[str, str, int, SlotRead]:
        size = self._ledger.block_size
        position = max(start, self._holders[request].table.index(block) * size)
        where = f"request {request.id} writes position {position} to block {block}"
        read = self._read(block * size + position % size)
        if self._scheduler.pool.ref_counts[block] == 0:
            return "block-freed", f"{where}, which is free", position, read
        return "block-shared", f"{where}, which is in another table too", position, read

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

    def _fail(self, request: Request, step: int, wrong: tuple[str, str, int, SlotRead]) -> None:
        """Once for each request: what it does afterwards follows from it."""
        if request in self._met:
            return
        self._met.add(request)
        failure = self._failure(request, step, wrong)
        self.found.append(failure)
        self._new.append(failure)

    def _failure(self, request: Request, step: int, wrong: tuple[str, str, int, SlotRead]) -> Failure:
        invariant, message, position, read = wrong
        return Failure(
            kind=FailureKind.CONTAMINATION,
            invariant=invariant,
            message=message,
            request_id=request.id,
            step=step,
            position=position,
            read=read,
        )
