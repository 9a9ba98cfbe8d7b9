from __future__ import annotations

import asyncio
import json
import pathlib
import sysconfig
import threading
from typing import Any, NoReturn

import pytest

from dumps.record import stacks
from dumps.record.seams.log import task_name
from dumps.record.seams.patches import Patches
from dumps.record.stacks import (
    call_site,
    capture_exception,
    capture_threads,
    first_in_app,
    top_in_app_frame,
)
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
    waits, runs = tasks["inner-task"].frames  # along what it awaits, not its outermost frame alone
    assert (waits.function, waits.in_app) == ("Event.wait", False)
    assert runs.function.endswith("inner")
    assert first_in_app(tasks["inner-task"].frames).endswith("test_stacks.py:" + runs.function)


def test_names_of_threads_and_tasks_that_no_message_can_hold():
    async def main() -> list[pb.Thread]:
        task = asyncio.current_task()
        assert task is not None
        task.set_name("task \ud800")
        assert task_name() == "task \\ud800"
        return capture_threads(loop=asyncio.get_running_loop())

    thread = threading.current_thread()
    before, thread.name = thread.name, "thread \ud800"
    try:
        assert task_name() == "thread \\ud800"
        names = {one.name for one in asyncio.run(main())}
    finally:
        thread.name = before
    assert {"task \\ud800", "thread \\ud800"} <= names


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


def test_a_call_site_is_the_programs_own_frames():
    def ask() -> list[pb.Frame]:
        return next(map(lambda limit: call_site(limit=limit), [2]))  # noqa: C417

    inner, outer = ask()
    assert inner.function.endswith("ask.<locals>.<lambda>")
    assert outer.function.endswith("frames.<locals>.ask")
    assert all(frame.in_app and frame.filename.endswith("test_stacks.py") for frame in (inner, outer))


def test_libraries_and_the_recorder_are_not_part_of_the_program():
    """The recorder's wrappers stand on the program's stacks and tracebacks."""

    def make(original: object) -> NoReturn:
        raise KeyError(original)

    try:
        Patches().wrap(json, "dumps", make)
    except KeyError as error:
        (info,) = capture_exception(error)
    assert [(frame.module, frame.in_app) for frame in info.frames] == [
        (__name__, True), ("dumps.record.seams.patches", False), (__name__, True),
    ]  # fmt: skip


def test_the_innermost_frame_of_the_program_itself():
    from replay.runtime.files import Files

    undo = Files([]).install()
    try:
        with pytest.raises(Exception, match="was not recorded") as caught:
            pathlib.Path("nothing.txt").read_text()
    finally:
        undo()
    (raised,) = capture_exception(caught.value)
    # The replay's own code and pathlib stand above it; neither is the program.
    assert raised.frames[0].function != "test_the_innermost_frame_of_the_program_itself"
    top = top_in_app_frame(raised)
    assert top is not None
    assert top.endswith("test_stacks.py:test_the_innermost_frame_of_the_program_itself")
    assert top_in_app_frame(pb.ExceptionInfo(frames=[pb.Frame(function="f")])) is None


def test_the_exceptions_of_a_group_stand_before_it():
    inner = ExceptionGroup("inner", [KeyError("b")])
    inner.exceptions[0].__cause__ = OSError("why")
    found = capture_exception(ExceptionGroup("outer", [ValueError("a"), inner]))

    assert [(e.type, e.link) for e in found] == [
        ("ValueError", "member"),
        ("OSError", "cause"),
        ("KeyError", "member"),
        ("ExceptionGroup", "member"),
        ("ExceptionGroup", ""),
    ]
    assert len(capture_exception(ExceptionGroup("wide", [ValueError(str(n)) for n in range(100)]))) == 20


def test_a_compiled_module_of_a_library_is_none_of_the_programs_code(tmp_path, monkeypatch):
    """Its frames name a source that is not there, by a path below the folder it was built in."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {
        "__name__": "wheel.parser",
        "__file__": f"{sysconfig.get_path('purelib')}/wheel/parser.so",
    }
    exec(compile("def fail():\n    raise ValueError('cut')", "wheel/parser.pyx", "exec"), namespace)
    try:
        namespace["fail"]()
    except ValueError as error:
        frame = capture_exception(error)[-1].frames[0]
    assert (frame.filename, frame.function, frame.in_app) == ("wheel/parser.pyx", "fail", False)


def test_compiled_code_is_not_the_programs_own():
    source = "def feed():\n    raise ValueError('short')\n"
    compiled: dict[str, Any] = {}
    exec(compile(source, "aiohttp/_http_parser.pyx", "exec"), compiled)
    with pytest.raises(ValueError, match="short") as caught:
        compiled["feed"]()
    (raised,) = capture_exception(caught.value)

    assert [frame.in_app for frame in raised.frames] == [False, True]
    assert str(top_in_app_frame(raised)).endswith("test_compiled_code_is_not_the_programs_own")
