"""The recorded scheduler: takes a dead process's decisions, and does its own bookkeeping.

What is taken from the record is what came from outside or was a choice: arrivals, aborts, who ran, in which order,
with how many tokens. What is not taken is any consequence: blocks come from the real pool, what is cached from the
tokens, exhaustion from asking the pool, and ends from the tokens. Each consequence is compared with the recorded one,
and the first that differs is kept as `difference`. Other physical blocks leave the choices valid. A request that found
a block where it had found none, or the reverse, or that had more or less of its tokens cached, or that ended otherwise,
does not: from there on the record describes another run, and the live scheduler goes on from the state reached.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from dumps.prefix_hash import CachedBlock
from replay.engine.block_pool import BlockPool
from replay.engine.defects import NO_DEFECTS, Defects
from replay.engine.live import Cached, LiveScheduler
from replay.engine.prefix_cache import PrefixCache
from replay.engine.request import Request, Status
from replay.engine.schedule import (
    Chunk,
    EngineConfig,
    Exhausted,
    Finish,
    Outcome,
    PrefixHit,
    Sample,
    StepPlan,
    StopCheck,
)

GOES_ON = "goes on"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A step of a dump with its requests resolved. ``completed`` is False for the one the process died in."""

    index: int
    chunks: tuple[Chunk, ...] = ()
    arrived: tuple[Request, ...] = ()
    aborted: tuple[Finish, ...] = ()
    admitted: tuple[Request, ...] = ()
    exhausted: tuple[Exhausted, ...] = ()
    finished: tuple[Finish, ...] = ()
    prefix_hits: tuple[PrefixHit, ...] = ()
    completed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState:
    """Scheduler state before the first recorded step. The requests carry their own tokens, blocks and progress;
    ``cached`` is what the prefix cache knew, in order of registration."""

    free_blocks: tuple[int, ...]
    running: tuple[Request, ...]
    waiting: tuple[Request, ...]
    cached: tuple[CachedBlock, ...] = ()


@dataclass(frozen=True, slots=True)
class ScheduleDifference:
    """A consequence that came out otherwise than recorded. ``what`` is "status", "prefix", "blocks", "chunk", "ids" or
    "end"."""

    step: int
    request_id: str
    what: str
    recorded: str
    replayed: str


@dataclass(frozen=True, slots=True)
class _Turn:
    """One request's turn in a step: the times it found no block, and then the chunk it got, if any."""

    request: Request
    exhausted: tuple[Exhausted, ...]
    chunk: Chunk | None


class RecordedScheduler(LiveScheduler):
    """Follows ``steps``, then schedules live. `following` says which of the two it is doing."""

    def __init__(
        self,
        config: EngineConfig,
        steps: Sequence[RecordedStep],
        *,
        start: StartState | None = None,
        eos_token_ids: Collection[int] = (),
        stop_check: StopCheck | None = None,
        rederive: bool = False,
        defects: Defects = NO_DEFECTS,
        late: Sequence[Request] = (),
    ) -> None:
        """``rederive`` takes only arrivals and aborts from the record, schedules live, and compares each step. ``late``
        came after the last of ``steps``: see `come_late`."""
        first_step = steps[0].index if steps else 0
        super().__init__(
            config, eos_token_ids=eos_token_ids, stop_check=stop_check, first_step=first_step, defects=defects
        )
        self.difference: ScheduleDifference | None = None
        self._left_record = rederive
        self._steps = tuple(steps)
        self._next = 0
        self._late = tuple(late)
        self._hits: dict[Request, PrefixHit] = {}
        self._blind = self.cache is not None and _tokens_missing(steps, start)
        if start is not None:
            self._begin_at(start)

    def _begin_at(self, start: StartState) -> None:
        # A pool that --set made larger has its extra blocks behind the recorded ones.
        total, tables = self.config.num_blocks, [request.blocks for request in start.running]
        known = {*start.free_blocks, *(block for table in tables for block in table)}
        free = [block for block in start.free_blocks if block < total]
        free += (block for block in range(total) if block not in known)
        self.pool = BlockPool(total, free=free, used=tables)
        if self.cache is not None:
            entries = [entry for entry in start.cached if entry.block < total]
            self.cache = self.pool.cache = PrefixCache(self.config.block_size, entries)
        self.running = list(start.running)
        self.waiting.extend(start.waiting)

    @property
    def following(self) -> bool:
        return not self._left_record and self._next < len(self._steps)

    @property
    def record_exhausted(self) -> bool:
        return self._next >= len(self._steps)

    @property
    def record(self) -> RecordedStep | None:
        """The recorded step that the last plan was made from, or None if that was scheduled live."""
        step = self._steps[self._next - 1] if self._next else None
        return step if step is not None and step.index == self.next_step - 1 else None

    def come_late(self) -> None:
        """Queue the requests that came after the last step."""
        for request in self._late:
            self.add(request)
        self._late = ()

    def plan(self) -> StepPlan | None:
        if self._next >= len(self._steps):
            self._hits = {}
            return super().plan()
        step = self._steps[self._next]
        self._next += 1
        self._hits = {hit.request: hit for hit in step.prefix_hits}
        for request in step.arrived:
            self.add(request)
        for finish in step.aborted:
            self.abort(finish.request, finish.cause)
        if self._left_record:  # what came from outside still comes; the choices are our own now
            own = super().plan()
            self._compare(step, own)
            return own
        plan = self._begin()
        if step.exhausted:
            for turn in _turns(step):
                self._take(plan, turn, admitted=turn.request in step.admitted)
        else:
            for chunk in step.chunks:
                if not self._as_recorded(plan, chunk):
                    self._take(plan, _Turn(chunk.request, (), chunk), admitted=chunk.request in step.admitted)
        self.next_step += 1
        return plan

    def commit(self, plan: StepPlan, samples: dict[str, Sample]) -> list[Finish]:
        """As the live scheduler. Where another request ends than the recorded one, the record is of another run."""
        record = None if self._left_record else self.record
        finished = super().commit(plan, samples)
        if record is not None and record.completed:
            ours = {f.request.id: f.cause.value for f in (*plan.finished, *finished)}
            theirs = {f.request.id: f.cause.value for f in record.finished}
            for finish in (*record.finished, *plan.finished, *finished):
                recorded, replayed = theirs.get(finish.request.id, GOES_ON), ours.get(finish.request.id, GOES_ON)
                if recorded != replayed:
                    self._differ(plan, finish.request, "end", recorded, replayed)
        return finished

    def _as_recorded(self, plan: StepPlan, chunk: Chunk) -> bool:
        """Plan the usual chunk, of a running request that needs no block and was given none. False for any other."""
        request = chunk.request
        known = len(request.tokens)
        if (
            request.status is not Status.RUNNING
            or chunk.new_blocks
            or chunk.start != request.num_computed
            or not chunk.start < chunk.start + chunk.num_tokens <= known <= len(request.blocks) * self.config.block_size
        ):
            return False
        plan.chunks.append(chunk)
        return True

    def _take(self, plan: StepPlan, turn: _Turn, *, admitted: bool) -> None:
        request, recorded = turn.request, turn.chunk
        if admitted and request in self.waiting and self._fits(request):
            self._admit(plan, request)
            self._compare_hit(plan, request)
        if request.status is not Status.RUNNING:
            self._differ(plan, request, "status", "running", request.status.value)
            return
        chunks, exhausted = len(plan.chunks), len(plan.exhausted)
        wanted = recorded.num_tokens if recorded else request.num_tokens - request.num_computed
        self._schedule(plan, request, min(wanted, request.num_tokens - request.num_computed))
        got = plan.chunks[chunks] if len(plan.chunks) > chunks else None
        asked = tuple(_words(e) for e in turn.exhausted)
        found = tuple(_words(e) for e in plan.exhausted[exhausted:])
        if asked != found:
            self._differ(
                plan, request, "blocks", "; ".join(asked) or _granted(recorded), "; ".join(found) or _granted(got)
            )
        elif _tokens(recorded) != _tokens(got):
            self._differ(plan, request, "chunk", _granted(recorded), _granted(got))
        elif recorded and got and recorded.new_blocks != got.new_blocks:
            self._differ(plan, request, "ids", _granted(recorded), _granted(got))

    def _cached(self, request: Request) -> Cached | None:
        """As the live scheduler; where the record lacks tokens of some request, what it says was cached."""
        if not self._blind:
            return super()._cached(request)
        hit = self._hits.get(request)
        if hit is None or not self._possible(hit):
            return None
        shared = hit.blocks if hit.copied_from is None else hit.blocks[:-1]
        return Cached(hit.num_tokens, shared, hit.copied_from)

    def _possible(self, hit: PrefixHit) -> bool:
        """Whether a recorded hit fits this pool and itself; a dump can say anything."""
        whole, rest = divmod(hit.num_tokens, self.config.block_size)
        return (
            0 < hit.num_tokens < hit.request.num_tokens
            and len(hit.blocks) == whole + (rest > 0)
            and (hit.copied_from is not None) == (rest > 0)
            and all(0 <= block < self.config.num_blocks for block in (*hit.blocks, hit.copied_from or 0))
        )

    def _compare_hit(self, plan: StepPlan, request: Request) -> None:
        """Compare what an admitted request had cached. Only another number of tokens makes another run."""
        recorded = self._hits.get(request)
        own = plan.prefix_hits[-1] if plan.prefix_hits and plan.prefix_hits[-1].request is request else None
        if recorded != own:
            same = recorded is not None and own is not None and recorded.num_tokens == own.num_tokens
            self._differ(plan, request, "ids" if same else "prefix", _held(recorded), _held(own))

    def _compare(self, step: RecordedStep, plan: StepPlan | None) -> None:
        """Keep the first step in which our own choices were not the recorded ones."""
        ours = {hit.request: hit for hit in plan.prefix_hits} if plan else {}
        if self.difference is None and ours != self._hits:
            request = next(r for r in (*self._hits, *ours) if self._hits.get(r) != ours.get(r))
            self.difference = ScheduleDifference(
                step.index, request.id, "prefix", _held(self._hits.get(request)), _held(ours.get(request))
            )
        recorded = [_choice(chunk) for chunk in step.chunks]
        replayed = [_choice(chunk) for chunk in plan.chunks] if plan else []
        if self.difference is None and recorded != replayed:
            pair = next(
                (r, o) for r, o in zip_longest(recorded, replayed, fillvalue=("", "nothing scheduled")) if r != o
            )
            self.difference = ScheduleDifference(step.index, pair[0][0] or pair[1][0], "chunk", pair[0][1], pair[1][1])

    def _differ(self, plan: StepPlan, request: Request, what: str, recorded: str, replayed: str) -> None:
        if self.difference is None:
            self.difference = ScheduleDifference(plan.index, request.id, what, recorded, replayed)
        self._left_record |= what != "ids"


def _turns(step: RecordedStep) -> list[_Turn]:
    """The step's turns in order. Failed attempts directly before a chunk of the same request belong to its turn.

    One that was preempted has had its turn; with a prefix cache it may be admitted again in the same step.
    """
    turns: list[_Turn] = []
    attempts = list(step.exhausted)
    for number in range(len(step.chunks) + 1):
        chunk = step.chunks[number] if number < len(step.chunks) else None
        mine: list[Exhausted] = []
        while attempts and attempts[0].before_chunk == number:
            attempt = attempts.pop(0)
            if mine and attempt.request is not mine[0].request:
                turns.append(_Turn(mine[0].request, tuple(mine), None))
                mine = []
            mine.append(attempt)
            if attempt.outcome is not Outcome.PREEMPT_OTHER:
                turns.append(_Turn(attempt.request, tuple(mine), None))
                mine = []
        if mine and (chunk is None or chunk.request is not mine[0].request):
            turns.append(_Turn(mine[0].request, tuple(mine), None))
            mine = []
        if chunk is not None:
            turns.append(_Turn(chunk.request, tuple(mine), chunk))
    return turns


def _tokens_missing(steps: Sequence[RecordedStep], start: StartState | None) -> bool:
    """Whether a request of the record has unknown tokens, so that not all hashes can be worked out."""
    known = [*start.running, *start.waiting] if start is not None else []
    return any(min(request.tokens, default=0) < 0 for request in known) or any(
        min(request.tokens, default=0) < 0 for step in steps for request in step.arrived
    )


def _held(hit: PrefixHit | None) -> str:
    if hit is None:
        return "nothing cached"
    copied = f", the last a copy of block {hit.copied_from}" if hit.copied_from is not None else ""
    return f"tokens 0..{hit.num_tokens - 1} cached in blocks {list(hit.blocks)}{copied}"


def _tokens(chunk: Chunk | None) -> tuple[int, int] | None:
    return (chunk.start, chunk.num_tokens) if chunk else None


def _choice(chunk: Chunk) -> tuple[str, str]:
    return chunk.request.id, _granted(chunk)


def _granted(chunk: Chunk | None) -> str:
    if chunk is None:
        return "nothing scheduled"
    blocks = f" in new blocks {list(chunk.new_blocks)}" if chunk.new_blocks else ""
    return f"tokens {chunk.start}..{chunk.start + chunk.num_tokens - 1}{blocks}"


def _words(attempt: Exhausted) -> str:
    victim = f" {attempt.victim.id}" if attempt.victim else ""
    return f"needed {attempt.blocks_needed} block(s), {attempt.blocks_free} free: {attempt.outcome.value}{victim}"
