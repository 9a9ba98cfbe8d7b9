"""The virtual loop: timers that cost no time, in their order, and a proof where nothing can go on."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from replay.runtime.clock import NS, VirtualClock
from replay.runtime.loop import Stalled, run
from tests.replay.runtime.real_time import STARTED, WALL, Real

pytestmark = pytest.mark.usefixtures("quick")


def test_a_deadline_of_thirty_seconds_costs_none(clock: VirtualClock) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 30)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()

    began = Real.monotonic()
    run(clock, main())
    assert Real.monotonic() - began < 1
    assert clock.monotonic_ns() - STARTED == 3630 * NS


def test_timers_run_in_the_order_of_their_time(clock: VirtualClock) -> None:
    seen: list[tuple[str, int]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        base = loop.time()

        def note(name: str) -> None:
            seen.append((name, clock.monotonic_ns() - STARTED))

        loop.call_later(2, note, "c")
        loop.call_later(1.25, note, "b")
        loop.call_at(base + 1, note, "a")
        loop.call_later(0.5, note, "cancelled").cancel()
        loop.call_soon(note, "first")
        await asyncio.sleep(3)

    run(clock, main())
    assert [name for name, _ in seen] == ["first", "a", "b", "c"]
    assert [round(at / NS, 6) for _, at in seen] == [0, 1, 1.25, 2]


def test_timers_with_one_delay_come_in_the_order_in_which_they_were_set() -> None:
    """As on a real clock, which no two of them read at the same moment."""
    order: list[int] = []

    async def wait(number: int) -> None:
        await asyncio.sleep(0.02)
        order.append(number)

    async def main() -> None:
        await asyncio.gather(*(wait(number) for number in range(30)))

    run(VirtualClock(started_ns=STARTED, wall_minus_monotonic_ns=WALL - STARTED), main())
    assert order == list(range(30))


def test_timers_set_in_one_breath_come_in_one_round_and_none_too_early() -> None:
    """A real loop wakes a little late. So of two tasks with one delay the first cannot cancel the second."""
    ends: list[float] = []

    async def fails(text: str) -> None:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(0.01)
        ends.append(asyncio.get_running_loop().time() - began)
        raise ValueError(text)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for text in "abc":
                group.create_task(fails(text))

    with pytest.raises(ExceptionGroup) as caught:
        run(VirtualClock(started_ns=STARTED, wall_minus_monotonic_ns=WALL - STARTED), main())
    assert [str(error) for error in caught.value.exceptions] == ["a", "b", "c"]
    assert all(0.01 <= seconds < 0.011 for seconds in ends)


def test_a_program_that_polls_the_clock_of_its_loop_gets_somewhere() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + 0.02
        while loop.time() < end:
            await asyncio.sleep(0)

    run(VirtualClock(started_ns=STARTED, wall_minus_monotonic_ns=WALL - STARTED), main())


def test_a_blocking_sleep_inside_the_loop_makes_timers_late(installed: VirtualClock) -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        ticker = asyncio.create_task(asyncio.sleep(1))
        await asyncio.sleep(0)
        time.sleep(10)
        await ticker
        return loop.time() - began

    assert asyncio.run(main()) == pytest.approx(10)


async def inner_wait(event: asyncio.Event) -> None:
    await event.wait()


def test_a_stall_names_each_task_and_what_it_waits_for(clock: VirtualClock) -> None:
    async def outer() -> None:
        await inner_wait(asyncio.Event())

    async def main() -> None:
        task = asyncio.create_task(outer(), name="the-tool")
        await task

    with pytest.raises(Stalled) as caught:
        run(clock, main())
    stalled = caught.value
    assert stalled.proven
    by_name = {task.name: task for task in stalled.tasks}
    tool = by_name.pop("the-tool")
    (waiting_main,) = by_name.values()
    assert tool.awaits[-2:] == ("inner_wait", "Event.wait")
    assert tool.frame == "tests/replay/runtime/test_loop.py:inner_wait"
    assert tool.line > 0
    assert tool.on == "a Future that nothing completes in Event.wait()"
    assert waiting_main.on == "task 'the-tool'"
    assert "test_loop.py:inner_wait" in str(stalled)
    assert clock.refusals == [stalled]


def test_a_stall_beside_a_blocked_thread_is_no_proof(clock: VirtualClock) -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, args=(20,), name="consumer")

    async def main() -> None:
        thread.start()
        await asyncio.Event().wait()

    with pytest.raises(Stalled, match="consumer") as caught:
        run(clock, main())
    release.set()
    thread.join()
    assert not caught.value.proven
    assert caught.value.threads == ("consumer",)
