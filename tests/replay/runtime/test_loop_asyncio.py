"""asyncio as it always was on the virtual loop: tasks, signals, sockets, shutdown, and libraries on top."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator

import pytest

from replay.runtime.clock import NS, VirtualClock
from replay.runtime.loop import run
from tests.replay.runtime.real_time import STARTED, Real

pytestmark = pytest.mark.usefixtures("quick")


def test_tasks_queues_groups_and_cancellation(clock: VirtualClock) -> None:
    seen: list[str] = []

    async def worker(name: str, queue: asyncio.Queue[int], delay: float) -> None:
        try:
            while True:
                item = await queue.get()
                await asyncio.sleep(delay)
                seen.append(f"{name}{item}")
                queue.task_done()
        finally:
            seen.append(f"{name} ended")

    async def main() -> tuple[str, str]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(worker("a", queue, 1)), group.create_task(worker("b", queue, 1.5))]
            for item in range(4):
                queue.put_nowait(item)
            await queue.join()
            for task in workers:
                task.cancel()
        x, y = await asyncio.gather(asyncio.sleep(2, "x"), asyncio.sleep(1, "y"))
        return x, y

    assert run(clock, main()) == ("x", "y")
    assert seen == ["a0", "b1", "a2", "b3", "a ended", "b ended"]
    assert (clock.monotonic_ns() - STARTED) / NS == pytest.approx(5)


def test_signals_reach_their_handlers(clock: VirtualClock) -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        got: asyncio.Future[str] = loop.create_future()
        loop.add_signal_handler(signal.SIGUSR1, got.set_result, "signal")
        loop.call_later(5, os.kill, os.getpid(), signal.SIGUSR1)
        loop.call_later(10, lambda: None)
        try:
            return await got
        finally:
            loop.remove_signal_handler(signal.SIGUSR1)

    assert run(clock, main()) == "signal"
    assert clock.monotonic_ns() - STARTED == 5 * NS


def test_real_loopback_sockets_work(clock: VirtualClock) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        await asyncio.sleep(20)
        writer.write(line.upper())
        await writer.drain()
        writer.close()

    async def main() -> bytes:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\n")
            line = await asyncio.wait_for(reader.readline(), 30)
            writer.close()
            await writer.wait_closed()
        return line

    assert run(clock, main()) == b"HELLO\n"
    assert clock.monotonic_ns() - STARTED == 20 * NS


def test_shutdown_closes_async_generators_and_cancels_tasks(clock: VirtualClock) -> None:
    seen: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(1)
            seen.append("generator closed")

    kept: list[AsyncIterator[int]] = []

    async def straggler() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("task cancelled")

    async def main() -> None:
        kept.append(numbers())
        assert await anext(kept[0]) == 1
        kept.append(asyncio.create_task(straggler()))  # type: ignore[arg-type]
        await asyncio.to_thread(seen.append, "worked")

    run(clock, main())
    assert seen == ["worked", "task cancelled", "generator closed"]


def test_ctrl_c_ends_a_program_as_it_always_did(clock: VirtualClock) -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(3, signal.raise_signal, signal.SIGINT)
        await asyncio.sleep(100)

    with pytest.raises(KeyboardInterrupt):
        run(clock, main())
    assert clock.monotonic_ns() - STARTED == 3 * NS


def test_anyio_runs_on_top(installed: VirtualClock) -> None:
    import anyio
    import anyio.from_thread
    import anyio.to_thread

    def in_thread() -> float:
        Real.sleep(0.05)
        anyio.from_thread.run(anyio.sleep, 5)
        return time.monotonic()

    async def main() -> None:
        with anyio.fail_after(0.01):
            await anyio.to_thread.run_sync(lambda: Real.sleep(0.1))
        assert installed.monotonic_ns() == STARTED
        assert await anyio.to_thread.run_sync(in_thread) == pytest.approx(STARTED / NS + 5)
        with anyio.move_on_after(30) as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught

    anyio.run(main)
    assert installed.monotonic_ns() - STARTED == 35 * NS


def test_aiohttp_serves_and_asks_on_virtual_time(installed: VirtualClock) -> None:
    import aiohttp
    from aiohttp import web

    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response(text="late")

    async def main() -> str:
        app = web.Application()
        app.router.add_get("/", slow)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession() as session:
            with pytest.raises(TimeoutError):
                await session.get(f"http://{host}:{port}/", timeout=aiohttp.ClientTimeout(total=30))
            async with session.get(f"http://{host}:{port}/", timeout=aiohttp.ClientTimeout(total=90)) as response:
                text = await response.text()
        await runner.cleanup()
        return text

    assert asyncio.run(main()) == "late"
