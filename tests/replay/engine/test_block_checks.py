"""Checks of what steps read and write: each fires on its defect."""

from __future__ import annotations

import pytest

from replay.engine.block_checks import BlockChecks
from replay.engine.defects import Defects
from replay.engine.engine import Engine
from replay.engine.failure import Blame, SlotRead, blame, blamed
from replay.engine.recorded import RecordedScheduler, RecordedStep, StartState
from replay.engine.request import FinishCause, Request, Status
from replay.engine.schedule import Chunk
from replay.errors import KVCacheExhausted
from tests.replay.engine.checked_runs import BLOCK, Memory, Run, config, request


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
