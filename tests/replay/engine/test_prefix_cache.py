"""The prefix cache against brute force: whose tokens lie in every block that it hands to a request."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumps.prefix_hash import block_hash, chain_of
from replay.engine.block_pool import BlockPool
from replay.engine.defects import Defects
from replay.engine.engine import Engine
from replay.engine.live import LiveScheduler
from replay.engine.recorded import RecordedScheduler
from replay.engine.request import FinishCause, Request, SamplingParams
from replay.engine.schedule import EngineConfig, OnExhausted, PrefixHit, Sample, StepPlan
from tests.sharing import Guest, Memory, Taken, engine_on, loads, play


def request(name: str, tokens: list[int], max_tokens: int = 1) -> Request:
    return Request(id=name, tokens=list(tokens), num_prompt=len(tokens), sampling=SamplingParams(max_tokens=max_tokens))


def config_of(**changes: object) -> EngineConfig:
    values = {"num_blocks": 16, "block_size": 4, "max_model_len": 64, "max_num_batched_tokens": 64}
    return EngineConfig(**(values | {"prefix_cache": True} | changes))  # type: ignore[arg-type]


class Compared(LiveScheduler):
    """Compares each hit with the longest prefix that any registered block holds, found by looking at them all."""

    memory: Memory
    hits = 0

    def _admit(self, plan: StepPlan, request: Request | None = None) -> Request:
        assert self.cache is not None
        size, head, found = self.config.block_size, self.waiting[0], 0
        held = {self.memory.slots[entry.block * size + size - 1] for entry in self.cache.entries}
        while found + size <= head.num_tokens and tuple(head.tokens[: found + size]) in held:
            found += size
        admitted = super()._admit(plan, request)
        taken = [hit.num_tokens for hit in plan.prefix_hits if hit.request is admitted] or [0]
        assert taken == [min(found, head.num_tokens - 1)]
        self.hits += taken != [0]
        return admitted


SEEN_HITS: list[int] = []


@given(loads())
def test_every_hit_holds_its_requests_own_tokens_and_is_the_longest_there_is(load):
    config, guests = load
    scheduler = Compared(config)
    scheduler.memory = Memory(config)
    play(Engine(scheduler=scheduler, executor=scheduler.memory), guests)
    assert scheduler.pool.num_free == config.num_blocks
    SEEN_HITS.append(scheduler.hits)


def test_the_loads_of_the_test_before_have_hits():
    assert sum(hits > 0 for hits in SEEN_HITS) > len(SEEN_HITS) // 5


@given(loads())
def test_answers_are_the_same_with_and_without_it(load):
    config, guests = load
    config = replace(config, num_blocks=200)  # who is cut by an empty pool depends on what is shared
    answers = []
    for cached in (True, False):
        engine, _ = engine_on(replace(config, prefix_cache=cached))
        done = play(engine, [replace(guest, stays=1_000) for guest in guests])
        answers.append({name: (r.tokens, r.finish_cause) for name, r in done.items()})
    assert answers[0] == answers[1]


@given(loads())
def test_the_record_of_a_run_replays_without_difference(load):
    config, guests = load
    taken = Taken()
    live, _ = engine_on(config, taken)
    before = play(live, guests)
    for rederive in (False, True):
        fresh = Taken()
        steps = [fresh_step(step, fresh) for step in taken.steps]
        scheduler = RecordedScheduler(config, steps, rederive=rederive)
        replayed = Engine(scheduler=scheduler, executor=Memory(config))
        while not scheduler.record_exhausted:
            assert replayed.step() is not None
            scheduler.check_integrity()
        assert scheduler.difference is None
        assert list(scheduler.pool.free) == list(live.scheduler.pool.free)
        assert scheduler.cache is not None
        assert live.scheduler.cache is not None
        assert scheduler.cache.entries == live.scheduler.cache.entries
        for name, copy in fresh.copies.items():
            assert (copy.tokens, copy.finish_cause) == (before[name].tokens, before[name].finish_cause)


def fresh_step(step, fresh):
    """The step over with requests that nobody has run yet."""

    def ends(finishes):
        return tuple(replace(f, request=fresh.copy(f.request)) for f in finishes)

    return replace(
        step,
        chunks=tuple(replace(c, request=fresh.copy(c.request)) for c in step.chunks),
        arrived=tuple(map(fresh.copy, step.arrived)),
        admitted=tuple(map(fresh.copy, step.admitted)),
        aborted=ends(step.aborted),
        finished=ends(step.finished),
        exhausted=tuple(
            replace(e, request=fresh.copy(e.request), victim=fresh.copy(e.victim) if e.victim else None)
            for e in step.exhausted
        ),
        prefix_hits=tuple(replace(h, request=fresh.copy(h.request)) for h in step.prefix_hits),
    )


def test_a_second_request_computes_only_what_differs():
    engine, _ = engine_on(config_of())
    first, second = request("a", list(range(10))), request("b", [*range(8), 99, 98])
    engine.add(first)
    engine.step()
    engine.add(second)
    outcome = engine.step()
    assert outcome is not None
    assert outcome.plan.prefix_hits == [PrefixHit(second, 8, (0, 1))]
    assert [(c.start, c.num_tokens, c.new_blocks) for c in outcome.plan.chunks] == [(8, 2, (3,))]


def test_where_all_is_cached_the_last_block_is_copied_and_the_last_token_computed():
    engine, memory = engine_on(config_of())
    engine.add(request("a", list(range(8))))
    engine.step()
    again = request("b", list(range(8)), max_tokens=3)
    engine.add(again)
    outcome = engine.step()
    assert outcome is not None
    assert outcome.plan.prefix_hits == [PrefixHit(again, 7, (0, 2), copied_from=1)]
    assert outcome.plan.copies == [(1, 2)]
    assert [(c.start, c.num_tokens) for c in outcome.plan.chunks] == [(7, 1)]
    assert engine.scheduler.cache is not None
    assert [entry.block for entry in engine.scheduler.cache.entries] == [0, 1], "the copy has no hash of its own"
    memory.read(again, 8)


def test_a_pool_with_no_room_for_a_copy_hands_out_the_block_itself():
    engine, memory = engine_on(config_of(num_blocks=2))
    for name in ("a", "b"):
        again = request(name, list(range(8)))
        engine.add(again)
        outcome = engine.step()
    assert outcome is not None
    assert outcome.plan.prefix_hits == [PrefixHit(again, 7, (0, 1), copied_from=1)]
    memory.slots.clear()  # nothing was copied over anything
    engine.scheduler.check_integrity()


def test_a_running_request_shares_its_blocks():
    engine, _ = engine_on(config_of(num_blocks=4))
    first, second = request("a", list(range(8)), max_tokens=9), request("b", [*range(8), 50], max_tokens=1)
    engine.add(first)
    engine.step()
    engine.add(second)
    engine.step()
    assert engine.scheduler.pool.ref_counts[:2] == [1, 1], "the second has ended and given its references back"
    assert first.blocks[:2] == [0, 1]
    third = request("c", [*range(8), 60], max_tokens=5)
    engine.add(third)
    engine.step()
    assert third.blocks[:2] == first.blocks[:2]
    assert engine.scheduler.pool.ref_counts[:2] == [2, 2]


def test_the_front_of_the_free_list_is_evicted_first_and_a_hit_takes_a_block_out_of_it():
    events: list[tuple[str, int]] = []
    engine, _ = engine_on(config_of(num_blocks=4))
    engine.scheduler.pool.watch = lambda event, block: events.append((event, block))
    engine.add(request("a", list(range(8))))  # blocks 0 and 1, then one for the token that it draws
    engine.step()
    assert list(engine.scheduler.pool.free) == [2, 3, 1, 0]
    events.clear()
    engine.add(request("b", [*range(4), 7, 7, 7]))
    engine.step()
    assert events == [("share", 0), ("allocate", 2), ("free", 2), ("free", 0)]
    events.clear()
    engine.add(request("c", [9] * 12))
    engine.step()
    assert events[:4] == [("allocate", 3), ("evict", 1), ("allocate", 1), ("allocate", 2)]
    assert engine.scheduler.cache is not None
    assert 1 not in [entry.block for entry in engine.scheduler.cache.entries if entry.hash == chain_of(range(8), 4)[1]]


def test_a_preempted_request_finds_its_own_blocks_again():
    engine, _ = engine_on(config_of(num_blocks=4, on_kv_exhausted=OnExhausted.PREEMPT))
    a, b = request("a", [1, 1, 1, 1], max_tokens=8), request("b", [2, 2, 2, 2], max_tokens=8)
    engine.add(a)
    engine.add(b)
    hits = []
    while (outcome := engine.step()) is not None:
        hits += [hit for hit in outcome.plan.prefix_hits if hit.request is b]
        engine.scheduler.check_integrity()
    assert [hit.num_tokens for hit in hits] == [4]
    assert (a.num_output, b.num_output) == (8, 8)


@pytest.mark.parametrize("at", ["prefill", "between"])
def test_an_abort_registers_nothing_that_was_not_written(at):
    engine, memory = engine_on(config_of(max_num_batched_tokens=4))
    gone = request("a", list(range(12)))
    engine.add(gone)
    if at == "prefill":
        engine.step()
        engine.abort(gone, FinishCause.CLIENT_GONE)
        engine.step()
    else:
        plan = engine.scheduler.plan()
        assert plan is not None
        engine.abort(gone, FinishCause.CLIENT_GONE)
        engine.scheduler.commit(plan, {"a": Sample(0)})
        memory.execute(plan) if gone.blocks else None
    engine.scheduler.check_integrity()
    retry = request("b", list(range(12)))
    engine.add(retry)
    outcome = engine.step()
    assert outcome is not None
    expected = [PrefixHit(retry, 4, (0,))] if at == "prefill" else []
    assert outcome.plan.prefix_hits == expected


def test_numbers_that_are_not_finite_are_not_handed_on():
    config = config_of()
    engine, memory = engine_on(config)
    memory.execute = lambda plan: {c.request.id: Sample(0, finite=False) for c in plan.chunks if c.samples}  # type: ignore[method-assign]
    engine.add(request("a", list(range(8))))
    engine.step()
    assert engine.scheduler.cache is not None
    assert engine.scheduler.cache.entries == []


def test_registering_early_hands_out_blocks_that_were_never_written():
    """The defect behind prefix-leak: a cancelled prefill leaves its blocks known, and a retry reads what is in them."""
    config = config_of(max_num_batched_tokens=4)
    memory = Memory(config)
    scheduler = LiveScheduler(config, defects=Defects(register_early=True))
    engine = Engine(scheduler=scheduler, executor=memory)
    gone = request("a", list(range(12)))
    engine.add(gone)
    engine.step()
    engine.abort(gone, FinishCause.CLIENT_GONE)
    engine.step()
    retry = request("b", list(range(12)))
    engine.add(retry)
    plan = scheduler.plan()
    assert plan is not None
    assert plan.prefix_hits[0].num_tokens == 11
    with pytest.raises(KeyError):  # nothing was ever written to the block that it copies
        memory.execute(plan)


@pytest.mark.parametrize("defect", [False, True])
def test_an_abort_after_the_end_is_nothing_or_the_defect(defect):
    config = config_of()
    scheduler = LiveScheduler(config, defects=Defects(abort_twice=defect))
    engine = Engine(scheduler=scheduler, executor=Memory(config))
    done = request("a", [1, 2])
    engine.add(done)
    engine.step()
    assert done.finished
    engine.abort(done, FinishCause.CLIENT_GONE)
    if defect:
        with pytest.raises(KeyError, match="a"):
            engine.step()
    else:
        assert engine.step() is None


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20), st.integers(1, 5))
def test_a_hash_stands_for_every_token_up_to_its_block(tokens, size):
    hashes = chain_of(tokens, size)
    assert len(hashes) == len(tokens) // size
    assert len(set(hashes)) == len(hashes)
    for place in range(len(hashes) * size):
        other = [token ^ 1 if at == place else token for at, token in enumerate(tokens)]
        same = [ours == theirs for ours, theirs in zip(hashes, chain_of(other, size), strict=True)]
        assert same == [True] * (place // size) + [False] * (len(hashes) - place // size)


def test_a_hash_is_the_same_everywhere():
    assert block_hash(b"", [1, 2, -1]).hex() == "67348348c2e1789da508f7854c02ca4e"
    assert block_hash(block_hash(b"", [1, 2, -1]), [70000]).hex() == "195c4c0053dfb137f0dd546ffb2e4156"


def test_unknown_tokens_have_no_hash():
    engine, _ = engine_on(config_of())
    cache = engine.scheduler.cache
    assert cache is not None
    assert len(cache.chain(request("a", [1, 2, 3, 4, 5, 6, -1, 8, 9, 9, 9, 9]), 3)) == 1


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


def test_a_pool_knows_shared_tables():
    pool = BlockPool(4, free=[3], used=[[0, 1], [0, 2]])
    assert pool.ref_counts == [2, 1, 1, 0]
    pool.release([0, 1])
    assert list(pool.free) == [3, 1]
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([[0, 1]])


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
