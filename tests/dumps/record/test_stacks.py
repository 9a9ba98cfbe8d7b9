from __future__ import annotations

import asyncio
import threading

import pytest

from dumps.record import stacks
from dumps.record.stacks import capture_exception, capture_threads
from dumps.schema import state_pb2 as pb


def test_threads_with_the_calling_one_first():
    there, go_on = threading.Event(), threading.Event()

    def parked() -> None:
        there.set()
        go_on.wait()

    thread = threading.Thread(target=parked, name="parked-one")
    thread.start()
    there.wait()
    threads = capture_threads()
    go_on.set()
    thread.join()

    assert [t.current for t in threads] == [True] + [False] * (len(threads) - 1)
    own = threads[0].frames
    here = own[0]
    assert here.function == "test_threads_with_the_calling_one_first"
    assert here.in_app
    assert here.filename.endswith("test_stacks.py")
    assert not here.filename.startswith("/")
    other = next(t for t in threads if t.name == "parked-one")
    assert [frame.in_app for frame in other.frames if frame.function.endswith("parked")] == [True]
    assert not any(frame.in_app for frame in other.frames if frame.module == "threading")


def test_tasks_of_a_loop_and_who_awaits_them():
    async def inner(ready: asyncio.Event) -> None:
        ready.set()
        await asyncio.Event().wait()

    async def outer(ready: asyncio.Event) -> None:
        await asyncio.create_task(inner(ready), name="inner-task")

    async def main() -> list[pb.Thread]:
        ready = asyncio.Event()
        task = asyncio.create_task(outer(ready), name="outer-task")
        await ready.wait()
        found = capture_threads(loop=asyncio.get_running_loop())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return found

    tasks = {t.name: t for t in asyncio.run(main()) if t.kind == "asyncio-task"}
    assert tasks["inner-task"].awaited_by == [tasks["outer-task"].thread_id]
    assert tasks["inner-task"].frames[0].function.endswith("inner")


def raise_linked() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise OSError("second") from error
    except OSError:
        raise RuntimeError("third \ud800")  # noqa: B904 - the context is what is tested


def test_an_exception_and_what_it_came_from_outermost_last():
    with pytest.raises(RuntimeError) as caught:
        raise_linked()
    found = capture_exception(caught.value)

    assert [(e.type, e.link) for e in found] == [("KeyError", "cause"), ("OSError", "context"), ("RuntimeError", "")]
    assert found[-1].message == "third \\ud800"
    assert found[-1].frames[0].function == "raise_linked"
    assert found[-1].frames[1].function == "test_an_exception_and_what_it_came_from_outermost_last"


def raise_from_none() -> None:
    try:
        raise KeyError("hidden")
    except KeyError:
        raise ValueError("seen") from None


def test_a_suppressed_context_is_left_out_and_a_circle_ends():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert len(capture_exception(first)) == 2
    with pytest.raises(ValueError, match="seen") as caught:
        raise_from_none()
    assert [e.type for e in capture_exception(caught.value)] == ["ValueError"]


def test_depth_is_bounded_and_locals_never_appear():
    def deeper(depth: int, secret: str) -> None:
        if depth == 0:
            raise ValueError("deep")
        deeper(depth - 1, secret)

    try:
        deeper(stacks.MAX_FRAMES + 50, "a secret zebra")
    except ValueError as error:
        found = capture_exception(error)
    assert len(found[0].frames) == stacks.MAX_FRAMES
    assert b"zebra" not in found[0].SerializeToString()


def test_an_exception_whose_message_cannot_be_made():
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

    assert "could not be made" in capture_exception(BrokenError())[0].message


def test_the_frames_that_make_the_dump_are_left_out():
    def dumping() -> list[pb.Thread]:
        return capture_threads(without=(__name__,))

    assert not {frame.module for frame in dumping()[0].frames} & {__name__, stacks.__name__}
    assert capture_threads()[0].frames[0].function.endswith("left_out")
