from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

RUNS = """
from replay.cli import console
from replay.isolate.supervisor import run
@console.command()
def wait():
    run({}, job_function="tests.replay.isolate.isolate_jobs:report_pid_and_hang", on_event=lambda e: print(e["event"], flush=True))
wait()
"""  # noqa: E501


def started(code: str, folder: Path, **options: object) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    process: subprocess.Popen[str] = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, **options
    )  # type: ignore[call-overload]
    assert process.stdout is not None
    assert process.stdout.readline(), process.communicate()
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_command_leaves_no_folder_of_a_worker(tmp_path: Path, number: signal.Signals) -> None:
    process = started(RUNS, tmp_path)
    assert len(os.listdir(tmp_path)) == 1
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err.strip()) == (128 + number, f"ended by {number.name}")
    assert os.listdir(tmp_path) == []


def test_a_command_in_the_background_that_ignores_ctrl_c_ends_by_sigterm(tmp_path: Path) -> None:
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    process = started(ignoring + RUNS, tmp_path)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert os.listdir(tmp_path) == []


def test_sighup_stays_ignored_under_nohup(tmp_path: Path) -> None:
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    process = started(ignoring + RUNS, tmp_path)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
