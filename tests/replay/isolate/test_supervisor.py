from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from replay.isolate.limits import Limits
from replay.isolate.process import TAIL_BYTES
from replay.isolate.protocol import ProtocolError
from replay.isolate.result import Result
from replay.isolate.supervisor import run, supervise
from tests.processes import is_gone

LIMITS = Limits(load_timeout_s=60)


def do(name: str, job: dict[str, Any] | None = None, *, limits: Limits = LIMITS, **options: Any) -> Result:
    return run(job or {}, job_function=f"tests.replay.isolate.isolate_jobs:{name}", limits=limits, **options)


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while not is_gone(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)


def test_report_and_events_come_back_in_order() -> None:
    events: list[dict[str, Any]] = []
    result = do("echo", {"dump": "a.pplx", "text": "ü\u202e"}, on_event=events.append)
    assert result.error is None
    assert result.report == {"verdict": "reproduced", "job": {"dump": "a.pplx", "text": "ü\u202e"}}
    assert events == [{"event": "progress", "stage": "load", "done": 1, "total": 2}, {"event": "step-started"}]
    assert result.step_started


def test_prints_of_a_job_cannot_reach_the_protocol() -> None:
    result = do("noisy")
    assert result.error is None, result.error
    assert result.report == {"stdin": ""}


def test_a_lot_of_stderr_neither_blocks_nor_is_kept() -> None:
    events: list[dict[str, Any]] = []
    result = do("chatty", on_event=events.append)
    assert result.report == {"verdict": "reproduced"}
    assert len(events) == 400


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("corrupt", "CorruptDump", 4),
        ("usage", "UsageError", 2),
        ("bug", "InternalError", 70),
        ("leave", "InternalError", 70),
        ("not_finite", "ProtocolError", 70),
    ],
)
def test_errors_of_a_job_arrive_as_errors(name: str, kind: str, code: int) -> None:
    result = do(name)
    assert result.report is None
    assert result.error is not None
    assert (result.error.kind, result.error.exit_code) == (kind, code)


def test_a_damaged_dump_keeps_its_offset_and_remedy_and_loses_its_escapes() -> None:
    error = do("corrupt").error
    assert error is not None
    assert error.offset == 4711
    assert error.remedy
    assert "\x1b" not in error.message
    assert "\\x1b" in error.message


def test_an_unexpected_exception_comes_with_its_traceback() -> None:
    error = do("bug").error
    assert error is not None
    assert "a case nobody thought of" in error.message
    assert "isolate_jobs.py" in error.evidence


def test_hang_in_loading_is_ended_by_the_load_timeout() -> None:
    result = do("hang_in_load", limits=Limits(load_timeout_s=4, timeout_s=100))
    assert result.error is not None
    assert (result.error.kind, result.error.exit_code) == ("BudgetSpent", 21)
    assert "loading" in result.error.message
    assert "at load 3 of 10" in result.error.message
    assert not result.step_started


def test_timeout_counts_from_the_first_step() -> None:
    # Loading may take a minute and the steps a fifth of a second: ended by the latter, whatever the start-up took.
    started = time.monotonic()
    result = do("hang_in_step", limits=Limits(load_timeout_s=60, timeout_s=0.2))
    assert time.monotonic() - started < 50
    assert result.error is not None
    assert result.error.kind == "BudgetSpent"
    assert "at step 12 of 64" in result.error.message
    assert result.step_started


def test_a_job_deaf_to_signals_is_ended_all_the_same() -> None:
    error = do("hang_deaf", limits=Limits(load_timeout_s=60, timeout_s=0.2)).error
    assert error is not None
    assert error.kind == "BudgetSpent"


def test_a_job_cannot_buy_time_by_starting_again() -> None:
    error = do("start_again_and_again", limits=Limits(load_timeout_s=60, timeout_s=0.3)).error
    assert error is not None
    assert error.kind == "BudgetSpent"


@pytest.mark.parametrize(
    ("name", "signal_name", "evidence"),
    [("segfault", "SIGSEGV", "isolate_jobs.py"), ("abort", "SIGABRT", "c10::Error")],
)
def test_death_by_signal_names_it_and_keeps_the_end_of_stderr(name: str, signal_name: str, evidence: str) -> None:
    error = do(name).error
    assert error is not None
    assert error.kind == "WorkerDied"
    assert signal_name in error.message
    assert evidence in error.evidence
    assert len(error.evidence) <= TAIL_BYTES


def test_death_says_how_far_the_job_got() -> None:
    error = do("segfault").error
    assert error is not None
    assert "at rebuild 7 of 9" in error.message


def test_exit_without_a_report_is_a_death() -> None:
    error = do("quit_silently").error
    assert error is not None
    assert error.kind == "WorkerDied"
    assert "code 9" in error.message


def test_memory_over_the_limit_ends_the_worker() -> None:
    error = do("allocate", limits=Limits(load_timeout_s=60, memory_bytes=200 << 20)).error
    assert error is not None
    assert error.kind == "WorkerDied"
    assert "the limit is 200 MiB" in error.message


@pytest.mark.parametrize("name", ["garbage", "strange_event"])
def test_a_worker_that_speaks_nonsense_is_ended(name: str) -> None:
    error = do(name).error
    assert error is not None
    assert error.kind == "ProtocolError"


def test_a_job_that_is_not_json_is_refused_before_a_process_starts() -> None:
    with pytest.raises(ProtocolError):
        do("echo", {"timeout_s": float("inf")})


def test_a_failing_listener_ends_the_worker() -> None:
    pids: list[int] = []

    def listener(event: dict[str, Any]) -> None:
        pids.append(event["done"])
        raise RuntimeError("listener")

    with pytest.raises(RuntimeError, match="listener"):
        do("report_pid_and_hang", on_event=listener)
    wait_gone(pids[0])


async def test_cancelling_ends_the_worker() -> None:
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def listener(event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            started.set_result(event["done"])

    task = asyncio.create_task(
        supervise({}, on_event=listener, job_function="tests.replay.isolate.isolate_jobs:report_pid_and_hang")
    )
    pid = await started
    assert not is_gone(pid)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_gone(pid)


PARENT = """
import sys
from replay.isolate.supervisor import run

def listener(event):
    if event["event"] == "progress":
        print(event["done"], flush=True)

try:
    run({}, on_event=listener, job_function="tests.replay.isolate.isolate_jobs:report_pid_and_hang")
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_the_worker_ends_with_its_parent(number: signal.Signals, code: int) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        parent.send_signal(number)
        assert parent.wait(30) == code
    wait_gone(pid)


def test_a_worker_that_runs_no_python_ends_with_its_parent() -> None:
    code = PARENT.replace("report_pid_and_hang", "hold_the_interpreter")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_gone(pid)


def test_the_worker_runs_under_limits_and_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-2")
    monkeypatch.setenv("https_proxy", "http://proxy")
    monkeypatch.setenv("PPLX_TOKEN", "secret-3")
    report = do("facts").report
    assert report is not None
    assert report["core"] == [0, 0]
    assert report["files"][0] <= 1024
    assert not report["torch"]
    assert report["session"]
    assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "https_proxy", "PPLX_TOKEN"} & set(report["environ"])
    assert report["environ"]["HF_HUB_OFFLINE"] == "1"
    assert report["environ"]["OMP_WAIT_POLICY"] == "passive"


def test_modules_of_the_current_folder_do_not_get_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('hijacked')")
    monkeypatch.chdir(tmp_path)
    report = do("facts").report
    assert report is not None
    assert "" not in report["path"]
    assert str(tmp_path) not in report["path"]


def test_what_a_job_asks_is_answered_in_order() -> None:
    async def answer(question: dict[str, Any]) -> dict[str, Any]:
        return {"double": 2 * question["number"], "text": "x" * 300_000}  # above what a pipe holds

    result = do("asks", {"questions": 5}, on_ask=answer)
    assert result.report is not None, result.error
    assert [answer["double"] for answer in result.report["answers"]] == [0, 2, 4, 6, 8]


def test_no_time_of_the_job_passes_while_it_waits_for_an_answer() -> None:
    async def answer(question: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0.6)
        return {}

    result = do("asks", {"questions": 3}, on_ask=answer, limits=Limits(load_timeout_s=60, timeout_s=1.0))
    assert result.report is not None, result.error


def test_a_question_that_nobody_answers_ends_the_job() -> None:
    result = do("asks", {"questions": 1})
    assert result.error is not None
    assert result.error.kind == "ProtocolError"
    assert "asked" in result.error.message


def test_an_error_in_an_answer_is_raised_and_the_worker_is_gone() -> None:
    async def answer(question: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("no model")

    with pytest.raises(RuntimeError, match="no model"):
        do("asks", {"questions": 1}, on_ask=answer)
