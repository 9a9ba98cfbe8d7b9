"""The clock seam: the offset at the start, jumps by whoever's clock, and nothing that could end the program."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import time_machine

from dumps.record.recorder import RecordLevel
from dumps.record.seams import clock
from dumps.record.seams.log import WorldLog

HOUR = 3600 * 10**9
real_time = time.time


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> WorldLog:
    monkeypatch.setattr(clock, "INTERVAL_S", 60.0)  # no look but those that a test makes
    return WorldLog(level=RecordLevel.SHAPE)


@pytest.fixture
def recorded(log: WorldLog) -> Iterator[WorldLog]:
    undo = clock.install(log)
    yield log
    undo()


def offsets(log: WorldLog) -> list[float]:
    """Hours between each noted offset and the first."""
    first = log.clock_changes[0].wall_minus_monotonic_ns
    return [round((change.wall_minus_monotonic_ns - first) / HOUR, 3) for change in log.clock_changes]


def test_the_start_is_noted_and_a_steady_clock_adds_nothing(recorded: WorldLog) -> None:
    for _ in range(100):
        clock.look(recorded)
    (change,) = recorded.clock_changes
    assert abs(change.wall_minus_monotonic_ns + time.monotonic_ns() - time.time_ns()) < 50_000_000
    assert abs(change.monotonic_ns - time.monotonic_ns()) < 10**10


def test_a_jump_is_seen_with_the_next_thing_that_happens(recorded: WorldLog, monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.monotonic_ns()
    recorded.happened()
    monkeypatch.setattr(time, "time", lambda: real_time() + 3600)
    between = time.monotonic_ns()
    recorded.add_tool_call("search")
    monkeypatch.setattr(time, "time", lambda: real_time() - 7200)
    recorded.add_exchange()
    monkeypatch.setattr(time, "time", real_time)
    clock.look(recorded)
    assert offsets(recorded) == [0, 1, -2, 0]
    at = [change.monotonic_ns for change in recorded.clock_changes]
    assert at == sorted(at)
    assert before <= at[1] <= between, "from the last look on that did not see it"


def test_small_steps_are_no_change_until_they_add_up(recorded: WorldLog, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(1, 5):
        monkeypatch.setattr(time, "time", lambda step=step: real_time() + step * 0.02)
        clock.look(recorded)
    assert len(recorded.clock_changes) == 2


def test_a_library_that_fakes_time_in_c_is_seen_as_the_program_sees_it(recorded: WorldLog) -> None:
    with time_machine.travel(1_000_000_000, tick=True):
        clock.look(recorded)
        seen = recorded.clock_changes[-1]
        assert abs(seen.wall_minus_monotonic_ns + time.monotonic_ns() - 10**18) < 10**9
    clock.look(recorded)
    assert len(recorded.clock_changes) == 3


def test_the_thread_sees_a_jump_by_itself_and_is_not_known_to_threading(
    log: WorldLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "INTERVAL_S", 0.01)
    before = threading.enumerate()
    undo = clock.install(log)
    monkeypatch.setattr(time, "time", lambda: real_time() + 3600)
    until = time.monotonic() + 5
    while len(log.clock_changes) < 2 and time.monotonic() < until:
        time.sleep(0.005)
    assert threading.enumerate() == before
    monkeypatch.setattr(time, "time", real_time)
    undo()
    assert offsets(log) == [0, 1, 0], "the last look is made on the way out"
    monkeypatch.setattr(time, "time", lambda: real_time() + 3600)
    time.sleep(0.05)
    log.happened()
    assert len(log.clock_changes) == 3
    assert not log.watchers


@pytest.mark.parametrize(
    "bad", [lambda: 1 / 0, lambda: None, lambda: float("nan"), lambda: float("inf"), lambda: 1e300]
)
def test_a_broken_clock_of_the_program_costs_it_nothing(
    recorded: WorldLog, monkeypatch: pytest.MonkeyPatch, bad: object
) -> None:
    monkeypatch.setattr(time, "time", bad)
    clock.look(recorded)
    monkeypatch.setattr(time, "time", real_time)
    assert recorded.lost["clock looks"] == 1
    assert len(recorded.clock_changes) == 1


def test_changes_are_bounded(recorded: WorldLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "MAX_CHANGES", 3)
    for hours in range(1, 6):
        monkeypatch.setattr(time, "time", lambda hours=hours: real_time() + hours * 3600)
        clock.look(recorded)
    assert len(recorded.clock_changes) == 3
    assert recorded.lost["clock changes"] == 3


def test_a_look_inside_a_look_is_left_out(recorded: WorldLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler that makes a dump may run in the middle of one."""

    def reentrant() -> float:
        clock.look(recorded)
        return real_time() + 3600

    monkeypatch.setattr(time, "time", reentrant)
    clock.look(recorded)
    monkeypatch.setattr(time, "time", real_time)
    assert offsets(recorded) == [0, 1]


def test_what_fakes_time_by_replacing_it_in_modules_does_not_reach_the_recorder() -> None:
    importlib.import_module("dumps.record.program")
    modules = {name: module for name, module in sys.modules.items() if name.startswith(RECORDER)}
    assert modules.keys() > {"dumps.record.seams.files", "dumps.record.seams.http_tap", "dumps.record.seams.tools"}
    for module in modules.values():
        held = [name for name, value in vars(module).items() if value in (time.monotonic_ns, time.monotonic)]
        assert not held, module


RECORDER = ("dumps.record.seams", "dumps.record.program", "dumps.record.inbound", "dumps.record.watchdog")
