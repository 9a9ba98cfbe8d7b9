"""A look at the clock after long computing, where the record asks for something next."""

from __future__ import annotations

import time

import pytest

from replay.runtime.clock import NS, VirtualClock

STARTED = 1_000 * NS
MS = 1_000_000


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(started_ns=STARTED, wall_minus_monotonic_ns=0)


def compute(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def asks_at(clock: VirtualClock, *times_ns: int) -> list[int]:
    """Let the record ask then; what it is asked is kept."""
    looks: list[int] = []

    def next_asked(after_ns: int) -> int | None:
        looks.append(after_ns)
        return min((one for one in times_ns if one > after_ns), default=None)

    clock.next_asked = next_asked
    return looks


def test_the_time_that_was_computed_has_passed(clock: VirtualClock):
    asks_at(clock, STARTED + 200 * MS)
    assert clock.look() == STARTED
    compute(0.15)
    assert STARTED + 199 * MS < clock.look() < STARTED + 200 * MS
    assert clock.look() - STARTED < 201 * MS


def test_a_time_that_computing_does_not_explain_has_not_passed(clock: VirtualClock):
    looks = asks_at(clock, STARTED + NS)
    compute(0.15)
    for _ in range(100):
        assert clock.look() < STARTED + MS
    assert len(looks) == 1  # a look costs no more for it


@pytest.mark.parametrize("times", [(), (STARTED + 50 * MS, STARTED + 150 * MS)])
def test_where_something_is_asked_soon_or_never_again_nothing_passes(clock, times):
    asks_at(clock, *times)
    compute(0.15)
    assert clock.look() == STARTED


def test_what_was_computed_before_time_moved_is_of_no_account(clock: VirtualClock):
    asks_at(clock, STARTED + 300 * MS)
    compute(0.15)
    clock.advance(100 * MS)
    assert clock.look() == STARTED + 100 * MS
