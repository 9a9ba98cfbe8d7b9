"""The prefix cache of a live scheduler: which blocks are shared, copied, evicted, and never handed on."""

from __future__ import annotations

import pytest

from dumps.prefix_hash import chain_of
from replay.engine.defects import Defects
from replay.engine.engine import Engine
from replay.engine.live import LiveScheduler
from replay.engine.request import FinishCause
from replay.engine.schedule import OnExhausted, PrefixHit, Sample
from tests.sharing import Memory, config_of, engine_on, request


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


def test_unknown_tokens_have_no_hash():
    engine, _ = engine_on(config_of())
    cache = engine.scheduler.cache
    assert cache is not None
    assert len(cache.chain(request("a", [1, 2, 3, 4, 5, 6, -1, 8, 9, 9, 9, 9]), 3)) == 1
