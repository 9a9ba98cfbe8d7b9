"""Signals, threads and tasks that make a dump while a program goes on: its own handlers are called, and put back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading

import pytest

from dumps.record import program
from dumps.record.program import recording
from tests.program_dumps import only_dump


def test_everything_is_put_back(tmp_path):
    handlers: list[int] = []
    signal.signal(signal.SIGUSR2, lambda number, frame: handlers.append(number))
    hook, exceptions = threading.excepthook, asyncio.BaseEventLoop.call_exception_handler
    before = signal.getsignal(signal.SIGUSR2)
    try:
        with recording(tmp_path) as rec:
            os.kill(os.getpid(), signal.SIGUSR2)
            assert len(rec.dumps) == 1
            assert handlers == [signal.SIGUSR2]  # the program's own handler is called, too
        assert signal.getsignal(signal.SIGUSR2) is before
        assert threading.excepthook is hook
        assert asyncio.BaseEventLoop.call_exception_handler is exceptions
        assert program.active() is None
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def test_a_handler_that_the_program_set_meanwhile_stays(tmp_path):
    with recording(tmp_path):
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def test_a_handler_of_control_c_that_the_program_has_is_called_and_put_back(tmp_path):
    said: list[str] = []

    def handle(number, frame):
        said.append("mine")

    before = signal.signal(signal.SIGINT, handle)
    on_sigint = vars(asyncio.Runner)["_on_sigint"]
    try:
        with pytest.raises(KeyboardInterrupt), recording(tmp_path):
            asyncio.run(interrupting())
        assert said == ["mine"]
        assert signal.getsignal(signal.SIGINT) is handle
        assert vars(asyncio.Runner)["_on_sigint"] is on_sigint
    finally:
        signal.signal(signal.SIGINT, before)
    assert "interrupting" in [one.function for thread in only_dump(tmp_path).threads for one in thread.frames]


async def interrupting() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0)
    raise KeyboardInterrupt


def test_control_c_in_a_loop_that_asyncio_run_did_not_make(tmp_path):
    loop = asyncio.new_event_loop()
    loop.call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), recording(tmp_path):
            loop.run_until_complete(asyncio.sleep(30))
    finally:
        signal.signal(signal.SIGINT, before)
        asyncio.gather(*asyncio.all_tasks(loop)).cancel()
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()
    (task,) = (thread for thread in only_dump(tmp_path).threads if thread.kind == "asyncio-task")
    assert task.frames[0].function == "sleep"


@pytest.mark.asyncio
async def test_a_loop_with_a_handler_of_its_own_is_left_alone(tmp_path):
    said: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context["message"]))
    with recording(tmp_path) as rec:
        asyncio.get_running_loop().call_exception_handler({"message": "x", "exception": OSError(), "future": None})
    assert (said, rec.dumps) == (["x"], [])
