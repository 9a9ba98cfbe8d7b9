"""The virtual loop: asyncio as it always was, time that costs nothing, and a proof where nothing can go on."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from replay.runtime.clock import NS, VirtualClock, VirtualTimeInThread, real_monotonic, real_sleep
from replay.runtime.loop import Stalled, UnsupportedLoop, VirtualLoop, install, new_loop, run


class Real:
    """Names that no clock replaces, since they are no module's globals."""

    monotonic = staticmethod(real_monotonic)
    sleep = staticmethod(real_sleep)


STARTED = 1_234_567_890_123_456
WALL = 1_700_000_000 * NS


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(started_ns=STARTED, wall_minus_monotonic_ns=WALL - STARTED, look_ns=0)


@pytest.fixture
def installed(clock: VirtualClock) -> Iterator[VirtualClock]:
    undo_clock, undo_loop = clock.install(), install(clock)
    try:
        yield clock
    finally:
        undo_loop()
        undo_clock()


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    """No test here may take long: all that is long in them is virtual."""
    began = Real.monotonic()
    yield
    assert Real.monotonic() - began < 5


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


def test_every_way_to_a_loop_gives_a_virtual_one(installed: VirtualClock) -> None:
    async def which() -> type[asyncio.AbstractEventLoop]:
        await asyncio.sleep(100)
        return type(asyncio.get_running_loop())

    kinds = [asyncio.run(which())]
    with asyncio.Runner() as runner:
        kinds.append(runner.run(which()))
    for make in (
        asyncio.new_event_loop,
        asyncio.SelectorEventLoop,
        lambda: asyncio.SelectorEventLoop(selectors.DefaultSelector()),
    ):
        loop = make()
        kinds.append(loop.run_until_complete(which()))
        loop.close()
    asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
    kinds.append(asyncio.run(which()))
    loop = asyncio.get_event_loop_policy().new_event_loop()
    kinds.append(type(loop))
    loop.close()
    asyncio.set_event_loop_policy(None)
    kinds.append(asyncio.run(which()))
    assert all(issubclass(kind, VirtualLoop) for kind in kinds)
    assert installed.monotonic_ns() - STARTED == 700 * NS


def test_a_stock_loop_is_refused_rather_than_left_without_time(clock: VirtualClock) -> None:
    async def main() -> None:
        with pytest.raises(UnsupportedLoop, match="is running in this thread"):
            install(clock)

    asyncio.run(main())
    stock = asyncio.new_event_loop()
    undo = install(clock)
    with pytest.raises(UnsupportedLoop, match="from before the replay"):
        stock.run_forever()
    undo()
    stock.call_soon(stock.stop)
    stock.run_forever()
    stock.close()


def test_uninstalling_brings_the_stock_loop_back(clock: VirtualClock) -> None:
    stock = asyncio.SelectorEventLoop
    before = (asyncio.new_event_loop, asyncio.set_event_loop_policy)
    install(clock)()
    assert (asyncio.new_event_loop, asyncio.set_event_loop_policy) == before
    loop = asyncio.new_event_loop()
    loop.close()
    assert type(loop) is stock is asyncio.SelectorEventLoop


UVLOOP = """
import asyncio
class Loop: ...
class EventLoopPolicy(asyncio.DefaultEventLoopPolicy): ...
def new_event_loop(): return Loop()
def install(): asyncio.set_event_loop_policy(EventLoopPolicy())
def run(main, **kwargs): raise AssertionError("reached")
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_uvloop_is_refused_with_an_explanation(
    clock: VirtualClock, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in with uvloop's names: what counts is that each of its doors is closed, however it was imported."""
    (tmp_path / "uvloop.py").write_text(UVLOOP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "uvloop", raising=False)
    importer = types.ModuleType("imports_uvloop")
    monkeypatch.setitem(sys.modules, importer.__name__, importer)
    code = "import uvloop\nfrom uvloop import run"
    if when == "before":
        exec(code, vars(importer))
    undo = install(clock)
    try:
        exec(code, vars(importer))
        uvloop = importer.uvloop
        for call in (importer.run, uvloop.run):
            with pytest.raises(UnsupportedLoop, match=r"uvloop.run\(\)") as caught:
                call(asyncio.sleep(0))
            assert "asyncio.run" in caught.value.remedy
        for call in (uvloop.install, uvloop.new_event_loop, uvloop.Loop, uvloop.EventLoopPolicy):
            with pytest.raises(UnsupportedLoop):
                call()
        policy = type("EventLoopPolicy", (), {"__module__": "uvloop"})()
        with pytest.raises(UnsupportedLoop, match=r"policy uvloop.EventLoopPolicy"):
            asyncio.set_event_loop_policy(policy)
    finally:
        undo()
    with pytest.raises(AssertionError, match="reached"):
        uvloop.run(None)


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


def test_a_new_loop_belongs_to_whoever_makes_it(clock: VirtualClock) -> None:
    loop = new_loop(clock)
    loop.run_until_complete(asyncio.sleep(1))
    loop.close()
    assert clock.monotonic_ns() - STARTED == NS


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


def test_a_program_that_polls_the_clock_of_its_loop_gets_somewhere() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + 0.02
        while loop.time() < end:
            await asyncio.sleep(0)

    run(VirtualClock(started_ns=STARTED, wall_minus_monotonic_ns=WALL - STARTED), main())


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
