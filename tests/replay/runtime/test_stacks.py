from __future__ import annotations

import asyncio

from dumps.record.stacks import capture_exception, capture_threads
from dumps.schema import state_pb2 as pb
from replay.runtime.stacks import Stacks


def a_state() -> pb.RuntimeState:
    async def inner() -> None:
        await asyncio.Event().wait()

    async def outer() -> None:
        await asyncio.create_task(inner(), name="inner")

    async def main() -> pb.RuntimeState:
        task = asyncio.create_task(outer(), name="outer")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        try:
            try:
                dict[str, int]()["missing"]
            except KeyError as error:
                raise ValueError("no key") from error
        except ValueError as error:
            state = pb.RuntimeState(
                threads=capture_threads(loop=asyncio.get_running_loop()), exceptions=capture_exception(error)
            )
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return state

    return asyncio.run(main())


def test_a_real_process():
    stacks = Stacks.of(a_state())
    assert stacks.current is not None
    assert stacks.current.frames[0].function.endswith("main")
    inner = stacks.task("inner")
    assert inner is not None
    assert [one.name for one in stacks.await_chain(inner)] == ["inner", "outer"]
    assert stacks.task("nobody") is None
    assert [(one.type, one.link) for one in stacks.exceptions] == [("KeyError", "cause"), ("ValueError", "")]
    assert stacks.raised is not None
    assert stacks.raised.top_in_app is not None
    assert stacks.raised.top_in_app.endswith("test_stacks.py:a_state.<locals>.main")


def test_a_ring_of_tasks_ends():
    tasks = [pb.Thread(thread_id=n, name=str(n), kind="asyncio-task", awaited_by=[(n + 1) % 3, n]) for n in range(3)]
    stacks = Stacks.of(pb.RuntimeState(threads=tasks))
    assert [one.name for one in stacks.await_chain(stacks.tasks[0])] == ["0", "1", "2"]


def test_an_empty_dump():
    stacks = Stacks.of(pb.RuntimeState())
    assert (stacks.current, stacks.raised, stacks.tasks) == (None, None, ())
