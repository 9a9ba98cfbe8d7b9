"""Alarms on the virtual clock."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dumps.record.stacks import capture_exception
from replay.runtime.alarms import Alarms, WaitsForSignal
from replay.runtime.clock import NS, VirtualClock
from replay.runtime.network.blocking import wait
from replay.runtime.network.network import Network
from tests.replay.runtime.real_time import STARTED

ITIMER = signal.ITIMER_REAL


class Rang(Exception):
    pass


@pytest.fixture
def alarms(installed: VirtualClock) -> Iterator[Alarms]:
    alarms = Alarms(installed)
    before = signal.getsignal(signal.SIGALRM)
    undo = alarms.install()
    yield alarms
    undo()
    signal.signal(signal.SIGALRM, before)


def raising(number: int, frame: Any) -> None:
    raise Rang


def after(clock: VirtualClock) -> float:
    return (clock.monotonic_ns() - STARTED) / NS


def test_an_alarm_ends_a_sleep_at_its_time(alarms: Alarms, installed: VirtualClock, quick: None):
    signal.signal(signal.SIGALRM, raising)
    assert signal.alarm(10) == 0
    assert signal.alarm(3) == 10
    time.sleep(2)
    with pytest.raises(Rang):
        time.sleep(100)
    assert after(installed) == 3
    time.sleep(100)
    assert (after(installed), alarms.rung) == (103, 1)


def test_a_handler_that_returns_lets_the_sleep_go_on_and_a_timer_comes_again(
    alarms: Alarms, installed: VirtualClock, quick: None
):
    heard: list[float] = []
    signal.signal(signal.SIGALRM, lambda number, frame: heard.append(after(installed)))
    assert signal.setitimer(ITIMER, 0.5, 2.0) == (0.0, 0.0)
    time.sleep(5)
    assert heard == [0.5, 2.5, 4.5]
    assert signal.getitimer(ITIMER) == (1.5, 2.0)
    assert signal.setitimer(ITIMER, 0) == (1.5, 2.0)
    time.sleep(50)
    assert after(installed) == 55
    assert len(heard) == 3


def test_an_alarm_breaks_off_a_loop_and_reaches_its_own_handler(alarms: Alarms, installed: VirtualClock, quick: None):
    signal.signal(signal.SIGALRM, raising)
    signal.alarm(4)
    with pytest.raises(Rang):
        asyncio.run(asyncio.sleep(60))
    assert after(installed) == 4

    async def waits() -> float:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGALRM, heard.set)
        signal.alarm(2)
        late = asyncio.create_task(asyncio.sleep(60))
        await heard.wait()
        late.cancel()
        return after(installed)

    assert asyncio.run(waits()) == 6


def test_an_alarm_ends_the_wait_for_an_answer_that_never_comes(alarms: Alarms, installed: VirtualClock):
    signal.signal(signal.SIGALRM, raising)
    signal.setitimer(ITIMER, 1.5)
    with pytest.raises(Rang):
        wait(Network((), clock=installed), None, None, "reading")
    assert after(installed) == 1.5


def test_a_pause_waits_for_the_next_alarm_and_for_nothing_else(alarms: Alarms, installed: VirtualClock):
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.alarm(7)
    signal.pause()
    assert after(installed) == 7
    with pytest.raises(WaitsForSignal, match="pause"):
        signal.pause()


@pytest.mark.parametrize(
    "wait_for_it",
    [
        lambda: signal.sigtimedwait([signal.SIGUSR1], 0.1),
        lambda: signal.sigwait([signal.SIGUSR1]),
        lambda: signal.sigwaitinfo([signal.SIGUSR1]),
    ],
)
def test_a_wait_for_a_signal_is_refused(alarms: Alarms, installed: VirtualClock, wait_for_it: Callable[[], Any]):
    with pytest.raises(WaitsForSignal):
        wait_for_it()
    assert len(installed.refusals) == 1


def test_an_alarm_that_nobody_handles_does_not_end_us(alarms: Alarms, installed: VirtualClock):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(1)
    with pytest.raises(WaitsForSignal, match="does not handle"):
        time.sleep(2)


def test_only_a_failure_from_the_handler_is_unheard(alarms: Alarms):
    signal.signal(signal.SIGALRM, raising)
    try:
        os.kill(os.getpid(), signal.SIGALRM)
    except Rang as error:
        of_the_handler = capture_exception(error)
    try:
        raise LookupError
    except LookupError as error:
        other = capture_exception(error)
    assert not alarms.unheard(of_the_handler)  # none was set
    signal.alarm(5)
    assert alarms.unheard(of_the_handler)
    assert not alarms.unheard(other)
    with pytest.raises(Rang):
        time.sleep(6)
    assert not alarms.unheard(of_the_handler)


@pytest.mark.parametrize("given", [(-1.0,), (1.0, -1.0), (float("nan"),), (float("inf"),)])
def test_what_is_no_time_is_refused_as_the_system_does(alarms: Alarms, given: tuple[float, ...]):
    with pytest.raises(OSError, match="Invalid argument"):
        signal.setitimer(ITIMER, *given)


def test_timers_of_processor_time_stay_real(alarms: Alarms):
    assert signal.setitimer(signal.ITIMER_PROF, 0) == (0.0, 0.0)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
