"""The engine's thread under a step that hangs, a step that raises, and aborts at every moment."""

from __future__ import annotations

import asyncio
import itertools
import shutil

import pytest

from dumps.ledger import weakest
from dumps.record.recover import read_ring, state_from_ring
from dumps.schema.reader import open_dump
from dumps.validate import validate
from replay.engine.request import FinishCause
from replay.engine.schedule import EngineConfig
from replay.serving import generation, main
from replay.serving.generation import EngineStuck, Generation
from replay.serving.jobs import Ended, Job
from replay.serving.requests import Prompt, parse_call
from tests.replay.serving.scripted_engine import Gate, scripted


async def finished(job: Job) -> tuple[list[int], Ended]:
    """A job's tokens and its end."""
    tokens = []
    while True:
        update = await asyncio.wait_for(job.sink.get(), 30)
        if update.token is not None:
            tokens.append(update.token)
        if update.ended is not None:
            return tokens, update.ended


def failing(*executions: int):
    """Raises when it runs for these times, counted from 0 and across the engine's lives."""
    count = itertools.count()

    def before(plan) -> None:
        if next(count) in executions:
            raise ZeroDivisionError("a kernel failed")

    return before


async def test_tokens_and_end_arrive(tmp_path):
    with scripted(tmp_path) as it:
        job = it.job("a")
        it.engine.submit([job])
        tokens, end = await finished(job)
        assert (tokens, end.cause, end.status) == ([10] * 5, FinishCause.MAX_TOKENS, 200)
        assert it.metrics.value("pplx_output_tokens_total") == 5


async def test_an_exception_ends_what_ran_and_keeps_what_waited(tmp_path):
    with scripted(tmp_path) as it:
        it.executor.before = failing(2)
        jobs = [it.job(name) for name in "abcd"]
        it.engine.submit(jobs)
        ends = await asyncio.gather(*(finished(job) for job in jobs))
        assert [(len(tokens), end.status) for tokens, end in ends] == [(2, 500), (2, 500), (5, 200), (5, 200)]
        [path] = tmp_path.glob("*.pplx")
        with open_dump(path) as dump:
            state = dump.state
        assert [f for f in validate(state) if f.severity == "error"] == []
        assert state.failures[-1].exception_type.endswith("ZeroDivisionError")
        assert state.exceptions[-1].message == "a kernel failed"
        assert (state.steps[-1].index, state.steps[-1].completed) == (2, False)
        assert ends[0][1].dump_id == state.manifest.id
        # The new life has a ring of its own, with the two that waited and nothing else.
        [ring] = tmp_path.glob("*.ring")
        assert {r.id for r in state_from_ring(read_ring(ring)).requests} == {"c", "d"}


async def test_a_dump_on_demand_after_a_failure_says_what_it_is_and_keeps_the_stack(tmp_path):
    with scripted(tmp_path) as it:
        assert weakest(await it.dump_state(), "failures").note == ""
        it.executor.before = failing(0)
        job = it.job("a")
        it.engine.submit([job])
        _, end = await finished(job)
        state = await it.dump_state()
        note = weakest(state, "failures").note
        assert "the engine failed (ZeroDivisionError: a kernel failed) and began anew" in note
        assert f"in dump {end.dump_id}" in note
        assert (list(state.failures), list(state.requests)) == ([], [])
        assert state.exceptions[-1].message == "a kernel failed"
        assert [f for f in validate(state) if f.severity == "error"] == []


async def test_a_signal_for_a_dump_to_an_engine_that_is_no_more_is_answered_in_the_log(tmp_path, caplog):
    with scripted(tmp_path) as it:
        main._dump_on_demand(it.engine)
        await it.dump_state()
        assert "no dump" not in caplog.text
    main._dump_on_demand(it.engine)
    assert "no dump: the engine's thread died; its ring" in caplog.text


async def test_an_exception_that_cannot_be_dumped_leaves_its_ring(tmp_path):
    folder = tmp_path / "dumps"
    folder.mkdir()
    with scripted(folder, per_minute=1) as it:
        it.executor.before = failing(0, 1, 2)
        jobs = [it.job(name) for name in "abc"]
        for job in jobs:
            it.engine.submit([job])
            assert (await finished(job))[1].status == 500
        assert len(list(folder.glob("*.pplx"))) == 1
        assert it.metrics.value("pplx_dumps_dropped_total") == 2
        # One ring was kept, one is being written.
        assert len(list(folder.glob("*.ring"))) == 2


async def test_serving_goes_on_without_a_folder_for_dumps(tmp_path):
    folder = tmp_path / "dumps"
    folder.mkdir()
    with scripted(folder) as it:
        shutil.rmtree(folder)
        it.executor.before = failing(0)
        first, second = it.job("a"), it.job("b")
        it.engine.submit([first])
        assert (await finished(first))[1].status == 500
        it.executor.before = lambda plan: None
        it.engine.submit([second])
        assert (await finished(second))[1].status == 200


async def test_aborts_before_during_and_after(tmp_path):
    with scripted(tmp_path) as it:
        running, waiting = [it.job("a"), it.job("b")], it.job("c")
        gate = await it.held(*running, waiting)
        it.engine.abort([running[0], waiting], FinishCause.CLIENT_GONE)
        it.engine.abort([running[0]], FinishCause.CLIENT_GONE)
        gate.open.set()
        assert (await finished(running[0]))[1].cause is FinishCause.CLIENT_GONE
        assert (await finished(waiting))[1].cause is FinishCause.CLIENT_GONE
        assert (await finished(running[1]))[1].cause is FinishCause.MAX_TOKENS
        it.engine.abort([running[1]], FinishCause.TIMEOUT)
        dump_id = await asyncio.wrap_future(it.engine.dump("demand"))
        with open_dump(tmp_path / f"{dump_id}.pplx") as dump:
            state = dump.state
        assert [f for f in validate(state) if f.severity == "error"] == []
        assert {r.id: r.finish_cause for r in state.requests} == {
            "a": "client-gone",
            "b": "max-tokens",
            "c": "client-gone",
        }
        assert not state.failures, "a timeout after the end is none"


async def test_an_abort_is_on_record_although_nothing_runs_any_more(tmp_path):
    with scripted(tmp_path) as it:
        job = it.job("a")
        gate = await it.held(job)
        it.engine.abort([job], FinishCause.CLIENT_GONE)
        gate.open.set()
        async with asyncio.timeout(30):
            causes = [""]
            while causes != ["client-gone"]:
                await asyncio.sleep(0)
                state = state_from_ring(read_ring(it.engine.session.ring))
                causes = [request.finish_cause for request in state.requests]
        assert list(state.scheduler.running) == []


async def test_a_request_that_can_never_run_is_ended_and_on_record(tmp_path):
    with scripted(tmp_path, config=EngineConfig(num_blocks=2, max_model_len=64, block_size=4)) as it:
        job = it.job("a", max_tokens=50)
        it.engine.submit([job])
        tokens, end = await finished(job)
        assert (len(tokens), end.status) == (6, 500)
        with open_dump(tmp_path / f"{end.dump_id}.pplx") as dump:
            assert (dump.state.failures[-1].kind, list(dump.state.scheduler.waiting)) == ("stall", [0])
        async with asyncio.timeout(30):
            while state_from_ring(read_ring(it.engine.session.ring)).requests[0].finish_cause != "engine-error":
                await asyncio.sleep(0)


async def test_a_dump_asked_for_after_an_abort_shows_it(tmp_path):
    with scripted(tmp_path) as it:
        job = it.job("a")
        gate = await it.held(job)
        it.engine.abort([job], FinishCause.CLIENT_GONE)
        dump = it.engine.dump("demand")
        gate.open.set()
        dump_id = await asyncio.wrap_future(dump)
        with open_dump(tmp_path / f"{dump_id}.pplx") as opened:
            assert opened.state.requests[0].finish_cause == "client-gone"


async def test_nothing_is_kept_of_requests_that_ended(tmp_path):
    with scripted(tmp_path) as it:
        jobs = [it.job(name, max_tokens=50) for name in "abc"]
        it.engine.submit(jobs)
        it.engine.abort(jobs[:1], FinishCause.CLIENT_GONE)
        await asyncio.gather(*(finished(job) for job in jobs))
        await asyncio.wrap_future(it.engine.dump("demand"))
        hook = it.engine.session._hook
        assert (it.engine._jobs, hook and hook._serials) == ({}, {})
        assert it.engine.session.scheduler.pool.num_used == 0


async def test_a_step_that_hangs_is_told_and_dumped_from_outside(tmp_path, monkeypatch):
    monkeypatch.setattr(generation, "TIMEOUT_GRACE_S", 0.05)
    with scripted(tmp_path) as it:
        gate = Gate()
        it.executor.before = gate
        call = parse_call("/v1/completions", {"model": "tiny", "prompt": "x"}, vocab_size=320)
        prompt = Prompt(tokens=[4, 5, 6], text=None)
        one = Generation(call, [prompt], engine=it.engine, vocabulary=it.vocabulary, timeout_s=0.05)
        with one:
            with pytest.raises(EngineStuck) as error:
                async for _ in one.updates():
                    pass
            assert error.value.status == 504
            dump_id = await asyncio.to_thread(it.engine.session.dump_from_outside, "timeout")
            gate.open.set()
        with open_dump(tmp_path / f"{dump_id}.pplx") as dump:
            state = dump.state
        assert (state.failures[-1].kind, state.failures[-1].invariant) == ("timeout", "engine-step")
        assert [step.completed for step in state.steps] == [False]
        [thread] = [thread for thread in state.threads if thread.name == "engine"]
        assert any(frame.function.endswith("Gate.__call__") for frame in thread.frames)
