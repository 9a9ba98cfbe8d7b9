"""On no load of a correct engine a check fires."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replay.engine.failure import FailureKind
from replay.engine.request import FinishCause
from replay.engine.schedule import OnExhausted
from replay.errors import KVCacheExhausted
from tests.replay.engine.checked_runs import BLOCK, Run, request

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
