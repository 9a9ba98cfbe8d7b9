"""Many dumps in one batch: every report is that of the dump's solo run, to the bit, whatever else is in the batch."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from replay.engine import packing
from replay.engine.request import SamplingParams
from replay.engine.runner import forward
from replay.engine.schedule import OnExhausted
from replay.errors import UsageError
from replay.isolate.worker import error_event
from replay.targets import batch_model
from replay.targets.batch import run_batch
from replay.targets.job import run_job
from replay.targets.load import load_weights
from tests.mixing import random_tokens
from tests.recordings import dump_now, record
from tests.reports import without_times
from tests.tiny import make_tiny_model

ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, seed=7, max_tokens=30, ignore_eos=True)


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    return [random_tokens(length + index, 256, seed=seed + index) for index in range(count)]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Different failures, pools, block sizes, dtypes and weights; the weights lie beside each dump."""
    folder = tmp_path_factory.mktemp("dumps")
    tiny = make_tiny_model(tmp_path_factory.mktemp("weights") / "tiny")
    other = make_tiny_model(tmp_path_factory.mktemp("weights") / "other", seed=1)

    def crash(name: str, model: Path, asked: list[list[int]], **options: Any) -> str:
        own = folder / name
        own.mkdir()
        recording = record(model, own, asked, **options)
        dump = recording.dumps[0] if recording.dumps else dump_now(recording)
        recording.session.close()
        shutil.copytree(model, own / "model")
        return str(dump)

    truncate, stop = OnExhausted.TRUNCATE, OnExhausted.RAISE
    flip = ("kv-bit-flip:request=1,layer=1,position=4,after_step=12",)
    exhausted = {"sampling": ENDLESS, "on_kv_exhausted": truncate}
    return [
        crash(
            "cut", tiny, prompts(3, 9, 0), arrivals=(0, 1, 3), kv_blocks=24, block_size=4, debug_level=2, **exhausted
        ),
        crash("flip", tiny, prompts(3, 9, 0), sampling=ENDLESS, kv_blocks=64, block_size=4, quirks=flip),
        crash("raised", tiny, prompts(2, 20, 5), sampling=ENDLESS, kv_blocks=12, block_size=8, on_kv_exhausted=stop),
        crash("preempted", tiny, prompts(4, 9, 3), sampling=SAMPLED, kv_blocks=24, block_size=4, debug_level=2),
        crash("half", tiny, prompts(2, 40, 9), kv_blocks=20, block_size=8, dtype="bfloat16", **exhausted),
        crash("other", other, prompts(2, 12, 1), kv_blocks=8, block_size=16, **exhausted),
        crash("shape", tiny, prompts(2, 9, 0), kv_blocks=14, block_size=4, record="shape", **exhausted),
    ]


def solo(dumps: list[str], **options: Any) -> list[dict[str, Any]]:
    return [run_job({**options, "dump": dump}, lambda _: None) for dump in dumps]


def batch(dumps: list[str], **options: Any) -> list[dict[str, Any]]:
    """Reports, and error events in the place of those that have none, in the order of ``dumps``."""
    ended: dict[int, dict[str, Any]] = {}

    def emit(event: dict[str, Any]) -> None:
        if event["event"] == "item" and event["state"] != "begun":
            assert event["index"] not in ended
            ended[event["index"]] = event.get("report", event)

    assert run_batch({**options, "dumps": dumps}, emit, error_event=error_event) == {"dumps": len(dumps)}
    return [ended[index] for index in range(len(dumps))]


@pytest.fixture(scope="module")
def expected(dumps: list[str]) -> list[dict[str, Any]]:
    reports = solo(dumps)
    verdicts = [report["verdict"] for report in reports]
    assert verdicts == ["reproduced"] * 3 + ["inconclusive"] + ["reproduced"] * 2 + ["inconclusive"]
    assert len({str(report["failure"]) for report in reports}) >= 5
    return [without_times(report) for report in reports]


def test_every_report_is_that_of_the_solo_run(dumps, expected, monkeypatch):
    rows: list[int] = []

    def counted(model, placed):
        rows.append(len({id(one.kv) for one in placed}))
        return forward(model, placed)

    monkeypatch.setattr(packing, "forward", counted)
    assert [without_times(report) for report in batch(dumps)] == expected
    assert max(rows) >= 4, "no step held chunks of different dumps"


def test_neither_order_nor_number_changes_a_report(dumps, expected):
    assert [without_times(report) for report in batch(dumps[::-1], at_once=2)] == expected[::-1]
    assert [without_times(report) for report in batch(dumps[:3], at_once=1)] == expected[:3]


@pytest.mark.parametrize(
    "options",
    [
        {"window": 3, "full": True, "schedule": "live"},
        {"kernels": "stock"},
        {"mode": "forced", "kv": "recompute"},
        {"target": "schedule", "checks": "off"},
        {"set": {"kv.num_blocks": 300, "sampling.max_tokens": 20}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_mean_what_they_mean_alone(dumps, options):
    some = dumps[:3]
    assert [without_times(r) for r in batch(some, **options)] == [without_times(r) for r in solo(some, **options)]


def test_a_model_is_loaded_once_for_all_that_want_the_same(dumps, monkeypatch):
    """Three of them: float32, bfloat16, and other weights. Each dump has a copy of its weights of its own."""
    loaded: list[str] = []

    def counted(folder, **options):
        loaded.append(options["dtype"])
        return load_weights(folder, **options)

    monkeypatch.setattr(batch_model, "load_weights", counted)
    batch(dumps)
    assert sorted(loaded) == ["bfloat16", "float32", "float32"]


def test_dumps_that_cannot_be_replayed_do_not_stop_the_others(dumps, expected, tmp_path):
    torn = tmp_path / "torn.pplx"
    torn.write_bytes(Path(dumps[0]).read_bytes()[:-200])
    orphan = tmp_path / "orphan.pplx"
    shutil.copy(dumps[0], orphan)
    mixed = [dumps[0], str(torn), dumps[1], str(orphan), str(tmp_path / "absent.pplx"), dumps[2]]
    reports = batch(mixed)
    assert [without_times(reports[index]) for index in (0, 2, 5)] == expected[:3]
    assert (reports[1]["class"], reports[1]["exit_code"]) == ("TornDump", 4)
    assert (reports[3]["verdict"], reports[3]["reason_code"]) == ("inconclusive", "weights-unavailable")
    assert (reports[4]["class"], reports[4]["exit_code"]) == ("DumpError", 4)
    assert reports[1]["remedy"]


def test_what_is_left_of_a_torn_dump_is_replayed_when_asked_for(dumps, tmp_path):
    shutil.copytree(Path(dumps[0]).parent / "model", tmp_path / "model")
    torn = tmp_path / "torn.pplx"
    torn.write_bytes(Path(dumps[0]).read_bytes()[:-200])
    options = {"salvage": True, "target": "schedule"}
    assert without_times(batch([str(torn)], **options)[0]) == without_times(solo([str(torn)], **options)[0])


def test_the_budget_is_that_of_each_dump_and_not_of_all(dumps, expected):
    """Each clock stands still while others work: together they spend far more than one may."""
    spent = [
        sum(report["timings"][key] for key in ("rebuild_s", "fast_forward_s", "step_s")) for report in batch(dumps[:3])
    ]
    budget = 3 * max(spent)
    assert [without_times(report) for report in batch(dumps[:3] * 4, timeout_s=budget)] == expected[:3] * 4
    over = batch(dumps[:3], timeout_s=1e-9)
    assert {(event["class"], event["exit_code"]) for event in over} == {("BudgetSpent", 21)}


@pytest.mark.parametrize(
    "job", [{"dumps": "a.pplx"}, {"dumps": [1]}, {"dumps": [], "at_once": 0}, {"dumps": [], "mode": 1}]
)
def test_options_that_suit_no_dump_are_refused(job):
    with pytest.raises(UsageError):
        run_batch(job, lambda _: None, error_event=error_event)


def test_progress_ends_where_all_work_is_done(dumps):
    events: list[dict[str, Any]] = []
    run_batch({"dumps": dumps[:3]}, events.append, error_event=error_event)
    stages = [event["stage"] for event in events if event["event"] == "progress"]
    assert list(dict.fromkeys(stages)) == ["open", "load", "batch"]
    assert stages.count("open") == stages.count("load") == 1
    work = [(event["done"], event["total"]) for event in events if event.get("stage") == "batch"]
    assert all(done <= total for done, total in work)
    begun = [event["index"] for event in events if event["event"] == "item" and event["state"] == "begun"]
    assert begun == [0, 1, 2]
