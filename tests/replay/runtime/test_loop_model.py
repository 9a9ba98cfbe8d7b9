"""Random programs of sleeps, wait_for and gather: the virtual loop does what a model and the stock loop do.

Every delay of a program is another power of two, so no two of its sums are equal: the order of everything follows from
the delays alone, and not from how a loop breaks ties.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from replay.runtime.clock import NS, VirtualClock, real_monotonic
from replay.runtime.loop import run


@dataclass(frozen=True)
class Sleep:
    units: int


@dataclass(frozen=True)
class Sequence:
    parts: tuple[Program, ...]


@dataclass(frozen=True)
class Gather:
    parts: tuple[Program, ...]


@dataclass(frozen=True)
class WaitFor:
    part: Program
    units: int


Program = Sleep | Sequence | Gather | WaitFor
Event = tuple[int, int, str]  # when, which delay, what became of it


def simulate(program: Program, start: int, cancel_at: float, events: list[Event]) -> tuple[int | None, Any]:
    """When ``program`` ends and with what; None if ``cancel_at`` comes first."""
    match program:
        case Sleep(units):
            if start + units < cancel_at:
                events.append((start + units, units, "slept"))
                return start + units, units
            events.append((int(cancel_at), units, "cancelled"))
            return None, None
        case Sequence(parts):
            results, end = [], start
            for part in parts:
                ended, result = simulate(part, end, cancel_at, events)
                if ended is None:
                    return None, None
                end = ended
                results.append(result)
            return end, results
        case Gather(parts):
            outcomes = [simulate(part, start, cancel_at, events) for part in parts]
            ends = [ended for ended, _ in outcomes if ended is not None]
            if len(ends) < len(parts):
                return None, None
            return max(ends), [result for _, result in outcomes]
        case WaitFor(part, units):
            ended, result = simulate(part, start, min(cancel_at, start + units), events)
            if ended is None and start + units < cancel_at:
                events.append((start + units, units, "timeout"))
                return start + units, "timeout"
            return ended, result


async def execute(program: Program, unit: float, note: Callable[[int, str], None]) -> Any:
    match program:
        case Sleep(units):
            try:
                await asyncio.sleep(units * unit)
            except asyncio.CancelledError:
                note(units, "cancelled")
                raise
            note(units, "slept")
            return units
        case Sequence(parts):
            return [await execute(part, unit, note) for part in parts]
        case Gather(parts):
            return list(await asyncio.gather(*(execute(part, unit, note) for part in parts)))
        case WaitFor(part, units):
            try:
                return await asyncio.wait_for(execute(part, unit, note), units * unit)
            except TimeoutError:
                note(units, "timeout")
                return "timeout"


@st.composite
def programs(draw: st.DrawFn, *, delays: int) -> Program:
    free: Iterator[int] = iter(draw(st.permutations([2**power for power in range(delays)])))

    def build(depth: int) -> Program | None:
        kind = draw(st.sampled_from(["sleep"] if depth == 0 else ["sleep", "sequence", "gather", "wait_for"]))
        if kind in ("sleep", "wait_for"):
            units = next(free, None)
            if units is None:
                return None
            part = build(depth - 1) if kind == "wait_for" else None
            return Sleep(units) if part is None else WaitFor(part, units)
        built = (build(depth - 1) for _ in range(draw(st.integers(1, 4))))
        parts = tuple(part for part in built if part is not None)
        if not parts:
            return None
        return Sequence(parts) if kind == "sequence" else Gather(parts)

    program = build(4)
    assert program is not None
    return program


@given(programs(delays=20))
@settings(max_examples=150)
def test_the_virtual_loop_does_what_the_model_says(program: Program) -> None:
    expected: list[Event] = []
    end, result = simulate(program, 0, math.inf, expected)
    assert end is not None

    clock = VirtualClock(started_ns=777 * NS, wall_minus_monotonic_ns=0)
    events: list[Event] = []

    def note(units: int, what: str) -> None:
        events.append((round((clock.monotonic_ns() - 777 * NS) / NS), units, what))

    began = real_monotonic()
    assert run(clock, execute(program, 1.0, note)) == result
    assert real_monotonic() - began < 5, "a virtual second costs nothing"
    assert sorted(events) == sorted(expected)
    assert [when for when, _, _ in events] == sorted(when for when, _, _ in expected)
    assert abs(clock.monotonic_ns() - 777 * NS - end * NS) < 1_000_000, "each look at the clock takes a microsecond"


@given(programs(delays=5))
@settings(max_examples=8)
def test_the_virtual_loop_does_what_the_stock_loop_does(program: Program) -> None:
    clock = VirtualClock(started_ns=0, wall_minus_monotonic_ns=0)
    virtual: list[tuple[int, str]] = []
    result = run(clock, execute(program, 1.0, lambda *event: virtual.append(event)))

    for unit in (0.002, 0.01, 0.05):  # a busy machine is late, and late timers overtake; then the delays must be longer
        stock: list[tuple[int, str]] = []
        stock_result = asyncio.run(execute(program, unit, lambda *event, seen=stock: seen.append(event)))
        if (stock_result, stock) == (result, virtual):
            return
    assert (stock_result, stock) == (result, virtual)
