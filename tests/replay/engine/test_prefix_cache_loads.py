"""The prefix cache against brute force: whose tokens lie in every block that it hands to a request."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from replay.engine.engine import Engine
from replay.engine.live import LiveScheduler
from replay.engine.recorded import RecordedScheduler
from replay.engine.request import Request
from replay.engine.schedule import StepPlan
from tests.sharing import Memory, Taken, engine_on, loads, play


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
