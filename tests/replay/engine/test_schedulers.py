"""Live and recorded scheduling, and the pool under them, without a model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.engine.engine import Engine, StepOutcome
from replay.engine.failure import FailureKind
from replay.engine.live import LiveScheduler
from replay.engine.recorded import RecordedScheduler
from replay.engine.request import FinishCause, FinishReason, Request, SamplingParams, Status
from replay.engine.schedule import EngineConfig, OnExhausted, Outcome, Sample, StepPlan
from replay.errors import KVCacheExhausted
from tests.sharing import Taken


class Counting:
    """Draws the position of the token, so that every request's text is known."""

    def execute(self, plan: StepPlan) -> dict[str, Sample]:
        return {c.request.id: Sample(c.request.num_tokens) for c in plan.chunks if c.samples}


def request(name: str, prompt: int, max_tokens: int = 0) -> Request:
    return Request(
        id=name, tokens=list(range(prompt)), num_prompt=prompt, sampling=SamplingParams(max_tokens=max_tokens)
    )


def run(engine: Engine, limit: int = 10_000) -> list[StepOutcome]:
    outcomes: list[StepOutcome] = []
    for _ in range(limit):
        outcome = engine.step()
        if outcome is None:
            return outcomes
        engine.scheduler.check_integrity()
        outcomes.append(outcome)
    raise AssertionError("the engine does not come to an end")


def engine_of(config: EngineConfig) -> Engine:
    return Engine(scheduler=LiveScheduler(config), executor=Counting(), bytes_per_block=100)


def test_long_prompts_are_prefilled_in_chunks_beside_decodes():
    engine = engine_of(EngineConfig(num_blocks=16, block_size=4, max_model_len=64, max_num_batched_tokens=8))
    short, long = request("short", 3, max_tokens=4), request("long", 20, max_tokens=1)
    engine.add(short)
    engine.add(long)
    spans = [[(c.request.id, c.start, c.num_tokens) for c in o.plan.chunks] for o in run(engine)]
    assert spans[0] == [("short", 0, 3), ("long", 0, 5)]
    assert spans[1] == [("short", 3, 1), ("long", 5, 7)]
    assert sum(n for step in spans for r, _, n in step if r == "long") == 20
    assert short.finish_cause is FinishCause.MAX_TOKENS
    assert short.output == [3, 4, 5, 6]


def test_truncation_is_a_failure_that_the_client_sees_as_length():
    engine = engine_of(EngineConfig(num_blocks=4, block_size=4, max_model_len=64, on_kv_exhausted=OnExhausted.TRUNCATE))
    requests = [request("a", 4), request("b", 4)]
    for r in requests:
        engine.add(r)
    failures = [f for o in run(engine) for f in o.failures]
    first = failures[0]
    assert (first.kind, first.invariant) == (FailureKind.SILENT_TRUNCATION, "kv-pool-exhausted")
    assert first.request_id == "a"
    assert (first.kv_cache_used_bytes, first.max_kv_cache_bytes, first.seq_len_exceeded_at) == (400, 400, 9)
    assert {r.finish_reason for r in requests} == {FinishReason.LENGTH}
    # With a's blocks, b goes on until the pool is full again: 16 tokens in 4 blocks.
    assert failures[1].seq_len_exceeded_at == 17


def test_reaching_max_model_len_is_silent_too_but_max_tokens_is_not():
    config = EngineConfig(num_blocks=8, block_size=4, max_model_len=10)
    engine = engine_of(config)
    endless, asked = request("endless", 4), request("asked", 4, max_tokens=6)
    engine.add(endless)
    engine.add(asked)
    failures = [f for o in run(engine) for f in o.failures]
    assert [(f.request_id, f.invariant, f.seq_len_exceeded_at) for f in failures] == [("endless", "max-model-len", 10)]
    assert asked.finish_cause is FinishCause.MAX_TOKENS


def test_preemption_frees_the_youngest_and_computes_it_again():
    engine = engine_of(EngineConfig(num_blocks=4, block_size=4, max_model_len=64, on_kv_exhausted=OnExhausted.PREEMPT))
    a, b = request("a", 4, max_tokens=8), request("b", 4, max_tokens=8)
    engine.add(a)
    engine.add(b)
    outcomes = run(engine)
    attempts = [e for o in outcomes for e in o.plan.exhausted]
    assert [(e.request.id, e.outcome, e.victim and e.victim.id) for e in attempts] == [
        ("a", Outcome.PREEMPT_OTHER, "b")
    ]
    assert a.output == b.output == list(range(4, 12))
    assert engine.scheduler.pool.num_free == 4
    again = [c for o in outcomes for c in o.plan.chunks if c.request is b and c.start == 0]
    assert [c.num_tokens for c in again] == [4, 9], "a preempted request is computed again from its first token"


def test_a_preempted_request_goes_before_those_that_never_ran():
    engine = engine_of(EngineConfig(num_blocks=4, block_size=4, max_model_len=64, max_num_seqs=2))
    for name in ("a", "b", "c"):
        engine.add(request(name, 4, max_tokens=8))
    admitted = [r.id for o in run(engine) for r in o.plan.admitted]
    assert admitted[:4] == ["a", "b", "b", "c"]


def test_raise_leaves_the_plan_for_the_recorder():
    engine = engine_of(EngineConfig(num_blocks=2, block_size=4, max_model_len=64, on_kv_exhausted=OnExhausted.RAISE))
    engine.add(request("a", 8))
    engine.step()
    with pytest.raises(KVCacheExhausted, match="needs 1 more KV block"):
        engine.step()
    assert engine.scheduler.unfinished.exhausted[0].outcome is Outcome.RAISE


def test_abort_between_plan_and_commit_keeps_the_books():
    scheduler = LiveScheduler(EngineConfig(num_blocks=4, block_size=4, max_model_len=64))
    r = request("a", 4)
    scheduler.add(r)
    plan = scheduler.plan()
    assert plan is not None
    scheduler.abort(r, FinishCause.CLIENT_GONE)
    scheduler.abort(r, FinishCause.CLIENT_GONE)  # a second one is no news
    assert scheduler.commit(plan, {"a": Sample(1)}) == []
    scheduler.check_integrity()
    following = scheduler.plan()
    assert following is not None
    assert [f.cause for f in following.aborted] == [FinishCause.CLIENT_GONE]


@st.composite
def loads(draw: st.DrawFn) -> tuple[EngineConfig, list[tuple[int, int, int, int]]]:
    config = EngineConfig(
        num_blocks=draw(st.integers(6, 12)),
        block_size=draw(st.integers(1, 4)),
        max_model_len=24,
        max_num_seqs=draw(st.integers(1, 4)),
        max_num_batched_tokens=draw(st.integers(1, 16)),
        on_kv_exhausted=draw(st.sampled_from([OnExhausted.TRUNCATE, OnExhausted.PREEMPT])),
    )
    # (arrives after this many steps, prompt tokens, max tokens, aborted after this many more steps)
    span = st.tuples(st.integers(0, 6), st.integers(1, 6), st.integers(1, 12), st.integers(0, 30))
    return config, draw(st.lists(span, min_size=1, max_size=6))


def play(engine: Engine, load: list[tuple[int, int, int, int]]) -> dict[str, Request]:
    requests = {f"r{i}": request(f"r{i}", prompt, limit) for i, (_, prompt, limit, _) in enumerate(load)}
    for step in range(2_000):
        for i, (arrival, _, _, abort) in enumerate(load):
            if step == arrival:
                engine.add(requests[f"r{i}"])
            if step == arrival + abort + 1:
                engine.abort(requests[f"r{i}"], FinishCause.CLIENT_GONE)
        engine.step()
        engine.scheduler.check_integrity()
        if all(r.finished for r in requests.values()) and engine.step() is None:  # trailing aborts make a last step
            return requests
    raise AssertionError("requests are left over")


@given(loads())
def test_every_request_ends_and_the_record_of_a_run_replays_without_difference(load):
    config, spans = load
    recording = Taken()
    live = Engine(scheduler=LiveScheduler(config), executor=Counting(), hooks=[recording])
    before = play(live, spans)
    scheduler = RecordedScheduler(config, recording.steps)
    replayed = Engine(scheduler=scheduler, executor=Counting())
    while scheduler.following:
        assert replayed.step() is not None
        scheduler.check_integrity()
    assert scheduler.difference is None
    assert list(scheduler.pool.free) == list(live.scheduler.pool.free)
    for name, original in before.items():
        if name in recording.copies:  # one aborted in the step it came never reached a plan
            copy = recording.copies[name]
            assert (copy.tokens, copy.finish_cause) == (original.tokens, original.finish_cause)


def recorded_truncation() -> tuple[EngineConfig, Taken]:
    config = EngineConfig(num_blocks=4, block_size=4, max_model_len=40, on_kv_exhausted=OnExhausted.TRUNCATE)
    recording = Taken()
    engine = Engine(scheduler=LiveScheduler(config), executor=Counting(), hooks=[recording])
    engine.add(request("a", 4, max_tokens=20))
    engine.add(request("b", 4, max_tokens=6))
    run(engine)
    return config, recording


def test_more_blocks_leave_the_record_where_the_pool_was_empty():
    config, recording = recorded_truncation()
    scheduler = RecordedScheduler(replace(config, num_blocks=16), recording.steps)
    outcomes = run(Engine(scheduler=scheduler, executor=Counting()))
    assert [f for o in outcomes for f in o.failures] == []
    assert scheduler.difference is not None
    assert scheduler.difference.what == "blocks"
    assert "0 free: truncate" in scheduler.difference.recorded
    assert scheduler.difference.replayed.startswith("tokens 8..8")
    assert recording.copies["a"].num_output == 20


def test_fewer_blocks_fail_earlier():
    config, recording = recorded_truncation()
    scheduler = RecordedScheduler(replace(config, num_blocks=2), recording.steps)
    outcomes = run(Engine(scheduler=scheduler, executor=Counting()))
    assert next(f.seq_len_exceeded_at for o in outcomes for f in o.failures) == 5


def test_an_altered_block_id_in_the_record_is_named_and_the_choices_still_hold():
    config, recording = recorded_truncation()
    first = recording.steps[0]
    chunk = first.chunks[0]
    recording.steps[0] = replace(first, chunks=(replace(chunk, new_blocks=(3,)), *first.chunks[1:]))
    scheduler = RecordedScheduler(config, recording.steps)
    outcomes = run(Engine(scheduler=scheduler, executor=Counting()))
    assert scheduler.difference is not None
    assert scheduler.difference.what == "ids"
    assert outcomes[-1].failures or any(o.failures for o in outcomes)
    assert recording.copies["a"].status is Status.FINISHED
