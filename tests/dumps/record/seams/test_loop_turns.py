"""What a loop reads in one turn has one time."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

from dumps.record.seams.loop_turns import STEP_NS, turn_ns


async def test_one_turn_has_one_time():
    loop = asyncio.get_running_loop()
    times: list[int] = []

    def read() -> None:
        times.append(turn_ns())
        time.sleep(0.002)

    for _ in range(3):
        loop.call_soon(read)
    began = time.monotonic_ns()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert times == [times[0], times[0] + STEP_NS, times[0] + 2 * STEP_NS]
    assert began <= times[0] < began + 2_000_000
    loop.call_soon(read)
    await asyncio.sleep(0)
    assert times[3] >= times[0] + 6_000_000


def test_outside_of_a_loop_it_is_the_present_time():
    before = time.monotonic_ns()
    first, second = turn_ns(), turn_ns()
    assert before <= first <= second <= time.monotonic_ns()


def test_each_loop_has_its_own():
    async def read() -> int:
        return turn_ns()

    first = asyncio.run(read())
    gc.collect()
    time.sleep(0.002)
    second = asyncio.run(read())
    assert second > first + 1_000_000
    other: list[int] = []

    async def reads() -> int:
        own = turn_ns()
        thread = threading.Thread(target=lambda: other.append(asyncio.run(read())))
        time.sleep(0.002)
        thread.start()
        thread.join()
        return own

    own = asyncio.run(reads())
    assert other[0] > own + 1_000_000
