"""Which jobs meet in one worker, what ends it, and that its next job is none the wiser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from replay.engine.request import SamplingParams
from replay.engine.schedule import OnExhausted
from replay.isolate.limits import Limits
from replay.isolate.result import Result
from replay.isolate.supervisor import supervise
from replay.isolate.warm import WarmWorkers
from replay.isolate.warm_job import WARM_FUNCTION
from tests.mixing import random_tokens
from tests.processes import is_gone
from tests.recordings import record
from tests.reports import without_times
from tests.tiny import make_tiny_model

JOBS = "tests.replay.isolate.warm_jobs:run"
MakePool = Callable[..., WarmWorkers]


@pytest_asyncio.fixture
async def make_pool() -> AsyncIterator[MakePool]:
    pools: list[WarmWorkers] = []

    def make(**options: Any) -> WarmWorkers:
        pools.append(WarmWorkers(**{"at_most": 1, "job_function": JOBS, **options}))
        return pools[-1]

    yield make
    for pool in pools:
        await pool.close()


@pytest.fixture
def dump(tmp_path: Path) -> str:
    (tmp_path / "a.pplx").write_text("a")
    (tmp_path / "b.pplx").write_text("b")
    return str(tmp_path / "a.pplx")


def told(result: Result) -> tuple[int, int]:
    """Its process, and which job of that process it was."""
    assert result.report is not None, result.error
    return result.report["pid"], result.report["job"]


async def gone(pid: int) -> None:
    async with asyncio.timeout(30):
        while not is_gone(pid):
            await asyncio.sleep(0.01)


async def test_the_next_job_finds_the_process_and_a_fresh_guard(make_pool: MakePool, dump: str) -> None:
    pool = make_pool()
    first = await pool.run({"dump": dump, "do": "try"})
    second = await pool.run({"dump": dump.replace("a.pplx", "b.pplx")})
    assert told(second) == (told(first)[0], 2)
    assert second.report is not None
    assert second.report["text"] == "b"
    assert [attempt.partition("(")[0] for attempt in first.guard["refused"]] == ["os.kill"]
    assert second.guard["refused"] == []
    assert second.progress == {"event": "progress", "stage": "load", "done": 2, "total": None}
    await pool.close()
    await gone(told(first)[0])


@pytest.mark.parametrize(("do", "kind"), [("fail", "InternalError"), ("hang", "BudgetSpent"), ("crash", "WorkerDied")])
async def test_a_job_that_does_not_end_well_takes_its_worker_along(
    make_pool: MakePool, dump: str, do: str, kind: str
) -> None:
    pool = make_pool()
    first = await pool.run({"dump": dump})
    ended = await pool.run({"dump": dump, "do": do}, limits=Limits(timeout_s=0.5))
    assert ended.error is not None
    assert ended.error.kind == kind
    assert is_gone(told(first)[0])
    assert told(await pool.run({"dump": dump}))[1] == 1


async def test_a_worker_that_dies_between_two_jobs_is_not_the_next_ones_doing(make_pool: MakePool, dump: str) -> None:
    pool = make_pool()
    first = await pool.run({"dump": dump, "do": "die later"})
    await gone(told(first)[0])
    assert told(await pool.run({"dump": dump}))[1] == 1


async def test_a_worker_that_speaks_unasked_is_not_kept(make_pool: MakePool, dump: str) -> None:
    pool = make_pool()
    first = await pool.run({"dump": dump, "do": "go on", "loads": "m"})
    await gone(told(first)[0])
    assert told(await pool.run({"dump": dump}))[1] == 1


async def test_after_its_last_job_a_worker_goes(make_pool: MakePool, dump: str) -> None:
    pool = make_pool(max_jobs=2)
    seen = [told(await pool.run({"dump": dump})) for _ in range(5)]
    assert [job for _, job in seen] == [1, 2, 1, 2, 1]


async def test_an_idle_worker_goes_after_its_time(make_pool: MakePool, dump: str) -> None:
    pool = make_pool(idle_s=0.2)
    pid, _ = told(await pool.run({"dump": dump}))
    await gone(pid)


async def test_memory_is_watched_while_a_worker_is_idle(make_pool: MakePool, dump: str) -> None:
    pool, limits = make_pool(), Limits(memory_bytes=300 << 20)
    pid, _ = told(await pool.run({"dump": dump, "do": "grow later"}, limits=limits))
    await gone(pid)
    assert told(await pool.run({"dump": dump}, limits=limits))[1] == 1


async def test_a_worker_is_not_taken_for_a_job_that_may_hold_another_amount_of_memory(
    make_pool: MakePool, dump: str
) -> None:
    pool = make_pool(at_most=2)
    small, large = Limits(memory_bytes=1 << 30), Limits(memory_bytes=2 << 30)
    seen = [told(await pool.run({"dump": dump}, limits=limits))[0] for limits in (small, large, small)]
    assert seen[0] == seen[2] != seen[1]


async def test_the_worker_that_has_the_model_is_taken(make_pool: MakePool, dump: str, tmp_path: Path) -> None:
    pool, held = make_pool(at_most=2), tmp_path / "held"
    held.touch()
    other = dump.replace("a.pplx", "b.pplx")
    slow = asyncio.create_task(pool.run({"dump": dump, "loads": "A", "do": "wait", "held": str(held)}))
    with_b, _ = told(await pool.run({"dump": other, "loads": "B"}))
    held.unlink()
    with_a, _ = told(await slow)
    assert with_a != with_b
    # The last one used has A; which dump led to which model is known by now.
    assert told(await pool.run({"dump": other, "loads": "B"}))[0] == with_b
    assert told(await pool.run({"dump": dump, "loads": "A"}))[0] == with_a


async def test_at_most_so_many_are_alive_and_other_folders_need_another_worker(
    make_pool: MakePool, dump: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pool = make_pool()
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "c.pplx"
    elsewhere.write_text("c")
    first, _ = told(await pool.run({"dump": dump}))
    second, job = told(await pool.run({"dump": str(elsewhere)}))
    assert job == 1
    assert second != first
    assert is_gone(first)


async def test_cancelling_ends_the_worker(make_pool: MakePool, dump: str) -> None:
    pool, started = make_pool(), asyncio.Event()
    pid, _ = told(await pool.run({"dump": dump}))
    task = asyncio.create_task(pool.run({"dump": dump, "do": "hang"}, on_event=lambda event: started.set()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_gone(pid)
    assert told(await pool.run({"dump": dump}))[1] == 1


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two dumps of one model, whose prompts and pools differ, in the folder that the model lies in."""
    folder = tmp_path_factory.mktemp("crashes")
    model, dumps = make_tiny_model(folder / "model"), []
    for blocks in (24, 30):
        recording = record(
            model,
            tmp_path_factory.mktemp("recording"),
            [random_tokens(9 + index, 256, seed=blocks + index) for index in range(3)],
            sampling=SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=60),
            kv_blocks=blocks,
            block_size=4,
            on_kv_exhausted=OnExhausted.TRUNCATE,
        )
        (path,) = recording.dumps
        dumps.append(str(path.rename(folder / path.name)))
    return dumps


async def test_reports_of_a_warm_worker_are_those_of_a_fresh_one(make_pool: MakePool, crashes: list[str]) -> None:
    pool = make_pool(job_function=WARM_FUNCTION)
    jobs: list[dict[str, Any]] = [
        {"dump": crashes[0], "full": True},
        {"dump": crashes[1], "full": True},
        {"dump": crashes[0], "full": True, "set": {"model.dtype": "bfloat16"}},
        {"dump": crashes[0], "target": "schedule"},
        {"dump": crashes[0], "full": True},
    ]
    fresh = [await supervise(job) for job in jobs[:4]]
    warm = [await pool.run(job) for job in jobs]
    reports = [result.report for result in warm]
    for ours, theirs in zip(reports, [*fresh, fresh[0]], strict=True):
        assert theirs.report is not None, theirs.error
        assert ours is not None
        assert without_times(ours) == without_times(theirs.report)
    assert reports[0] is not None
    assert reports[1] is not None
    assert without_times(reports[0]) != without_times(reports[1])
    # The second one found the model; the third wanted another.
    assert reports[1]["timings"]["load_s"] < reports[0]["timings"]["load_s"] / 3
