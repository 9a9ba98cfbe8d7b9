"""Deadlines: kept in real time, in any order, and forgotten when they are cancelled."""

from __future__ import annotations

import threading
import time

import pytest

from dumps.record.watchdog import Watchdog


@pytest.fixture
def watchdog():
    made = Watchdog()
    yield made
    made.stop()


def test_what_is_due_first_is_called_first_whenever_it_was_asked_for(watchdog):
    called: list[float] = []
    over = threading.Event()
    began = time.monotonic()
    for seconds in (0.6, 0.3, 0.05):
        watchdog.watch(seconds, lambda: called.append(time.monotonic() - began))
        time.sleep(0.01)  # it waits for the first one by now
    watchdog.watch(0.7, over.set)
    assert over.wait(10)
    early, middle, late = called
    assert 0.05 <= early < 0.3 <= middle < 0.6 <= late


def test_what_is_cancelled_is_not_called_and_not_kept(watchdog):
    called: list[int] = []
    for number in range(1000):
        watchdog.watch(60.0 if number else 0.05, lambda number=number: called.append(number))()
    over = threading.Event()
    watchdog.watch(0.1, over.set)
    assert over.wait(5)
    assert called == []
    assert len(watchdog._due) < 20


def test_a_callback_that_fails_does_not_end_the_watch(watchdog, caplog):
    over = threading.Event()
    watchdog.watch(0.01, lambda: [][0])
    watchdog.watch(0.05, over.set)
    assert over.wait(5)
    assert "a deadline could not be handled" in caplog.text


def test_after_stop_nothing_is_called(watchdog):
    called: list[int] = []
    watchdog.watch(0.05, lambda: called.append(1))
    watchdog.stop()
    time.sleep(0.1)
    assert called == []
