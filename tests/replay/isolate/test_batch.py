"""What becomes of the dumps of a batch when their worker ends, really and by the signal that nothing can catch."""

from __future__ import annotations

from typing import Any

import pytest

from replay.isolate.batch import run_batch
from replay.isolate.limits import Limits
from replay.isolate.result import Result

JOBS = "tests.replay.isolate.batch_jobs"


def ended(dumps: list[str], *, batch: str = "batch", **options: Any) -> dict[str, tuple[Result, str]]:
    """Result, and why the dump was replayed alone, by the dump's name, in the order in which they came."""
    found: dict[str, tuple[Result, str]] = {}

    def take(index: int, result: Result, alone: str) -> None:
        assert dumps[index] not in found, "a dump ended twice"
        found[dumps[index]] = result, alone

    run_batch(
        dumps,
        {"mode": "auto"},
        on_result=take,
        at_once=2,
        batch_function=f"{JOBS}:{batch}",
        job_function=f"{JOBS}:alone",
        **options,
    )
    assert sorted(found) == sorted(dumps)
    return found


def by(result: Result) -> str:
    assert result.report is not None, result.error
    return str(result.report["by"])


def test_all_is_well():
    found = ended(["a", "b", "c"])
    assert [(name, by(result), alone) for name, (result, alone) in found.items()] == [
        ("a", "batch", ""),
        ("b", "batch", ""),
        ("c", "batch", ""),
    ]
    result, _ = found["a"]
    assert result.report is not None
    assert result.report["environment"]["isolation"]["grade"].startswith("audit-hook")


def test_when_the_worker_is_killed_its_open_dumps_run_alone_and_the_rest_goes_on_together():
    found = ended(["a", "b", "c", "deadly", "e", "f"])
    assert list(found) == ["a", "b", "c", "deadly", "e", "f"]
    assert {name: by(result) for name, (result, _) in found.items() if name != "deadly"} == dict.fromkeys(
        "abcef", "batch"
    )
    error = found["deadly"][0].error
    assert error is not None
    assert (error.kind, error.exit_code) == ("WorkerDied", 70)
    assert "SIGKILL" in error.message
    assert "SIGKILL" in found["deadly"][1]


def test_a_dump_beside_the_deadly_one_gets_its_report_alone():
    found = ended(["a", "b", "deadly", "d", "e"])
    assert {name: by(result) for name, (result, _) in found.items() if name != "deadly"} == {
        "a": "batch",
        "b": "batch",
        "d": "alone",
        "e": "batch",
    }
    assert "SIGKILL" in found["d"][1]
    assert found["e"][1] == ""


def test_a_worker_that_dies_before_it_begins_a_dump_is_not_started_again_and_again():
    found = ended(["a", "b"], batch="dies_at_once")
    assert [by(result) for result, _ in found.values()] == ["alone", "alone"]


def test_it_is_said_once_how_many_run_alone_from_now_on_and_why():
    told: list[dict[str, Any]] = []
    ended(["a", "b", "c"], batch="dies_at_once", on_event=told.append)
    ended(["a", "memory", "c"], on_event=told.append)
    died, memory = (event for event in told if event["event"] == "alone")
    assert (died["dumps"], memory["dumps"]) == (3, 1)
    assert "allocate memory" not in died["why"]
    assert "allocate memory" in memory["why"]


def test_a_worker_that_hangs_costs_only_the_dump_that_hangs():
    found = ended(["a", "b", "hangs", "d"], limits=Limits(load_timeout_s=4, timeout_s=0.2), grace_s=0.3)
    assert [by(found[name][0]) for name in ("a", "b", "d")] == ["batch", "batch", "alone"]
    error = found["hangs"][0].error
    assert error is not None
    assert (error.kind, error.exit_code) == ("BudgetSpent", 21)


def test_what_may_come_of_sharing_a_process_is_tried_again_alone():
    found = ended(["a", "memory", "c"])
    assert [by(result) for result, _ in found.values()] == ["batch", "batch", "alone"]
    assert "can't allocate memory" in found["memory"][1]
    # Alone in its batch it shared with nobody.
    single = ended(["memory"])["memory"]
    assert single[0].error is not None
    assert single[0].error.kind == "InternalError"


def test_a_bad_dump_keeps_its_error_and_is_not_tried_again():
    result, alone = ended(["a", "bad", "c"])["bad"]
    assert alone == ""
    assert result.error is not None
    assert (result.error.kind, result.error.exit_code, result.error.offset) == ("TornDump", 4, 7)
    assert "\x1b" not in result.error.message


def test_an_item_that_is_not_of_the_job_ends_the_worker():
    found = ended(["a"], batch="nonsense")
    assert by(found["a"][0]) == "alone"
    assert "not one of ours" in found["a"][1]


@pytest.mark.long
def test_a_job_cannot_buy_time_by_ending_one_dump_again():
    found = ended(["a", "b"], batch="buys_time", limits=Limits(load_timeout_s=4, timeout_s=0.1), grace_s=0.3)
    assert by(found["a"][0]) == "batch"
    assert by(found["b"][0]) == "alone"
    assert "took longer" in found["b"][1]


def test_no_dumps_start_no_worker():
    assert ended([]) == {}


def test_a_failing_listener_leaves_no_worker_and_is_raised():
    def take(index: int, result: Result, alone: str) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run_batch(["a", "b"], {}, on_result=take, at_once=2, batch_function=f"{JOBS}:batch")
