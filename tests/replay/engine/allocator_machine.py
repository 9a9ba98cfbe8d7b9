"""The scheduler, its block pool and its prefix cache as a machine whose rules Hypothesis takes in any order.

The parts are the engine's own; the model is `tests.sharing.Memory`, whose slots hold the tokens that they were written
for. The invariants are worked out from block tables and slots alone, not by the engine's own checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from dumps.prefix_hash import chain_of
from replay.engine.live import LiveScheduler
from replay.engine.request import FinishCause, Request, SamplingParams, Status
from replay.engine.schedule import EngineConfig, OnExhausted, Sample, StepPlan
from tests.sharing import VOCAB, Memory

EOS = VOCAB  # no prompt has it, and nothing draws it by itself
TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8)
LIMITS = st.sampled_from([1, 2, 4, 8, 0])  # 0: until the model's limit
GONE = st.sampled_from([FinishCause.CLIENT_GONE, FinishCause.TIMEOUT])
MOST_CHANGES = 1000
"""Of blocks in a step. There are ten blocks, each held by five requests at most."""
ANY = st.integers(0, 11)  # which of those there are


class AllocatorMachine(RuleBasedStateMachine):
    """Requests come, share what others began with, run out of blocks, leave and end; then all of them must have ended.

    A subclass has a policy, and counts in ``seen`` what its runs met, "steps" being the rules that were taken.
    """

    policy: ClassVar[OnExhausted]

    requests: Bundle[Request] = Bundle("requests")
    seen: ClassVar[Counter[str]] = Counter()

    @initialize(
        block_size=st.integers(1, 4),
        num_blocks=st.integers(3, 10),
        max_num_seqs=st.integers(1, 5),
        budget=st.sampled_from([16, 1, 3, 7]),
        prefix_cache=st.sampled_from([True, True, False]),
    )
    def begin(
        self,
        block_size: int,
        num_blocks: int,
        max_num_seqs: int,
        budget: int,
        prefix_cache: bool,
    ) -> None:
        self.config = EngineConfig(
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=min(24, num_blocks * block_size),  # each fits alone, so that none waits forever
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            on_kv_exhausted=self.policy,
            prefix_cache=prefix_cache,
        )
        self.scheduler = LiveScheduler(self.config, eos_token_ids={EOS})
        self.memory = Memory(self.config)
        self.scheduler.pool.watch = self._changed
        self.all: list[Request] = []
        self.admitted: set[Request] = set()
        self.taken = self.sound = self.changes = 0

    # What comes from outside.

    @rule(target=requests, prompt=TOKENS, limit=LIMITS)
    def add(self, prompt: list[int], limit: int) -> Request:
        return self._add(prompt, limit)

    @rule(target=requests, other=requests, cut=st.integers(1, 24), tail=st.lists(st.integers(0, VOCAB - 1), max_size=3))
    def add_one_that_begins_alike(self, other: Request, cut: int, tail: list[int]) -> Request:
        """With the beginning of what another one asked and was answered, or all of it."""
        return self._add([token for token in other.tokens[:cut] if token != EOS] + tail, limit=4)

    @rule(target=requests, other=requests, limit=LIMITS)
    def add_once_more(self, other: Request, limit: int) -> Request:
        return self._add(other.tokens[: other.num_prompt], limit)

    @rule(target=requests, prompts=st.lists(TOKENS, min_size=2, max_size=4))
    def add_several_without_a_limit(self, prompts: list[list[int]]) -> Request:
        return [self._add(prompt, 0) for prompt in prompts][-1]

    @rule(request=requests, cause=GONE)
    def abort(self, request: Request, cause: FinishCause) -> None:
        """At any time; after its end, too, when it must change nothing."""
        self._take("abort after the end" if request.finished else f"abort of one that is {request.status}")
        before = (list(self.scheduler.pool.free), request.finish_cause) if request.finished else None
        self.scheduler.abort(request, cause)
        assert request.finished
        assert before is None or before == (list(self.scheduler.pool.free), request.finish_cause), "a second end"

    @rule(number=ANY, cause=GONE)
    @precondition(lambda self: self.scheduler.running)
    def abort_one_that_runs(self, number: int, cause: FinishCause) -> None:
        self.abort(self._running(number), cause)

    @rule(cause=GONE)
    @precondition(lambda self: len(self.scheduler.running) > 1)
    def abort_one_that_is_preempted(self, cause: FinishCause) -> None:
        """As soon as somebody is, if anybody is."""
        self.step_until_the_pool_is_empty()
        if preempted := [request for request in self.scheduler.waiting if request.status is Status.PREEMPTED]:
            self.abort(preempted[0], cause)

    # What the engine does.

    @rule()
    def step(self) -> None:
        self._take()
        self._step()

    @rule(number=ANY, cause=GONE)
    @precondition(lambda self: self.scheduler.running)
    def step_in_which_one_leaves(self, number: int, cause: FinishCause) -> None:
        """Its tokens are computed and not yet committed."""
        self._take("abort between plan and commit")
        leaving = self._running(number)
        self._step(leaves=lambda: self.scheduler.abort(leaving, cause))

    @rule(number=ANY)
    @precondition(lambda self: self.scheduler.running)
    def step_in_which_one_ends(self, number: int) -> None:
        self._take()
        self._step(instead=(number, Sample(EOS)))

    @rule(number=ANY)
    @precondition(lambda self: self.scheduler.running)
    def step_with_numbers_that_are_not_finite(self, number: int) -> None:
        self._take()
        self._step(instead=(number, Sample(0, finite=False)))

    @rule()
    @precondition(lambda self: len(self.scheduler.running) > 1)
    def step_until_the_pool_is_empty(self) -> None:
        """Or somebody ends."""
        self._take()
        for _ in range(self.config.max_model_len):
            plan = self._step()
            if plan is None or plan.exhausted or len(self.scheduler.running) < 2:
                break
            self._check()

    @rule(number=ANY)
    @precondition(lambda self: self.scheduler.cache is not None and self.scheduler.cache.entries)
    def evict(self, number: int) -> None:
        self._take()
        entries = self.scheduler.cache.entries  # type: ignore[union-attr]
        self.scheduler.pool.evict(entries[number % len(entries)].block)

    # What must hold, whatever happens.

    @invariant()
    def everything_is_as_it_must_be(self) -> None:
        self._check()
        self.sound = self.taken

    def teardown(self) -> None:
        """Every request that was admitted ends, in no more steps than there are tokens to compute, at most twice."""
        if self.taken != self.sound:  # something has failed, and that is what is to be told
            return
        live = [request for request in self.all if not request.finished]
        for _ in range((len(live) + 1) * 2 * (self.config.max_model_len + 1)):
            if not (self.scheduler.waiting or self.scheduler.running):
                break
            self._step()
            self._check()
        left = [request.id for request in self.all if not request.finished]
        assert not left, f"never ends: {', '.join(left)}"
        assert sorted(self.scheduler.pool.free) == list(range(self.config.num_blocks)), "leak: all have ended"

    def _take(self, what: str = "") -> None:
        self.taken += 1
        self.seen["steps"] += 1
        if what:
            self.seen[what] += 1

    def _add(self, prompt: Sequence[int], limit: int) -> Request:
        self._take()
        prompt = list(prompt)[: self.config.max_model_len - 1] or [0]
        request = Request(
            id=f"r{len(self.all)}",
            tokens=prompt,
            num_prompt=len(prompt),
            sampling=SamplingParams(max_tokens=limit),
        )
        self.all.append(request)
        self.scheduler.add(request)
        return request

    def _running(self, number: int) -> Request:
        return self.scheduler.running[number % len(self.scheduler.running)]

    def _changed(self, event: str, block: int) -> None:
        self.seen[event] += 1
        self.changes += 1
        assert self.changes < MOST_CHANGES, "never ends: a step that takes blocks and gives them back"

    def _step(
        self, instead: tuple[int, Sample] | None = None, leaves: Callable[[], None] | None = None
    ) -> StepPlan | None:
        """Plan, compute, commit. ``instead`` has a number, which picks one of those that draw, and what it draws."""
        self.changes = 0
        plan = self.scheduler.plan()
        if plan is None:
            return None
        self._tell(plan)
        self._writes_its_own(plan)
        samples = self.memory.execute(plan)
        if instead is not None and samples:
            number, sample = instead
            samples[list(samples)[number % len(samples)]] = sample
            self.seen["eos" if sample.finite else "non-finite"] += 1
        if leaves is not None:
            leaves()
        self.scheduler.commit(plan, samples)
        return plan

    def _tell(self, plan: StepPlan) -> None:
        self.admitted.update(plan.admitted)
        self.seen.update(event.outcome.value for event in plan.exhausted)
        for hit in plan.prefix_hits:
            self.seen["copy" if hit.copied_from is not None else "hit"] += 1
        note(f"step {plan.index}: {[(c.request.id, c.start, c.num_tokens, c.new_blocks) for c in plan.chunks]}")

    def _check(self) -> None:
        for check in (self._no_aliasing, self._no_leak, self._counts, self._free_list, self._queues, self._contents):
            check()
        if self.scheduler.cache is not None:
            self._cache()

    def _no_aliasing(self) -> None:
        """A block is in two tables only where both have the same tokens in it, all of them computed."""
        size, owners = self.config.block_size, dict[int, tuple[Request, int]]()
        for request in self.scheduler.running:
            for place, block in enumerate(request.blocks):
                other, there = owners.setdefault(block, (request, place))
                if (other, there) == (request, place):
                    continue
                stop = (place + 1) * size
                shared = place == there and request.tokens[:stop] == other.tokens[:stop]
                full = stop <= min(request.num_computed, other.num_computed)
                right = other is not request and shared and full
                assert right, f"aliasing: block {block} is in the tables of {other.id} and {request.id}"

    def _writes_its_own(self, plan: StepPlan) -> None:
        """What a step writes lies in blocks of one table."""
        tables = Counter(block for request in self.scheduler.running for block in request.blocks)
        size = self.config.block_size
        for chunk in plan.chunks:
            written = chunk.request.blocks[chunk.start // size : -(-(chunk.start + chunk.num_tokens) // size)]
            others = [block for block in written if tables[block] > 1]
            assert not others, f"aliasing: {chunk.request.id} writes to blocks {others}, which others have too"

    def _no_leak(self) -> None:
        held = {block for request in self.scheduler.running for block in request.blocks}
        free = set(self.scheduler.pool.free)
        lost = set(range(self.config.num_blocks)) - free - held
        assert not lost, f"leak: blocks {sorted(lost)} are neither free nor in a table"

    def _counts(self) -> None:
        references = Counter(block for request in self.scheduler.running for block in request.blocks)
        counts = self.scheduler.pool.ref_counts
        wrong = {block: (count, references[block]) for block, count in enumerate(counts) if count != references[block]}
        assert not wrong, f"reference counts: (count, references) by block {wrong}"

    def _free_list(self) -> None:
        free = list(self.scheduler.pool.free)
        assert len(free) == len(set(free)), f"free list: a block is in it twice: {free}"
        taken = [block for block in free if self.scheduler.pool.ref_counts[block]]
        assert not taken, f"free list: blocks {taken} are referenced"

    def _queues(self) -> None:
        running, waiting = self.scheduler.running, list(self.scheduler.waiting)
        there = [*running, *waiting]
        assert len(there) == len(set(there)), "queues: a request is in them twice"
        assert all(request.status is Status.RUNNING for request in running), "queues: one runs and is not running"
        for request in self.all:
            assert request.finished != (request in there), f"queues: {request.id} is lost, or stays after its end"
            assert request in running or not request.blocks, f"queues: {request.id} holds blocks and does not run"

    def _contents(self) -> None:
        """What a request has computed is in the slots of its table, and is its own."""
        for request in self.scheduler.running:
            assert request.num_computed <= len(request.blocks) * self.config.block_size, f"{request.id} has no slot"
            self.memory.read(request, request.num_computed)

    def _cache(self) -> None:
        """The cache knows complete blocks only, by the hash of what was written to them, each hash once."""
        size, entries = self.config.block_size, self.scheduler.cache.entries  # type: ignore[union-attr]
        assert len({entry.hash for entry in entries}) == len(entries), "cache: one hash for two blocks"
        for entry in entries:
            first = entry.block * size
            written = [self.memory.slots.get(slot, ()) for slot in range(first, first + size)]
            whole = written[-1]
            wanted = [whole[: len(whole) - size + place + 1] for place in range(size)]
            complete = bool(whole) and len(whole) % size == 0 and written == wanted
            assert complete, f"cache: block {entry.block} is known and was not written to its end"
            assert chain_of(whole, size)[-1] == entry.hash, f"cache: block {entry.block} holds other tokens"
