"""Time stands, and the loop waits, while real work runs: executors, threads, subprocesses, pipes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import subprocess
import sys
import threading

import pytest

from replay.runtime.clock import NS, VirtualClock, VirtualTimeInThread
from replay.runtime.loop import run
from tests.replay.runtime.real_time import STARTED, Real

pytestmark = pytest.mark.usefixtures("quick")


def test_time_stands_while_an_executor_works(installed: VirtualClock) -> None:
    def work() -> str:
        Real.sleep(0.1)
        return threading.current_thread().name

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        names = [await asyncio.wait_for(asyncio.to_thread(work), 0.01)]
        with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="own") as pool:
            names.append(await asyncio.wait_for(loop.run_in_executor(pool, work), 0.01))
        return names

    first, second = asyncio.run(main())
    assert first.startswith("asyncio_")
    assert second.startswith("own_")
    assert installed.monotonic_ns() == STARTED


def test_time_stands_while_the_clock_is_held(clock: VirtualClock) -> None:
    async def main() -> None:
        hold = clock.hold()
        hold.__enter__()
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def finish() -> None:
            Real.sleep(0.1)
            hold.__exit__(None, None, None)
            loop.call_soon_threadsafe(done.set_result, None)

        thread = threading.Thread(target=finish)
        thread.start()
        await asyncio.wait_for(done, 0.01)
        thread.join()

    run(clock, main())
    assert clock.monotonic_ns() == STARTED
    assert not clock.held


def test_a_job_that_waits_for_the_loop_does_not_hold_it(clock: VirtualClock) -> None:
    async def answer() -> int:
        await asyncio.sleep(7)
        return 42

    async def main() -> int:
        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(answer(), loop).result())

    assert run(clock, main()) == 42
    assert clock.monotonic_ns() - STARTED == 7 * NS


def test_a_thread_that_runs_holds_time_until_it_calls_in(clock: VirtualClock) -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str] = loop.create_future()

        def compute() -> None:
            until = Real.monotonic() + 0.1
            while Real.monotonic() < until:
                pass
            loop.call_soon_threadsafe(done.set_result, "computed")

        threading.Thread(target=compute).start()
        return await asyncio.wait_for(done, 0.01)

    assert run(clock, main()) == "computed"
    assert clock.monotonic_ns() == STARTED


def test_time_stands_while_a_subprocess_or_a_pipe_is_in_flight(clock: VirtualClock) -> None:
    async def main() -> bytes:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import time; time.sleep(0.1); print('out')", stdout=subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(child.communicate(), 0.01)
        silent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import time; time.sleep(0.1)", stdin=subprocess.DEVNULL
        )
        assert await asyncio.wait_for(silent.wait(), 0.01) == 0

        reading, writing = os.pipe()
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb")
        )
        threading.Timer(0.1, lambda: os.write(writing, b"pipe\n")).start()
        line = await asyncio.wait_for(reader.readline(), 0.01)
        transport.close()
        os.close(writing)
        return out + line

    assert run(clock, main()) == b"out\npipe\n"
    assert clock.monotonic_ns() == STARTED


def test_call_soon_threadsafe_wakes_a_loop_with_nothing_to_do(clock: VirtualClock) -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int] = loop.create_future()
        threading.Timer(0.1, lambda: loop.call_soon_threadsafe(done.set_result, 1)).start()
        return await done

    assert run(clock, main()) == 1


def test_a_loop_in_a_thread_waits_for_calls_but_not_for_time(installed: VirtualClock) -> None:
    def serve(ready: threading.Event, loops: list[asyncio.AbstractEventLoop]) -> None:
        loop = asyncio.new_event_loop()
        loops.append(loop)
        ready.set()
        loop.run_forever()
        loop.close()

    async def hello() -> str:
        return "hello"

    ready, loops = threading.Event(), list[asyncio.AbstractEventLoop]()
    thread = threading.Thread(target=serve, args=(ready, loops))
    thread.start()
    assert ready.wait(5)
    assert asyncio.run_coroutine_threadsafe(hello(), loops[0]).result(5) == "hello"
    loops[0].call_soon_threadsafe(loops[0].stop)
    thread.join(5)
    assert not thread.is_alive()

    with concurrent.futures.ThreadPoolExecutor(1) as pool, pytest.raises(VirtualTimeInThread, match="timer") as caught:
        pool.submit(asyncio.run, asyncio.sleep(1)).result(5)
    assert caught.value in installed.refusals
