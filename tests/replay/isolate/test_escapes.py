"""Programs that try to get out of their worker, hang or die in it: each attempt fails, and the next replay works."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replay.isolate.environment import added
from replay.isolate.limits import Limits
from replay.isolate.result import Result
from replay.isolate.supervisor import run, supervise
from tests.replay.isolate.escape_jobs import ALLOWED, HARMLESS

SWITCHES = ("PPLX_SYSCALL_FILTER", "PPLX_NETWORK_NAMESPACE", "PPLX_LANDLOCK")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir(mode=0o700)
    (folder / "secret").write_text("secret")
    (tmp_path / "dump").write_text("a dump")
    return folder


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.fixture
def signals() -> Iterator[list[int]]:
    seen: list[int] = []
    before = signal.signal(HARMLESS, lambda number, _: seen.append(number))
    yield seen
    signal.signal(HARMLESS, before)


def do(name: str, job: dict[str, Any] | None = None, **options: Any) -> Result:
    program = {"target": "app=agent:main", **(job or {})}
    return run(program, job_function=f"tests.replay.isolate.escape_jobs:{name}", **options)


def unharmed(outside: Path, listener: socket.socket, signals: list[int]) -> None:
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "secret"
    assert (outside / "secret").stat().st_mode & 0o777 == 0o644
    assert (outside.parent / "dump").read_text() == "a dump"
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert signals == []


def needs_all_layers(result: Result) -> None:
    if missing := result.guard.get("missing"):
        pytest.skip(f"not all layers here: {missing}")


def test_what_python_code_tries_is_refused_and_named(
    outside: Path, listener: socket.socket, signals: list[int]
) -> None:
    job = {"port": listener.getsockname()[1], "outside": str(outside), "dump": str(outside.parent / "dump")}
    result = do("in_python", job)
    assert result.report is not None, result.error
    needs_all_layers(result)
    unharmed(outside, listener, signals)
    assert set(result.report["seen"].values()) == {"Refused"}, result.report["seen"]
    named = [attempt.partition("(")[0] for attempt in result.guard["refused"]]
    assert named == [
        "socket.connect", "os.fork", "subprocess.Popen", "os.system", "open", "open", "open", "open", "open",
        "open", "os.listdir", "os.listdir", "open", "open", "os.remove", "os.rename", "os.mkdir", "os.chmod", "open",
        "os.kill", "os.killpg",
    ]  # fmt: skip
    assert any("secret" in attempt for attempt in result.guard["refused"])


def native(outside: Path, listener: socket.socket, **options: Any) -> Result:
    job = {"port": listener.getsockname()[1], "outside": str(outside), "dump": str(outside.parent / "dump"), **options}
    result = do("in_native_code", job)
    assert result.report is not None, result.error
    return result


RIGHT = {"own signal", "own file", "own state", "own thread", "processor"}


def test_what_native_code_tries_fails(outside: Path, listener: socket.socket, signals: list[int]) -> None:
    result = native(outside, listener)
    needs_all_layers(result)
    unharmed(outside, listener, signals)
    assert result.report is not None
    got_out = {name for name, ended in result.report["seen"].items() if ended == ALLOWED}
    assert got_out == RIGHT, result.report["seen"]
    assert result.guard["grade"] == "audit-hook+seccomp+netns+landlock"
    assert "gaps" not in result.guard


FILES = ("read", "write", "remove", "truncate", "words of the parent")
ENVIRONMENT = "environment of the parent"
NETWORK = ("connect", "sendto")
SIGNALS = ("kill", "tgkill", "sigqueue", "signal by file")


@pytest.mark.parametrize(
    ("off", "grade", "others_stop"),
    [
        ("PPLX_NETWORK_NAMESPACE", "audit-hook+seccomp+landlock", (*NETWORK, *FILES, *SIGNALS, "execve", ENVIRONMENT)),
        ("PPLX_LANDLOCK", "audit-hook+seccomp+netns", (*NETWORK, *SIGNALS, "execve", "chmod", ENVIRONMENT)),
        (
            "PPLX_SYSCALL_FILTER",
            "audit-hook+netns+landlock",
            (*NETWORK, *FILES, "kill", "tgkill", "execve", "ptrace", ENVIRONMENT),
        ),
    ],
)
def test_one_layer_less_shows_in_the_grade_and_the_others_stop_their_part(
    outside: Path,
    listener: socket.socket,
    signals: list[int],
    monkeypatch: pytest.MonkeyPatch,
    off: str,
    grade: str,
    others_stop: tuple[str, ...],
) -> None:
    needs_all_layers(do("fill_own_folder"))
    monkeypatch.setenv(off, "off")
    result = native(outside, listener, only=others_stop)
    unharmed(outside, listener, signals)
    assert result.report is not None
    assert ALLOWED not in result.report["seen"].values(), result.report["seen"]
    assert result.guard["grade"] == grade
    (why,) = result.guard["missing"].values()
    assert off in why


def test_without_any_layer_of_the_system_the_report_says_what_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    for switch in SWITCHES:
        monkeypatch.setenv(switch, "off")
    guard = do("fill_own_folder").guard
    assert guard["grade"] == "audit-hook"
    assert len(guard["missing"]) == 3
    assert len(guard["gaps"]) == 5
    assert any("signals" in gap for gap in guard["gaps"])


def test_python_code_reads_no_environment_of_others_where_no_rule_on_files_is_in_force(
    outside: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPLX_LANDLOCK", "off")
    job = {"port": listener.getsockname()[1], "outside": str(outside), "dump": str(outside.parent / "dump")}
    result = do("in_python", job)
    assert result.report is not None, result.error
    seen = result.report["seen"]
    assert (seen["environment of the parent"], seen["processes"], seen["read"]) == ("Refused", "Refused", "allowed")


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_a_worker_of_root_keeps_no_capability_but_that_of_reading_what_it_is_given() -> None:
    result = do("capabilities")
    assert result.report is not None, result.error
    read_search = 1 << 2 if "landlock" not in result.guard.get("missing", {}) else 0
    held = {name: value & ~read_search for name, value in result.report.items()}
    if os.geteuid() != 0:
        del held["CapBnd:"]  # who holds no capability cannot narrow the set, and gains nothing by it
    assert set(held.values()) == {0}, held


def test_the_temporary_folder_is_the_workers_own_and_goes_with_it() -> None:
    first, second = do("fill_own_folder").report, do("fill_own_folder").report
    assert first is not None
    assert second is not None
    assert first["folder"] != second["folder"]
    assert not Path(first["folder"]).exists()


async def test_variables_out_of_a_dump_take_no_guard_off() -> None:
    hostile = {"PPLX_SYSCALL_FILTER": "off", "LD_PRELOAD": "/x.so", "PYTHONPATH": "/x", "TMPDIR": "/", "REGION": "eu"}
    result = await supervise({}, job_function="tests.replay.isolate.escape_jobs:fill_own_folder", environment=hostile)
    assert result.report is not None, result.error
    variables = result.report["variables"]
    assert variables["REGION"] == "eu"
    assert all(variables.get(name) != value for name, value in hostile.items() if name != "REGION")
    assert "seccomp" not in result.guard.get("missing", {})


def test_of_pythons_variables_only_a_hash_seed_is_let_in() -> None:
    assert added({"PYTHONHASHSEED": "7", "PYTHONSTARTUP": "/x", "A": "1"}) == {"PYTHONHASHSEED": "7", "A": "1"}
    for seed in ("random", "-1", "", "4294967296", "٣"):
        assert added({"PYTHONHASHSEED": seed}) == {}
    assert added({"": "x", "A=B": "x", "A\0": "x", "B": "\0"}) == {}
    assert added({"A": "x" * 100_000}) == {}, "with it no process can be started"


def works() -> None:
    result = do("fill_own_folder")
    assert result.report is not None, result.error


@pytest.mark.parametrize(
    ("how", "where"),
    [("python", "spins_in_python"), ("native", "spins_in_native_code"), ("loud", "spins_aloud")],
)
def test_an_endless_loop_ends_in_time_with_the_place_where_it_spun(how: str, where: str) -> None:
    began = time.monotonic()
    result = do("spins", {"how": how}, limits=Limits(load_timeout_s=60, timeout_s=0.3))
    assert time.monotonic() - began < 30
    assert result.error is not None
    assert result.error.kind == "BudgetSpent"
    _, _, stack = result.error.evidence.partition("where it stood:")
    assert f"in {where}" in stack, result.error.evidence
    assert "escape_jobs.py" in stack
    works()


def test_a_loop_in_a_loading_job_shows_where_it_stood_too() -> None:
    limits = Limits(load_timeout_s=4)
    result = run({}, job_function="tests.replay.isolate.isolate_jobs:hang_in_load", limits=limits)
    assert result.error is not None
    assert "in hang_in_load" in result.error.evidence


def test_a_memory_hog_shows_where_it_took_the_memory() -> None:
    limits = Limits(memory_bytes=300 << 20)
    result = run({}, job_function="tests.replay.isolate.isolate_jobs:allocate", limits=limits)
    assert result.error is not None
    assert result.error.kind == "WorkerDied"
    assert "the limit is 300 MiB" in result.error.message
    assert "in allocate" in result.error.evidence
    works()


def test_a_fork_bomb_makes_no_child() -> None:
    result = do("fork_bomb")
    assert result.report == {"children": 0}, result.error
    needs_all_layers(result)
    assert len(result.guard["refused"]) == 50
    works()


def test_without_its_standard_descriptors_a_job_still_reports() -> None:
    result = do("close_standard_descriptors")
    assert result.report == {"verdict": "reproduced"}, result.error
    works()


def test_a_job_that_closes_every_descriptor_is_a_death() -> None:
    result = do("close_everything")
    assert result.error is not None
    assert result.error.kind == "WorkerDied"
    works()


def test_no_folder_of_a_worker_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    do("fill_own_folder")
    do("close_everything")
    do("spins", {"how": "python"}, limits=Limits(timeout_s=0.2))
    assert os.listdir(tmp_path) == []
