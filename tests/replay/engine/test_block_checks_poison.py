"""What is poisoned of the cache, and when: what nobody may read any more, and nothing else."""

from __future__ import annotations

from tests.replay.engine.checked_runs import Run, request


def test_a_block_that_was_written_since_is_poisoned_again():
    run = Run(request("a", [5], limit=1), num_blocks=1)
    run.steps(1)
    run.engine.add(request("b", [6, 7], limit=1))
    run.steps(1)
    run.engine.add(request("c", [8], limit=1))
    run.steps(1)
    assert run.memory.spoilt == [0, 0, 0]


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


def test_nothing_is_poisoned_where_poison_is_off():
    run = Run(request("a", range(9), limit=1))
    run.checks.computes_into(run.memory, poison=False)
    run.steps(3)
    assert run.memory.spoilt == []
