"""Hits of the prefix cache in a record, followed by a recorded scheduler: as they were, altered, or left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replay.engine.engine import Engine
from replay.engine.recorded import RecordedScheduler
from replay.engine.schedule import EngineConfig, Sample
from tests.sharing import Guest, Memory, Taken, config_of, engine_on, play


def recorded_pair() -> tuple[EngineConfig, Taken]:
    config, taken = config_of(num_blocks=8), Taken()
    engine, _ = engine_on(config, taken)
    play(engine, [Guest(0, tuple(range(8)), 6, 99), Guest(2, (*range(8), 7), 3, 99), Guest(3, tuple(range(8)), 3, 99)])
    assert [len(step.prefix_hits) for step in taken.steps[:4]] == [0, 0, 1, 1]
    return config, taken


def test_another_block_in_a_recorded_hit_is_named_and_the_choices_still_hold():
    config, taken = recorded_pair()
    hit = taken.steps[2].prefix_hits[0]
    taken.steps[2] = replace(taken.steps[2], prefix_hits=(replace(hit, blocks=(0, 5)),))
    scheduler = RecordedScheduler(config, taken.steps)
    engine = Engine(scheduler=scheduler, executor=Memory(config))
    while scheduler.following:
        engine.step()
    assert scheduler.difference is not None
    assert (scheduler.difference.what, scheduler.difference.request_id) == ("ids", "r1")
    assert scheduler.difference.recorded == "tokens 0..7 cached in blocks [0, 5]"
    assert scheduler.difference.replayed == "tokens 0..7 cached in blocks [0, 1]"
    assert scheduler.record_exhausted


@pytest.mark.parametrize("rederive", [False, True])
def test_a_hit_that_was_not_recorded_is_another_run(rederive):
    config, taken = recorded_pair()
    taken.steps[3] = replace(taken.steps[3], prefix_hits=())
    scheduler = RecordedScheduler(config, taken.steps, rederive=rederive)
    engine = Engine(scheduler=scheduler, executor=Memory(config))
    while engine.step() is not None:
        scheduler.check_integrity()
    assert scheduler.difference is not None
    assert (scheduler.difference.step, scheduler.difference.what) == (3, "prefix")
    assert scheduler.difference.recorded == "nothing cached"
    assert scheduler.difference.replayed.endswith(f"the last a copy of block {1}")


def test_switched_off_a_record_with_hits_is_left_where_the_first_one_was():
    config, taken = recorded_pair()
    off = replace(config, prefix_cache=False)
    scheduler = RecordedScheduler(off, taken.steps)
    engine = Engine(scheduler=scheduler, executor=Memory(off))
    while engine.step() is not None:
        scheduler.check_integrity()
    assert scheduler.difference is not None
    assert (scheduler.difference.step, scheduler.difference.replayed) == (2, "nothing cached")
    assert [copy.num_output for copy in taken.copies.values()] == [6, 3, 3]


def test_without_token_ids_hits_are_taken_from_the_record():
    config, taken = recorded_pair()
    for copy in taken.copies.values():
        copy.tokens[:] = [-1] * copy.num_prompt
    scheduler = RecordedScheduler(config, taken.steps)
    plans = []
    while scheduler.following:
        plan = scheduler.plan()
        assert plan is not None
        plans.append(plan)
        scheduler.commit(plan, {c.request.id: Sample(-1) for c in plan.chunks if c.samples})
        scheduler.check_integrity()
    assert scheduler.difference is None
    assert sum(len(plan.prefix_hits) for plan in plans) == 2


def test_a_chunk_that_begins_elsewhere_than_computed_is_another_run():
    config, taken = recorded_pair()
    assert taken.steps[2].chunks[0].new_blocks == ()
    chunk = replace(taken.steps[2].chunks[0], start=7)
    taken.steps[2] = replace(taken.steps[2], chunks=(chunk, *taken.steps[2].chunks[1:]))
    scheduler = RecordedScheduler(config, taken.steps)
    engine = Engine(scheduler=scheduler, executor=Memory(config))
    while engine.step() is not None:
        pass
    assert scheduler.difference is not None
    assert (scheduler.difference.what, scheduler.difference.step) == ("chunk", 2)


def test_who_preempts_itself_may_come_back_in_the_same_step():
    """It gives up its own blocks, finds a block of its tokens with another request, and then needs fewer."""
    config, taken = config_of(num_blocks=6, max_num_batched_tokens=8), Taken()
    engine, _ = engine_on(config, taken)
    guests = [Guest(0, (0,), 1, 99), Guest(0, (0,), 5, 4), Guest(0, (0,) * 5, 5, 4), Guest(0, (0,), 5, 4)]
    play(engine, guests)
    step = next(step for step in taken.steps if step.exhausted)
    assert step.exhausted[0].request in step.admitted
    scheduler = RecordedScheduler(config, taken.steps)
    replayed = Engine(scheduler=scheduler, executor=Memory(config))
    while scheduler.following:
        replayed.step()
    assert scheduler.difference is None
