"""What a replayed program finds out about its own process."""

from __future__ import annotations

import os
import signal
import sys
import tempfile

import pytest

from dumps.schema import state_pb2 as pb
from replay.runtime.env import load_env
from replay.runtime.own_process import OwnProcess, real_path
from tests.small_programs import codes

PROGRAM = """
import logging, tempfile

FOLDER = tempfile.gettempdir()
MADE = tempfile.mkdtemp()

def main():
    with tempfile.NamedTemporaryFile("w+", suffix=".txt") as file:
        file.write("kept")
        file.seek(0)
        text = file.read()
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/inner", "w") as inner:
            inner.write("1")
        names = os.listdir(folder)
    by_log = logging.LogRecord("name", 1, "file", 1, "message", (), None).process
    with open(f"/proc/{os.getpid()}/status") as status:
        told = bool(status.read())
    os.kill(os.getpid(), 0)
    raise LookupError(repr((FOLDER, file.name, text, names, sys.argv, os.getpid() == by_log, os.getpid(),
        os.getppid(), os.environ.get("TMPDIR"), told)))
"""


@pytest.fixture
def shown():
    process = OwnProcess(argv=("agent.py", "-x"), pid=4711, parent_pid=4710, temporary_folder="/recorded/tmp")
    undo = process.install()
    yield process
    undo()


def test_a_program_with_temporary_files_finds_the_process_that_was_recorded(programs, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(sys, "argv", ["agent.py", "--fast"])
    name = programs.write(PROGRAM)
    dump = programs.record(name)
    report = programs.replay(dump, f"{name}:main").report
    assert report["verdict"] == "reproduced", report["findings"]
    assert report["environment"].get("not_set", []) == []
    assert "argv-secret" not in codes(report)


def test_a_hidden_argument_is_said_where_the_failure_does_not_come_back(programs, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["agent.py", "--token=abc"])
    name = programs.write("def main():\n    if len(sys.argv[1]) == 11:\n        raise KeyError('short')\n")
    report = programs.replay(programs.record(name), f"{name}:main").report
    assert "argv-secret" in codes(report)


def test_what_is_not_recorded_stays_as_it_is():
    before = sys.argv, os.getpid(), os.getppid(), tempfile.gettempdir()
    undo = OwnProcess.of(pb.RuntimeState()).install()
    assert (sys.argv, os.getpid(), os.getppid(), tempfile.gettempdir()) == before
    undo()


def test_everything_is_back_afterwards(shown):
    assert (sys.argv, os.getpid(), os.getppid()) == (["agent.py", "-x"], 4711, 4710)
    assert (tempfile.gettempdir(), os.environ.get("TMPDIR")) == ("/recorded/tmp", None)


def test_a_second_one_changes_nothing_and_takes_nothing_away(shown):
    undo = OwnProcess(pid=1, argv=("other",)).install()
    undo()
    assert (os.getpid(), sys.argv) == (4711, ["agent.py", "-x"])


def test_a_number_leads_to_this_process(shown):
    with pytest.raises(ProcessLookupError):
        os.kill(2**22 - 3, 0)
    os.kill(4711, 0)
    assert os.sched_getaffinity(4711) == os.sched_getaffinity(0)
    assert real_path("/proc/4711/status") == "/proc/self/status"
    assert real_path(b"/proc/4711") == b"/proc/self"
    assert real_path("/proc/47111/status") == "/proc/47111/status"


def test_libraries_that_ask_the_system_and_we_have_the_real_number(shown):
    namespace = {"__name__": "psutil._pslinux", "os": os}
    exec("number = os.getpid()", namespace)
    assert namespace["number"] != 4711
    ours = {"__name__": "replay.isolate.guard", "os": os}
    exec("number = os.getpid()", ours)
    assert ours["number"] == namespace["number"]


def test_while_a_module_is_loaded_temporary_files_are_real(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = OwnProcess(temporary_folder="/recorded/tmp")
    undo = process.install()
    with process.loading():
        assert tempfile.gettempdir() == "/recorded/tmp"
        assert os.path.dirname(tempfile.mkdtemp()) == str(tmp_path)
        assert os.path.dirname(tempfile.mkdtemp(prefix=b"b")) == os.fsencode(tmp_path)
        with pytest.raises(FileNotFoundError):
            tempfile.mkdtemp(dir="/recorded/tmp")
    with pytest.raises(FileNotFoundError):
        tempfile.mkdtemp()
    undo()
    assert tempfile.gettempdir() == str(tmp_path)


def test_a_signal_to_itself_comes_in_a_whole_world():
    state = pb.RuntimeState()
    state.manifest.record_level, state.manifest.pid = "full", 4711
    state.program.kind = "block"
    state.program.started_ns, state.program.wall_minus_monotonic_ns = 10**9, 10**18
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        with load_env(state):
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1]
