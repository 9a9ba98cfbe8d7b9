"""Deadlines that move along with a clock that catches up, and what the record says of others."""

from __future__ import annotations

import asyncio

import pytest

from replay.runtime.clock import NS, VirtualClock
from replay.runtime.deadlines import set_after
from replay.runtime.loop import VirtualLoop, run

STARTED = 1_000 * NS
MS = 1_000_000


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(started_ns=STARTED, wall_minus_monotonic_ns=0)


def here() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def always(when_ns: int, computed_ns: int) -> bool:
    return True


def test_what_the_record_says_of_a_deadline():
    assert set_after(None)(100 * MS, 500 * MS)
    # It was let go of when 500 ms had been computed: those used a deadline of 100 ms up. Not so where it was later.
    assert not set_after(500 * MS)(100 * MS, 500 * MS)
    assert set_after(600 * MS)(100 * MS, 500 * MS)
    # Another was let go of at that very time, so it is what fired.
    assert not set_after(None, [101 * MS])(100 * MS, 500 * MS)
    assert set_after(None, [99 * MS, 300 * MS])(100 * MS, 500 * MS)


def test_timers_that_were_set_since_time_moved_move_along(clock: VirtualClock):
    async def program() -> list[tuple[str, float]]:
        loop, fired = here(), list[tuple[str, float]]()

        def fire(name: str) -> None:
            fired.append((name, round(loop.time() - STARTED / NS, 3)))

        loop.call_later(0.5, fire, "old")
        await asyncio.sleep(0.1)
        loop.call_later(0.3, fire, "new")
        loop.call_later(0.2, fire, "newer, and before it")
        loop.call_later(0.2, fire, "cancelled").cancel()
        loop.call_when_due(STARTED + 250 * MS, fire, "recorded")
        clock.catch_up(STARTED + 1100 * MS, always)
        await asyncio.sleep(1)
        return fired

    assert run(clock, program()) == [
        ("recorded", 1.1),
        ("old", 1.1),
        ("newer, and before it", 1.3),
        ("new", 1.4),
    ]


def test_nothing_moves_where_the_record_says_otherwise(clock: VirtualClock):
    async def program() -> int:
        try:
            async with asyncio.timeout(0.2):
                clock.catch_up(STARTED + NS, lambda when_ns, computed_ns: False)
                await asyncio.sleep(5)
        except TimeoutError:
            pass
        return clock.monotonic_ns()

    assert run(clock, program()) < STARTED + 1100 * MS


def test_a_catching_up_that_is_none_moves_nothing(clock: VirtualClock):
    async def program() -> int:
        clock.advance(NS)
        try:
            async with asyncio.timeout(0.2):
                clock.catch_up(STARTED, always)
                await asyncio.sleep(5)
        except TimeoutError:
            pass
        return clock.monotonic_ns()

    assert run(clock, program()) < STARTED + 1300 * MS


def test_what_is_due_at_one_time_comes_in_the_order_it_was_given(clock: VirtualClock):
    async def program() -> list[int]:
        loop, came = here(), list[int]()
        for number in range(50):
            loop.call_when_due(STARTED + NS, came.append, number)
        await asyncio.sleep(2)
        return came

    assert run(clock, program()) == list(range(50))


def test_a_program_that_polls_keeps_no_timers(clock: VirtualClock):
    async def program() -> int:
        loop = asyncio.get_running_loop()
        for _ in range(5000):
            loop.call_later(0, int)
            await asyncio.sleep(0)
        return len(clock.fresh_timers._timers)

    assert run(clock, program()) < 3000


def test_an_alarm_that_was_just_set_moves_along(clock: VirtualClock):
    clock.alarm_ns, clock.alarm_is_fresh = STARTED + 200 * MS, True
    clock.catch_up(STARTED + NS, always)
    assert clock.alarm_ns == STARTED + 1200 * MS
    rung: list[int] = []

    def ring() -> None:
        rung.append(clock.monotonic_ns())
        clock.alarm_ns = None

    clock.ring = ring
    clock.catch_up(STARTED + 2 * NS, always)
    assert rung == [STARTED + 1200 * MS]
