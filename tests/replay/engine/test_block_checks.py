"""Checks of what steps read and write: each fires on its defect, and none on any load of a correct engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.engine.block_checks import BlockChecks
from replay.engine.defects import Defects
from replay.engine.engine import Engine, StepOutcome
from replay.engine.failure import Blame, Failure, FailureKind, SlotRead, blame, blamed
from replay.engine.live import LiveScheduler
from replay.engine.recorded import RecordedScheduler, RecordedStep, StartState
from replay.engine.request import FinishCause, Request, SamplingParams, Status
from replay.engine.schedule import Chunk, EngineConfig, OnExhausted, Sample, StepPlan
from replay.errors import KVCacheExhausted

BLOCK = 4


@dataclass
class Memory:
    """An executor and its cache: each slot holds the tokens up to its position, or nothing it was ever given."""

    num_blocks: int
    slots: list[tuple[int, ...] | None] = field(default_factory=list)
    spoilt: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = [None] * (self.num_blocks * BLOCK)
        self.position = np.full(len(self.slots), -1)

    def fill_blocks(self, blocks: Sequence[int], value: float) -> None:
        assert value != value
        for block in blocks:
            self.slots[block * BLOCK : (block + 1) * BLOCK] = [None] * BLOCK
            self.position[block * BLOCK : (block + 1) * BLOCK] = -1
        self.spoilt += blocks

    def execute(self, plan: StepPlan) -> dict[str, Sample]:
        for source, target in plan.copies:
            old, new = (slice(block * BLOCK, (block + 1) * BLOCK) for block in (source, target))
            self.slots[new], self.position[new] = self.slots[old], self.position[old]
        for chunk in plan.chunks:
            for position in range(chunk.start, chunk.start + chunk.num_tokens):
                slot = chunk.request.slot(position, BLOCK)
                self.slots[slot] = tuple(chunk.request.tokens[: position + 1])
                self.position[slot] = position
        # The next token follows from all that is read: contamination would show in it.
        return {chunk.request.id: Sample(hash(self._read(chunk)) % 2) for chunk in plan.chunks if chunk.samples}

    def _read(self, chunk: Chunk) -> tuple[tuple[int, ...] | None, ...]:
        stop = chunk.start + chunk.num_tokens
        return tuple(self.slots[chunk.request.slot(position, BLOCK)] for position in range(stop))


def request(name: str, tokens: Sequence[int], limit: int = 40) -> Request:
    return Request(
        id=name, tokens=list(tokens), num_prompt=len(tokens), sampling=SamplingParams(temperature=0.0, max_tokens=limit)
    )


def config(**changes) -> EngineConfig:
    return EngineConfig(**{"num_blocks": 24, "block_size": BLOCK, "max_model_len": 60, **changes})


class Run:
    """An engine on `Memory` with checks."""

    def __init__(self, *requests: Request, poison: bool = True, **changes) -> None:
        self.scheduler = LiveScheduler(config(**changes))
        self.memory = Memory(self.scheduler.config.num_blocks)
        self.checks = BlockChecks(self.scheduler, self.memory, poison=poison)
        self.engine = Engine(scheduler=self.scheduler, executor=self.memory, hooks=[self.checks])
        for one in requests:
            self.engine.add(one)

    def steps(self, count: int) -> list[StepOutcome]:
        outcomes = [self.engine.step() for _ in range(count)]
        return [outcome for outcome in outcomes if outcome is not None]

    def failures(self, count: int = 1) -> list[Failure]:
        found = [failure for outcome in self.steps(count) for failure in outcome.failures]
        assert all(failure.kind is FailureKind.CONTAMINATION for failure in found)
        assert found == self.checks.found[-len(found) :] or not found
        return found


@pytest.fixture(params=[True, False], ids=["poison", "no poison"])
def poison(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def two(poison) -> tuple[Request, Request, Run]:
    """Two requests of nine and six tokens, after four steps."""
    first, second = request("a", range(9)), request("b", range(20, 26))
    run = Run(first, second, poison=poison)
    assert run.failures(4) == []
    return first, second, run


def test_a_table_that_names_another_requests_block_is_found(two):
    first, second, run = two
    first.blocks[1] = second.blocks[0]
    [failure] = run.failures()
    assert (failure.invariant, failure.request_id, failure.step, failure.position) == ("slot-foreign", "a", 4, 4)
    block = second.blocks[0]
    assert failure.read == SlotRead(block=block, slot=0, writer="b", writer_position=0, written_by_step=0)
    where = f"position 4 in block {block}, slot 0"
    assert failure.message == f"request a reads {where}, which holds position 0 of request b"


def test_a_request_is_told_of_once(two):
    first, second, run = two
    first.blocks[1] = second.blocks[0]
    assert len(run.failures(5)) == 1


def test_blocks_in_the_wrong_order_are_found(two):
    first, _, run = two
    first.blocks[0], first.blocks[1] = first.blocks[1], first.blocks[0]
    [failure] = run.failures()
    assert (failure.invariant, failure.position) == ("slot-foreign", 0)
    assert failure.read is not None
    assert (failure.read.writer, failure.read.writer_position) == ("a", 4)


def test_a_block_on_the_free_list_that_is_still_read_is_found_before_and_after_it_is_given_away(two, poison):
    first, _, run = two
    block = first.blocks[0]
    run.scheduler.pool.release([block])
    [failure] = run.failures()
    assert (failure.invariant, failure.position) == ("slot-freed", 0)
    assert failure.read == SlotRead(block=block, slot=0, writer="a", writer_position=0, written_by_step=0)
    assert (run.memory.slots[block * BLOCK] is None) == poison
    events = [(event.step, event.event, event.request) for event in run.checks.history.of(block)]
    assert events == [(0, "allocate", "a"), (4, "free", None)]


def test_a_block_that_was_given_away_holds_another_requests_token():
    reader = request("a", range(8))
    run = Run(reader, num_blocks=7)
    assert run.failures(2) == []
    block = reader.blocks[0]
    run.scheduler.pool.release([block])
    run.checks._met.add(reader)  # found at once otherwise, before anybody else has the block
    run.engine.add(request("c", range(30, 46), limit=9))
    run.steps(2)
    run.checks._met.clear()
    [failure] = run.failures()
    assert (failure.invariant, failure.request_id, failure.position) == ("slot-foreign", "a", 0)
    assert failure.read == SlotRead(block=block, slot=0, writer="c", writer_position=16, written_by_step=3)
    events = [(event.step, event.event, event.request) for event in run.checks.history.of(block)]
    assert events == [(0, "allocate", "a"), (2, "free", None), (3, "allocate", "c")]


def test_an_exception_follows_from_a_failed_check_only_if_that_was_of_its_block(two):
    first, _, run = two
    run.scheduler.pool.release([first.blocks[0]])
    [failure] = run.failures()
    run.engine.abort(first, FinishCause.CLIENT_GONE)
    with pytest.raises(ValueError, match="released more often") as raised:
        run.engine.step()
    assert blamed(raised.value) == Blame(request_id="a", block=first.blocks[0])
    assert run.checks.behind(raised.value) is failure
    other = ValueError("of a block that no check was about")
    blame(other, Blame(block=first.blocks[1]))
    assert run.checks.behind(other) is None
    assert run.checks.behind(KVCacheExhausted("no block is free", remedy="more blocks")) is None


def test_a_failed_check_of_a_blocks_earlier_owners_is_behind_nothing():
    owner, run = request("a", range(9), limit=20), Run(num_blocks=6)
    run.engine.add(owner)
    run.steps(2)
    block = owner.blocks[0]
    run.scheduler.pool.release([block])
    [failure] = run.failures()
    error = ValueError("released")
    blame(error, Blame(block=block))
    assert run.checks.behind(error) is failure
    run.scheduler.pool.allocate(run.scheduler.pool.num_free)  # the block too, so that its owner may give it back
    run.engine.abort(owner, FinishCause.CLIENT_GONE)
    run.steps(1)
    assert run.checks.behind(error) is None


def test_what_a_step_finds_before_it_raises_is_kept(two, monkeypatch):
    first, second, run = two
    first.blocks[1] = second.blocks[0]
    monkeypatch.setattr(run.memory, "execute", lambda plan: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        run.engine.step()
    assert [failure.request_id for failure in run.checks.untold] == ["a"]


def test_a_write_into_a_block_of_another_table_is_found(two):
    first, second, run = two
    second.blocks[-1] = first.blocks[-1]
    run.scheduler.pool.ref_counts[first.blocks[-1]] += 1
    found = run.failures()
    assert "block-shared" in {failure.invariant for failure in found}
    assert {failure.request_id for failure in found} == {"a", "b"}


def test_a_request_whose_token_another_one_writes_over_is_found_though_its_own_table_is_right(two):
    first, second, run = two
    first.blocks.append(second.blocks[2])
    [failure] = run.failures()
    assert (failure.invariant, failure.request_id, failure.position) == ("slot-foreign", "b", 8)
    assert failure.read == SlotRead(block=second.blocks[2], slot=0, writer="a", writer_position=12, written_by_step=4)


def test_a_request_that_leaves_blocks_which_others_share_is_not_named_when_those_give_them_back(two):
    first, _, run = two
    run.scheduler.pool.share(shared := list(first.blocks))
    run.engine.abort(first, FinishCause.CLIENT_GONE)
    run.steps(1)
    run.scheduler.pool.release(shared)
    run.steps(1)
    events = [(event.event, event.request) for event in run.checks.history.of(shared[0])]
    assert events == [("allocate", "a"), ("share", None), ("free", None)]


def test_a_block_that_was_written_since_is_poisoned_again():
    run = Run(request("a", [5], limit=1), num_blocks=1)
    run.steps(1)
    run.engine.add(request("b", [6, 7], limit=1))
    run.steps(1)
    run.engine.add(request("c", [8], limit=1))
    run.steps(1)
    assert run.memory.spoilt == [0, 0, 0]


def test_a_write_into_a_free_block_is_found(two):
    first, _, run = two
    assert run.failures(1) == []
    assert first.num_computed % BLOCK
    run.scheduler.pool.release([first.blocks[-1]])
    [failure] = run.failures()
    assert (failure.invariant, failure.position) == ("block-freed", first.num_computed - 1)


def test_a_slot_that_nobody_wrote_is_found(two):
    first, _, run = two
    first.num_computed += 1  # as if one more had been computed
    first.tokens.append(1)
    [failure] = run.failures()
    assert (failure.invariant, failure.position) == ("slot-unwritten", first.num_computed - 2)
    assert failure.read is not None
    assert failure.read.writer is None


def test_a_block_that_the_prefix_cache_gives_for_other_tokens_is_found():
    run = Run(request("a", range(9), limit=1), prefix_cache=True)
    assert run.failures(1) == []
    other = request("b", range(40, 49))
    assert run.scheduler.cache is not None
    for entry in run.scheduler.cache.entries:  # its hashes now stand for what was never in those blocks
        run.scheduler.cache.forget(entry.block)
    other.blocks = [0, 1]
    run.scheduler.cache.register(other, 0, 2)
    other.blocks = []
    run.engine.add(other)
    [failure] = run.failures()
    assert (failure.invariant, failure.request_id, failure.position) == ("slot-foreign", "b", 0)
    assert failure.read == SlotRead(block=0, slot=0, writer="a", writer_position=0, written_by_step=0)


@pytest.mark.parametrize("stamp", [-1, 7])
def test_a_cache_that_does_not_hold_what_the_plans_wrote_is_told_of_but_no_failure_of_the_dump(two, stamp):
    first, _, run = two
    slot = first.slot(2, BLOCK)
    run.memory.position[slot] = stamp
    assert run.failures() == []
    [missing] = run.checks.not_computed
    assert (missing.invariant, missing.request_id, missing.position) == ("slot-not-computed", "a", 2)
    assert missing.read == SlotRead(block=first.blocks[0], slot=2, writer="a", writer_position=2, written_by_step=0)


def test_an_unwritten_block_in_the_prefix_cache_is_found_with_its_owners():
    retry, run = request("b", range(12)), Run(prefix_cache=True, max_num_batched_tokens=5)
    cancelled = request("a", range(12))
    run.engine.add(cancelled)
    assert run.failures() == []
    assert run.scheduler.cache is not None
    run.scheduler.cache.register(cancelled, 0, 3)  # what nobody may do yet
    blocks = list(cancelled.blocks)
    run.engine.abort(cancelled, FinishCause.CLIENT_GONE)
    run.engine.add(retry)
    [failure] = run.failures()
    assert (failure.invariant, failure.request_id, failure.position) == ("slot-unwritten", "b", 5)
    assert failure.read == SlotRead(block=blocks[1], slot=1)
    events = [(event.event, event.request) for event in run.checks.history.of(blocks[1])]
    assert events == [("allocate", "a"), ("free", "a"), ("share", "b")]


def test_freed_blocks_are_poisoned_and_cached_ones_only_once_they_are_evicted():
    run = Run(request("a", range(9), limit=1), prefix_cache=True, num_blocks=5)
    run.steps(1)
    assert run.memory.spoilt == [0, 1, 2]  # handed out
    run.memory.spoilt.clear()
    run.engine.add(request("b", range(50, 54), limit=2))
    run.steps(1)
    assert set(run.memory.spoilt) == {2, 3}  # the tail of a, and what b got; 0 and 1 are known to the cache
    run.memory.spoilt.clear()
    run.steps(1)
    run.engine.add(request("c", range(70, 86), limit=2))
    run.steps(1)
    assert {0, 1} & set(run.memory.spoilt)


def test_a_block_that_is_copied_onto_itself_keeps_its_contents():
    run = Run(request("a", range(12), limit=1), prefix_cache=True, num_blocks=3)
    run.steps(1)
    retry = request("b", range(12), limit=1)
    run.engine.add(retry)
    [outcome] = run.steps(1)
    assert outcome.plan.copies == [(2, 2)]  # the only free block is the one to be copied
    assert run.memory.slots == [tuple(range(place + 1)) for place in range(12)]
    assert run.checks.found == []
    assert run.checks.not_computed == []


def test_what_another_request_writes_in_the_same_step_counts_as_computed():
    first, second = request("a", range(9)), request("b", [*range(8), 70, 71])
    run = Run(prefix_cache=True)
    run.scheduler.defects = Defects(register_early=True)  # else nobody knows of a block before the next step
    run.engine.add(first)
    run.engine.add(second)
    [outcome] = run.steps(1)
    assert outcome.plan.prefix_hits[0].num_tokens == 8
    assert {failure.invariant for failure in run.checks.found} == {"block-shared"}  # a writes what b holds
    assert run.checks.not_computed == []


def test_nothing_is_poisoned_where_poison_is_off():
    run = Run(request("a", range(9), limit=1))
    run.checks.computes_into(run.memory, poison=False)
    run.steps(3)
    assert run.memory.spoilt == []


def test_what_runs_when_the_record_begins_is_taken_for_right():
    one, other = request("a", range(9)), request("b", range(9))
    for running, blocks in ((one, [3, 1, 7]), (other, [3, 1, 2])):
        running.blocks, running.num_computed, running.status = blocks, 9, Status.RUNNING
        running.tokens.append(1)
    free = tuple(block for block in range(24) if block not in (1, 2, 3, 7))
    steps = [RecordedStep(index=30, chunks=(Chunk(one, 9, 1), Chunk(other, 9, 1)))]
    scheduler = RecordedScheduler(config(), steps, start=StartState(free_blocks=free, running=(one, other), waiting=()))
    checks = BlockChecks(scheduler)
    engine = Engine(scheduler=scheduler, executor=Memory(24), hooks=[checks])
    engine.step()
    assert checks.found == []
    one.blocks[0] = 1
    engine.step()
    [failure] = checks.found
    assert failure.request_id == "a"
    assert failure.read == SlotRead(block=1, slot=0, writer="b", writer_position=4)


def test_without_token_ids_a_block_of_another_request_is_still_found():
    first, second = request("a", [-1] * 9), request("b", [-1] * 6)
    run = Run(first, second)
    assert run.failures(4) == []
    first.blocks[1] = second.blocks[0]
    [failure] = run.failures()
    assert (failure.invariant, failure.request_id) == ("slot-foreign", "a")


# What a correct engine does.

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=30)


@st.composite
def loads(draw):
    changes = {
        "num_blocks": draw(st.integers(4, 16)),
        "max_model_len": draw(st.sampled_from([16, 40])),
        "max_num_seqs": draw(st.integers(1, 5)),
        "max_num_batched_tokens": draw(st.integers(1, 40)),
        "on_kv_exhausted": draw(st.sampled_from(list(OnExhausted))),
        "prefix_cache": draw(st.booleans()),
    }
    people = [
        (draw(st.integers(0, 20)), draw(prompts), draw(st.integers(1, 12)), draw(st.none() | st.integers(0, 6)))
        for _ in range(draw(st.integers(1, 8)))
    ]
    return changes, people


@given(loads())
def test_none_fires_on_any_load_of_a_correct_engine_and_no_block_in_use_is_poisoned(load):
    changes, people = load
    run = Run(**changes)
    most = min(changes["max_model_len"] - 1, changes["num_blocks"] * BLOCK)
    requests = [request(f"r{n}", tokens[:most], limit) for n, (_, tokens, limit, _) in enumerate(people)]
    for step in range(60):
        for one, (arrives, _, _, leaves) in zip(requests, people, strict=True):
            if step == arrives:
                run.engine.add(one)
            elif leaves is not None and step == arrives + 1 + leaves:
                run.engine.abort(one, FinishCause.CLIENT_GONE)
        try:
            outcome = run.engine.step()
        except KVCacheExhausted:
            break
        if outcome is None:
            continue
        run.scheduler.check_integrity()
        assert not [f for f in outcome.failures if f.kind is FailureKind.CONTAMINATION]
        for one in run.scheduler.running:  # poison would have taken these
            held = [run.memory.slots[one.slot(position, BLOCK)] for position in range(one.num_computed)]
            assert held == [tuple(one.tokens[: position + 1]) for position in range(one.num_computed)]
    assert run.checks.found == []
    assert run.checks.not_computed == []
    in_use = {block for one in run.scheduler.running for block in one.blocks}
    for block in range(changes["num_blocks"]):
        events = [event.event for event in run.checks.history.of(block) if event.event != "evict"]
        assert (bool(events) and events[-1] != "free") == (block in in_use)
        assert all(event.request for event in run.checks.history.of(block) if event.event != "evict")
