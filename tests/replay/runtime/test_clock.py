"""The virtual clock: every way to ask for the time, jumps, sleeping, threads, and everything back in place after."""

from __future__ import annotations

import concurrent.futures
import datetime
import math
import queue
import sys
import threading
import time
import types
import uuid
from collections.abc import Iterator
from decimal import Decimal
from time import monotonic as early_monotonic
from time import perf_counter_ns as early_perf_counter_ns
from time import sleep as early_sleep
from time import time as early_time
from typing import Any

import pytest

from dumps.record.recorder import RecordLevel
from dumps.record.seams import clock as clock_seam
from dumps.record.seams.log import WorldLog
from dumps.schema import state_pb2 as pb
from replay.runtime.clock import ClockOutOfRange, VirtualClock, VirtualTimeInThread
from replay.runtime.errors import RuntimeReplayError

NS = 1_000_000_000
STARTED = 5_000 * NS
WALL = 1_700_000_000_123_456_789
HOUR = 3600 * NS

REAL_FUNCTIONS = {name: value for name, value in vars(time).items() if callable(value)}


@pytest.fixture
def clock() -> VirtualClock:
    changes = [
        pb.ClockChange(monotonic_ns=STARTED + 10 * NS, wall_minus_monotonic_ns=WALL - STARTED + HOUR),
        pb.ClockChange(monotonic_ns=STARTED + 20 * NS, wall_minus_monotonic_ns=WALL - STARTED - HOUR),
    ]
    program = pb.Program(started_ns=STARTED, wall_minus_monotonic_ns=WALL - STARTED)
    clock = VirtualClock.of(program, changes)
    clock.look_ns = 0  # pytest looks too
    return clock


@pytest.fixture
def installed(clock: VirtualClock) -> Iterator[VirtualClock]:
    undo = clock.install()
    try:
        yield clock
    finally:
        undo()


def test_every_wall_clock_shows_the_recorded_time(installed: VirtualClock) -> None:
    stamp = datetime.datetime.fromtimestamp(WALL // NS, datetime.UTC)
    assert time.time_ns() == WALL
    assert time.time() == pytest.approx(WALL / NS, abs=1e-4)
    assert early_time() == pytest.approx(WALL / NS, abs=1e-4)
    assert datetime.datetime.now(datetime.UTC).replace(microsecond=0) == stamp
    assert datetime.datetime.now().timestamp() == pytest.approx(WALL / NS, abs=1e-4)
    assert datetime.date.today() == datetime.datetime.fromtimestamp(WALL / NS).date()
    assert time.gmtime() == time.gmtime(WALL // NS)
    assert time.localtime() == time.localtime(WALL // NS)
    assert time.strftime("%H:%M:%S") == time.strftime("%H:%M:%S", time.localtime(WALL // NS))
    assert time.ctime() == time.asctime() == time.ctime(WALL // NS)
    assert 0 <= time.clock_gettime_ns(time.CLOCK_REALTIME) - WALL < 100
    assert 0 <= (uuid.uuid1().time - 0x01B21DD213814000) * 100 - WALL // 100 * 100 < 100


def test_monotonic_clocks_start_at_the_recorded_time(installed: VirtualClock) -> None:
    installed.advance(7)
    assert time.monotonic_ns() == time.perf_counter_ns() == early_perf_counter_ns() == STARTED + 7
    assert time.monotonic() == time.perf_counter() == early_monotonic() == (STARTED + 7) / NS
    assert time.clock_gettime_ns(time.CLOCK_MONOTONIC) == STARTED + 7
    assert time.clock_gettime(time.CLOCK_MONOTONIC) == (STARTED + 7) / NS


def test_a_program_may_divide_by_the_time_that_something_took(installed: VirtualClock) -> None:
    installed.look_ns = VirtualClock.look_ns
    for clock in (time.time, time.monotonic, time.perf_counter, early_time):
        began = clock()
        assert 1 / (clock() - began) > 0, clock
    now = installed.monotonic_ns()
    assert [time.monotonic_ns(), time.perf_counter_ns()] == [now, now + 1000]
    assert installed.monotonic_ns() == now + 2000, "asking the clock itself costs nothing"


def test_nothing_passes_by_itself_and_cpu_time_does(installed: VirtualClock) -> None:
    before, cpu = installed.monotonic_ns(), time.process_time_ns()
    while time.process_time_ns() - cpu < 2_000_000:
        sum(range(1000))
    assert installed.monotonic_ns() == before


def test_looks_from_other_threads_move_nothing(installed: VirtualClock) -> None:
    installed.look_ns = VirtualClock.look_ns
    before = installed.monotonic_ns()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for clock in (time.monotonic, time.time, time.perf_counter_ns):
            assert pool.submit(clock).result() == pool.submit(clock).result()
    assert installed.monotonic_ns() == before


class Keeper:
    clock = time.monotonic  # a built-in function that a class keeps does not become a method


def test_a_class_that_keeps_a_clock_calls_it_without_itself(installed: VirtualClock) -> None:
    made = type("Made", (), {"clock": time.perf_counter})
    assert made().clock() == STARTED / NS
    assert time.monotonic.__name__ == "monotonic"
    before: Any = Keeper()
    assert before.clock() != STARTED / NS, "what a class keeps since before is out of reach, as the module says"


def test_the_wall_clock_jumps_when_it_did_and_monotonic_time_does_not(installed: VirtualClock) -> None:
    installed.advance_to(STARTED + 10 * NS - 1)
    assert installed.wall_ns() == WALL + 10 * NS - 1
    installed.advance_to(STARTED + 10 * NS)
    assert time.time_ns() == WALL + 10 * NS + HOUR
    time.sleep(10)
    assert time.time_ns() == WALL + 20 * NS - HOUR
    before = installed.monotonic_ns()
    installed.advance_to(STARTED)
    assert installed.monotonic_ns() == before, "time does not go back"
    with pytest.raises(ValueError, match="does not go back"):
        installed.advance(-1)


def test_changes_count_in_order_of_their_time(clock: VirtualClock) -> None:
    shuffled = VirtualClock(
        started_ns=STARTED, wall_minus_monotonic_ns=WALL - STARTED, changes=list(reversed(clock.changes))
    )
    for each in (clock, shuffled):
        each.advance(15 * NS)
        assert each.wall_ns() == WALL + 15 * NS + HOUR
        each.advance(10 * NS)
        assert each.wall_ns() == WALL + 25 * NS - HOUR


def test_sleeping_costs_nothing(installed: VirtualClock) -> None:
    began = REAL_FUNCTIONS["monotonic"]()
    time.sleep(1800)
    early_sleep(1800.5)
    assert REAL_FUNCTIONS["monotonic"]() - began < 1
    assert time.monotonic() == pytest.approx(STARTED / NS + 3600.5)


@pytest.mark.parametrize("bad", [-1, -0.5, math.nan, "1", None, Decimal(1), 2**64, 1e300])
def test_sleep_refuses_what_it_always_refused(bad: object, clock: VirtualClock) -> None:
    with pytest.raises(Exception) as stock:  # noqa: PT011  # whatever it is, ours must be the same
        time.sleep(bad)  # type: ignore[arg-type]
    undo = clock.install()
    try:
        with pytest.raises(stock.type):
            time.sleep(bad)  # type: ignore[arg-type]
    finally:
        undo()
    assert clock.monotonic_ns() == STARTED


def test_the_shortest_sleep_moves_time(installed: VirtualClock) -> None:
    time.sleep(0)
    assert installed.monotonic_ns() == STARTED
    time.sleep(1e-12)
    assert installed.monotonic_ns() == STARTED + 1


def test_sleeping_in_another_thread_is_refused_with_an_explanation(installed: VirtualClock) -> None:
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="helper") as pool:
        with pytest.raises(VirtualTimeInThread, match=r"time.sleep\(3\) .* 'helper_0'") as caught:
            pool.submit(time.sleep, 3).result()
        pool.submit(time.sleep, 0).result()
        assert pool.submit(time.monotonic_ns).result() == STARTED
    assert "asyncio.sleep" in caught.value.remedy
    assert installed.refusals == [caught.value], "a program may swallow it; the report must know"


def test_a_main_thread_that_polls_for_real_work_does_not_sleep_its_deadline_away(installed: VirtualClock) -> None:
    go_on = threading.Event()

    def work() -> str:
        with installed.hold():
            started.set()
            go_on.wait(10)
            return "done"

    started = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        assert started.wait(10)
        held_meanwhile = installed.held
        threading.Timer(0.05, go_on.set).start()
        time.sleep(5)
        assert not installed.held, "a sleep is as long as the work that it waits for"
        assert future.result() == "done"
        assert held_meanwhile
        assert not installed.held
    assert installed.monotonic_ns() == STARTED + 5 * NS


def test_sleep_is_not_kept_waiting_by_its_own_hold(installed: VirtualClock) -> None:
    began = REAL_FUNCTIONS["monotonic"]()
    with installed.hold(), installed.hold():
        time.sleep(60)
        held_meanwhile = installed.held
    assert held_meanwhile
    assert not installed.held
    assert REAL_FUNCTIONS["monotonic"]() - began < 1


def test_waits_with_a_timeout_end_in_real_time(installed: VirtualClock) -> None:
    began = REAL_FUNCTIONS["monotonic"]()
    with pytest.raises(queue.Empty):
        queue.Queue[int]().get(timeout=0.02)
    assert not threading.Event().wait(0.02)
    pending: concurrent.futures.Future[int] = concurrent.futures.Future()
    with pytest.raises(TimeoutError):
        list(concurrent.futures.as_completed([pending], timeout=0.02))
    condition = threading.Condition()
    with condition:
        assert not condition.wait_for(lambda: False, timeout=0.02)
    assert 0.08 <= REAL_FUNCTIONS["monotonic"]() - began < 5
    assert installed.monotonic_ns() == STARTED


def test_a_module_imported_meanwhile_gets_the_real_clock_back(clock: VirtualClock) -> None:
    late = types.ModuleType("imported_during_the_replay")
    sys.modules[late.__name__] = late
    undo = clock.install()
    try:
        exec("from time import monotonic, sleep", vars(late))
        assert late.monotonic() == STARTED / NS
    finally:
        undo()
        del sys.modules[late.__name__]
    assert late.monotonic is REAL_FUNCTIONS["monotonic"]
    assert late.sleep is early_sleep


def test_everything_is_back_in_place(clock: VirtualClock) -> None:
    clock.install()()
    assert {name: value for name, value in vars(time).items() if callable(value)} == REAL_FUNCTIONS
    assert early_monotonic is REAL_FUNCTIONS["monotonic"]
    assert time.time() > 1_760_000_000
    assert vars(sys.modules["concurrent.futures._base"])["time"] is time
    clock.install()()


def test_one_clock_at_a_time(installed: VirtualClock) -> None:
    other = VirtualClock(started_ns=0, wall_minus_monotonic_ns=WALL)
    with pytest.raises(RuntimeReplayError, match="installed already"):
        other.install()
    assert time.time_ns() == WALL


def test_a_jump_that_was_recorded_is_there_from_the_event_before_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    log = WorldLog(level=RecordLevel.SHAPE)
    undo = clock_seam.install(log)
    started = time.monotonic_ns()
    log.add_tool_call("refresh-token")
    call = log.add_tool_call("search")
    assert call is not None
    monkeypatch.setattr(time, "time", lambda: real() + 7200)
    clock_seam.look(log)  # as whoever makes the dump does
    monkeypatch.undo()
    undo()
    clock = VirtualClock(started_ns=started, wall_minus_monotonic_ns=WALL - started, changes=log.clock_changes[:2])
    before = clock.wall_ns()
    clock.advance_to(call.started_ns)
    assert (clock.wall_ns() - before) / NS == pytest.approx(7200, abs=1)


@pytest.mark.parametrize("offset", [-STARTED - 1, 2**63 - 1])
def test_a_wall_time_that_cannot_be_shown_is_refused(offset: int) -> None:
    with pytest.raises(ClockOutOfRange):
        VirtualClock(started_ns=STARTED, wall_minus_monotonic_ns=offset)
    with pytest.raises(ClockOutOfRange):
        VirtualClock(
            started_ns=STARTED,
            wall_minus_monotonic_ns=WALL,
            changes=[pb.ClockChange(monotonic_ns=STARTED, wall_minus_monotonic_ns=offset)],
        )
