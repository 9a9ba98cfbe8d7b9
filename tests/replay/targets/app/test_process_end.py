"""A program that ends its process itself, in its replay: a result of the program like any other end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from replay.isolate.result import Result
from tests.small_programs import SmallPrograms

Replay = Callable[[str], Result]

LEAVES = """
import threading
from os import _exit

def fails():
    raise RuntimeError("the queue is gone")

def leaves():
    print("about to go")
    leave(5)

def leave(status):
    try:
        _exit(status)
    finally:
        print("never")

def in_a_thread():
    thread = threading.Thread(target=os._exit, args=(5,))
    thread.start()
    thread.join()

def well():
    leave(0)
"""


@pytest.fixture
def replay(tmp_path: Path) -> Replay:
    programs = SmallPrograms(tmp_path)
    name = programs.write(LEAVES)
    dump = programs.record(name, "fails")
    return lambda entry: programs.replay(dump, f"{name}:{entry}")


def test_a_status_that_tells_of_a_failure_is_another_failure(replay: Replay) -> None:
    result = replay("leaves")
    assert result.report is not None, result.error
    report = result.report
    assert report["verdict"] == "different-failure"
    assert report["signature"]["identity"]["kind"] == "process-death"
    assert report["signature"]["identity"]["frame"].endswith(":leave")
    told = [one["message"] for one in report["findings"] if one["code"] == "process-ended"]
    assert len(told) == 1
    assert told[0].startswith("the program ended its process by os._exit with status 5, in small")
    assert (report["output"], report["world"]["ended"]) == ("about to go\n", "exited")
    assert min(report["timings"].values()) >= 0  # of this machine's clock, though the program's is still in its place


def test_so_is_one_in_a_thread_whose_function_is_of_the_standard_library(replay: Replay) -> None:
    result = replay("in_a_thread")
    assert result.report is not None, result.error
    assert result.report["verdict"] == "different-failure"


def test_status_0_is_an_end_without_failure(replay: Replay) -> None:
    result = replay("well")
    assert result.report is not None, result.error
    assert (result.report["verdict"], result.report["signature"]) == ("not-reproduced", None)
