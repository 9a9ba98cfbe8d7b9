from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from replay.isolate.driver import may_use_gpu
from replay.isolate.result import Result
from replay.isolate.supervisor import run


@pytest.fixture
def port() -> Iterator[int]:
    """A port of this machine that would accept a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def skip_without(result: Result, layer: str) -> None:
    if layer in result.guard.get("missing", {}):
        pytest.skip(f"no {layer} here: {result.guard['missing'][layer]}")


def test_network_and_processes_are_refused_and_named(port: int) -> None:
    result = run({"port": port}, job_function="tests.replay.isolate.isolate_jobs:attempts")
    assert result.report is not None, result.error
    assert set(result.report["seen"].values()) == {"Refused"}
    tried = " ".join(result.guard["refused"])
    assert f"('127.0.0.1', {port})" in tried
    assert "subprocess.Popen" in tried
    assert "sqlite3.connect('state.db')" in tried


def test_native_code_is_refused_by_the_filter(port: int) -> None:
    result = run({"port": port}, job_function="tests.replay.isolate.isolate_jobs:native_attempts")
    assert result.report is not None, result.error
    skip_without(result, "seccomp")
    assert "seccomp" in result.guard["grade"].split("+")
    assert set(result.report["seen"].values()) == {errno.EPERM}, result.report["seen"]


def test_nothing_arrives_at_a_listening_port(port: int) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        for name in ("attempts", "native_attempts"):
            run({"port": listener.getsockname()[1]}, job_function=f"tests.replay.isolate.isolate_jobs:{name}")
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_what_a_replay_needs_still_works(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("numbers")
    result = run({"dump": str(tmp_path / "weights")}, job_function="tests.replay.isolate.isolate_jobs:allowed")
    assert result.report == {"socketpair": "x", "thread": [1], "file": "numbers"}
    assert result.guard["refused"] == []


def test_a_filter_that_is_switched_off_shows_in_the_grade(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPLX_SYSCALL_FILTER", "off")
    result = run({"port": port}, job_function="tests.replay.isolate.isolate_jobs:attempts")
    assert result.report is not None, result.error
    assert "seccomp" not in result.guard["grade"]
    assert "PPLX_SYSCALL_FILTER" in result.guard["missing"]["seccomp"]
    assert "native code can start processes" in result.guard["gaps"]
    assert set(result.report["seen"].values()) == {"Refused"}


def test_a_gpus_driver_gets_what_it_needs_and_no_more_and_the_grade_says_so() -> None:
    job = {"dump": "unread", "device": "cuda"}
    result = run(job, job_function="tests.replay.isolate.isolate_jobs:driver_attempts")
    assert result.report is not None, result.error
    skip_without(result, "seccomp")
    assert "seccomp-gpu" in result.guard["grade"].split("+")
    assert "Unix sockets" in result.guard["allowed"]
    assert set(result.report["driver"].values()) == {0}, result.report
    assert set(result.report["other"].values()) == {errno.EPERM}, result.report


def test_without_a_gpu_its_driver_gets_nothing() -> None:
    result = run({"dump": "unread", "device": "cpu"}, job_function="tests.replay.isolate.isolate_jobs:driver_attempts")
    assert result.report is not None, result.error
    skip_without(result, "seccomp")
    assert "seccomp" in result.guard["grade"].split("+")
    assert "allowed" not in result.guard
    assert (result.report["driver"]["bind"], result.report["driver"]["listen"]) == (errno.EPERM, errno.EPERM)


def test_which_jobs_may_use_a_gpu(tmp_path: Path) -> None:
    node, missing = (str(tmp_path),), (str(tmp_path / "missing"),)
    assert may_use_gpu({"dump": "a", "device": "cuda"}, missing)
    assert may_use_gpu({"dumps": ["a"]}, node)
    assert may_use_gpu({"dump": "a", "device": "auto"}, node)
    for job in ({"dump": "a"}, {"dump": "a", "device": "auto"}):
        assert not may_use_gpu(job, missing)
    for other in ({"dump": "a", "device": "cpu"}, {"dump": "a", "target": "schedule"}, {"paths": ["a"]}):
        assert not may_use_gpu(other, node)
