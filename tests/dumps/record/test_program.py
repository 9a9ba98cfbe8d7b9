"""Recorded programs that fail in every way there is: each a process of its own, whose dump is read back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dumps.record import program
from dumps.record.program import Recording, recording
from dumps.record.seams import current
from dumps.record.seams.tools import tool
from dumps.schema import state_pb2 as pb
from tests.program_dumps import dumps_in, only_dump

ROOT = Path(__file__).parents[3]
LIMIT_S = 30

PROGRAM = '''
"""A little program around a tool and a file; its first argument says how it fails."""
import asyncio, contextlib, gc, os, signal, sys, threading, time
from dumps.record.program import recording
from dumps.record.seams.context import frame, message
from dumps.record.seams.tools import tool

RECORDED = os.environ.get("RECORDED") == "yes"


@tool(deadline=30.0)
async def search(query, seconds):
    await asyncio.sleep(seconds)
    return {"found": query}


def in_thread():
    raise KeyError("in a thread")


async def lost():
    raise KeyError("in a task")


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def main(how):
    loop = asyncio.get_running_loop()
    with frame("agent", {"how": how}, message_id="m1"):
        message("user", "where am I?", "m2")
        print("began", os.path.exists("nothing"))
        await search("map", 0)
        if how == "exception":
            raise ValueError("no map, api_key=sk-very-secret-key")
        if how == "interrupt":
            loop.call_later(0.1, lambda: print("ready", flush=True))  # once it waits
            await search("lost", 30)
        if how == "demand":
            loop.call_later(0.1, os.kill, os.getpid(), signal.SIGUSR2)
            await search("signal", 0.3)
        if how == "timeout":
            await search("slow", 0.6)
        if how == "spin":
            spin(0.6)
        if how == "thread":
            thread = threading.Thread(target=in_thread)
            thread.start()
            thread.join()
        if how == "lost":
            asyncio.create_task(lost())
            await asyncio.sleep(0)
            gc.collect()
        if how == "exit":
            sys.exit(3)
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    print("ended")


how = sys.argv[1]
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have it ignored in the background
if RECORDED:
    with recording("dumps", level="full", timeout=0.3 if how in ("timeout", "spin") else None) as rec:
        rec.call(main, how=how)
else:
    asyncio.run(main(how))
'''


@pytest.fixture
def start(tmp_path):
    """``start(how)`` runs the program in ``tmp_path``, recorded into ``tmp_path / "dumps"`` or not."""
    (tmp_path / "little.py").write_text(PROGRAM)

    def run(how: str, *, recorded: bool = True) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "little.py", how],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "RECORDED": "yes" if recorded else "no"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


def test_an_exception(start, tmp_path):
    process = start("exception")
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert err.rstrip().endswith("ValueError: no map, api_key=sk-very-secret-key")  # to the program, as it was

    state = only_dump(tmp_path / "dumps")
    (failure,) = state.failures
    assert (failure.kind, failure.exception_type, failure.frame, failure.step) == (
        "exception",
        "ValueError",
        "little.py:main",
        1,
    )
    assert failure.message == "no map, api_key=REMOVED"
    assert state.exceptions[-1].message == failure.message
    assert state.manifest.reason == "exception"
    assert (state.program.entry, state.program.kind, state.program.finished) == ("little:main", "block", True)
    assert json.loads(state.program.arguments_json) == {"how": "exception"}
    assert [(call.name, call.status, call.result_json) for call in state.tool_calls] == [
        ("search", "finished", '{"found": "map"}')
    ]
    assert [(call.name, call.args[0]) for call in state.syscalls] == [("stat", "nothing")]


def test_control_c(start, tmp_path):
    process = start("interrupt")
    assert process.stdout.readline() == "began False\n"
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode in (-signal.SIGINT, 130)
    assert "KeyboardInterrupt" in err

    state = only_dump(tmp_path / "dumps")
    assert (state.manifest.reason, list(state.failures), state.program.finished) == ("signal", [], False)
    assert state.exceptions[-1].type == "KeyboardInterrupt"
    assert [frame.kind for frame in state.context_stack] == ["agent"]
    (task,) = (thread for thread in state.threads if thread.kind == "asyncio-task")  # as it stood, not cancelled yet
    assert [frame.function for frame in task.frames if frame.in_app] == ["search", "main"]
    (thread,) = (thread for thread in state.threads if thread.kind == "thread")
    assert not thread.frames[0].module.startswith("dumps.")
    (path,) = (tmp_path / "dumps").glob("context-snapshot-*.json")
    snapshot = json.loads(path.read_text())
    assert (snapshot["reason"], snapshot["stack_depth"], snapshot["last_message_id"]) == ("signal", 1, "m2")
    assert snapshot["messages"] == [{"id": "m2", "role": "user", "content": "where am I?"}]
    assert [one["status"] for one in snapshot["tool_states"]] == ["finished", "failed"]  # it was cancelled


def test_a_signal_while_it_goes_on(start, tmp_path):
    process = start("demand")
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (0, "began False\nended\n")
    assert "dump written" in err

    state = only_dump(tmp_path / "dumps")
    assert (state.manifest.reason, list(state.failures)) == ("demand", [])
    assert [call.status for call in state.tool_calls] == ["finished", "pending"]
    (task,) = (thread for thread in state.threads if thread.kind == "asyncio-task")
    assert [frame.function for frame in task.frames if frame.in_app] == ["search", "main"]
    assert [thread.name for thread in state.threads if thread.kind == "thread"] == ["MainThread"]  # none of ours
    (path,) = (tmp_path / "dumps").glob("context-snapshot-*.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (waiting,) = json.loads(path.read_text())["pending_function_responses"]
    assert (waiting["name"], waiting["deadline_s"]) == ("search", 30.0)
    assert json.loads(waiting["arguments"]) == {"query": "signal", "seconds": 0.3}


@pytest.mark.parametrize(("how", "frame"), [("timeout", "little.py:search"), ("spin", "little.py:spin")])
def test_a_deadline_while_it_goes_on(start, tmp_path, how, frame):
    process = start(how)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (0, "began False\nended\n")

    state = only_dump(tmp_path / "dumps")
    (failure,) = state.failures
    assert (failure.kind, failure.invariant, failure.frame) == ("timeout", "program", frame)
    assert failure.step == len(state.tool_calls)
    assert [thread.name for thread in state.threads if thread.current] == ["MainThread"]
    assert "main" in [frame.function for thread in state.threads for frame in thread.frames]
    assert [frame.kind for frame in state.context_stack] == ["agent"]


@pytest.mark.parametrize(
    ("how", "frame", "said"),
    [("thread", "little.py:in_thread", "in a thread"), ("lost", "little.py:lost", "in a task")],
)
def test_an_exception_that_ends_in_nobodys_hands(start, tmp_path, how, frame, said):
    process = start(how)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (0, "began False\nended\n")
    assert f"KeyError: '{said}'" in err  # as without a recording

    (failure,) = only_dump(tmp_path / "dumps").failures
    assert (failure.exception_type, failure.frame) == ("KeyError", frame)


def test_a_program_that_exits_with_a_code_has_not_failed(start, tmp_path):
    process = start("exit")
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 3
    assert not (tmp_path / "dumps").exists()


def test_of_a_killed_process_nothing_is_left_and_no_harm_done(start, tmp_path):
    """A program's recording lives in its memory; only an engine's flight recorder survives SIGKILL."""
    start("exception").communicate(timeout=LIMIT_S)
    before = {path: path.read_bytes() for path in (tmp_path / "dumps").iterdir()}
    process = start("killed")
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == -signal.SIGKILL
    assert {path: path.read_bytes() for path in (tmp_path / "dumps").iterdir()} == before
    start("exception").communicate(timeout=LIMIT_S)
    assert len(dumps_in(tmp_path / "dumps")) == 2


@pytest.mark.parametrize("how", ["nothing", "exception", "thread", "exit", "killed"])
def test_the_program_says_and_returns_the_same_recorded_or_not(start, how):
    results = []
    for recorded in (False, True):
        process = start(how, recorded=recorded)
        out, err = process.communicate(timeout=LIMIT_S)
        results.append((process.returncode, out, err.rstrip().rpartition("\n")[2]))
    assert results[0] == results[1]


def test_arguments_without_names_are_recorded_by_name(tmp_path):
    def joined(first, second="b", **rest):
        return first, second, rest

    with recording(tmp_path, level="full") as rec:
        assert rec.call(joined, "a", third="c") == ("a", "b", {"third": "c"})
        rec.dump()
        with pytest.raises(TypeError, match="multiple values for argument 'first'"):
            rec.call(joined, "a", first="b")
        for nameless in (lambda *words: words, lambda word, /: word):
            with pytest.raises(TypeError, match="cannot be given by name"):
                rec.call(nameless, "a")
    assert json.loads(only_dump(tmp_path).program.arguments_json) == {"first": "a", "third": "c"}


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


async def interrupting() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0)
    raise KeyboardInterrupt


@tool
def look_up(text: str) -> str:
    return text


def test_a_second_recording_is_refused(tmp_path):
    with recording(tmp_path / "a"):
        with pytest.raises(RuntimeError, match=r"being recorded into .*a; end that recording first"):
            recording(tmp_path / "b").__enter__()
        assert look_up("still recorded") == "still recorded"
    assert current.active() is None
    used = recording(tmp_path / "c")
    with used:
        pass
    with pytest.raises(RuntimeError, match="used before"), used:
        pass


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


def test_in_another_thread_it_works_without_signals(tmp_path):
    before = signal.getsignal(signal.SIGUSR2)
    caught: list[BaseException] = []

    def run() -> None:
        try:
            with recording(tmp_path, level="full"):
                assert signal.getsignal(signal.SIGUSR2) is before
                look_up("here")
                raise OSError("there")
        except OSError as error:
            caught.append(error)

    thread = threading.Thread(target=run, name="worker")
    thread.start()
    thread.join()
    assert [str(error) for error in caught] == ["there"]
    state = only_dump(tmp_path)
    assert [one.name for one in state.threads if one.current] == ["worker"]
    assert state.failures[0].step == 1


@pytest.mark.asyncio
async def test_around_a_part_of_a_running_loop(tmp_path):
    async def inner() -> None:
        async with recording(tmp_path):
            await asyncio.sleep(30)

    task = asyncio.create_task(inner(), name="inner")
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    state = only_dump(tmp_path)
    assert (state.manifest.reason, list(state.failures)) == ("signal", [])


@pytest.mark.asyncio
async def test_a_loop_with_a_handler_of_its_own_is_left_alone(tmp_path):
    said: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context["message"]))
    with recording(tmp_path) as rec:
        asyncio.get_running_loop().call_exception_handler({"message": "x", "exception": OSError(), "future": None})
    assert (said, rec.dumps) == (["x"], [])


def test_a_folder_that_cannot_be_written_costs_the_program_nothing(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(KeyError, match="own"), recording(tmp_path / "file" / "dumps"):
        raise KeyError("own")
    assert "no dump was written: NotADirectoryError" in caplog.text


def test_what_is_in_flight_is_shown_as_far_as_it_came(tmp_path):
    with recording(tmp_path, level="full") as rec:
        from dumps.record.seams.tools import partial

        partial("call_1", "search", '{"query": "Lis')
        rec.dump()
    (call,) = only_dump(tmp_path).tool_calls
    assert (call.id, call.status, call.arguments_json) == ("call_1", "partial", '{"query": "Lis')


def test_there_is_an_end_to_dumps(tmp_path, caplog):
    with recording(tmp_path) as rec:
        for _ in range(program.MAX_DUMPS + 2):
            rec.dump()
        assert len(rec.dumps) == program.MAX_DUMPS
        assert caplog.text.count("no dump was written") == 2
        rec.failed(ValueError("still one of these"))
        assert len(rec.dumps) == program.MAX_DUMPS + 1


def test_a_signal_while_another_thread_makes_a_dump_does_not_wait_for_it(tmp_path, caplog):
    with recording(tmp_path) as rec:
        assert rec._writing.acquire()
        began = time.monotonic()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert time.monotonic() - began < 1.0
        rec._writing.release()
    assert rec.dumps == []
    assert "one is being made right now" in caplog.text


def test_below_full_a_dump_holds_no_text_of_the_program(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_QUESTION", "zebra")
    monkeypatch.setenv("MY_TOKEN", "zebra")
    with pytest.raises(ValueError, match="zebra"), recording(tmp_path, level="tokens") as rec:
        rec.call(shouting, text="zebra")
    state = only_dump(tmp_path)
    assert state.manifest.record_level == "shape"
    state.ClearField("failures")  # messages of exceptions are kept: they are what failed
    state.ClearField("exceptions")
    assert b"zebra" not in state.SerializeToString()
    assert {"MY_QUESTION", "MY_TOKEN"} <= {variable.key for variable in state.program.environment}
    assert {"exchanges[].chunks[].data", "program.arguments_json"} <= {entry.path for entry in state.ledger}


def shouting(text: str) -> None:
    raise ValueError(look_up(text))


def test_in_a_replay_nothing_happens(tmp_path):
    end = current.begin_replay()
    try:
        with pytest.raises(OSError, match="as it was"), recording(tmp_path / "dumps") as rec:
            refuse(rec)
    finally:
        end()
    assert not (tmp_path / "dumps").exists()


def refuse(rec: Recording) -> None:
    assert program.active() is None
    assert rec.dump() is None
    raise OSError("as it was")


def test_options_that_cannot_be(tmp_path):
    with pytest.raises(ValueError, match="timeout=-1"):
        recording(tmp_path, timeout=-1)
    with pytest.raises(ValueError, match="loud"):
        recording(tmp_path, level="loud")


def test_a_forked_child_makes_no_dump(tmp_path):
    with recording(tmp_path) as rec:
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            made = rec.dump()
            os._exit(0 if made is None and not rec.active else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert isinstance(rec, Recording)
    assert list(tmp_path.glob("*.pplx")) == []


def test_a_dump_is_no_part_of_the_next_one(tmp_path):
    with recording(tmp_path, level="full") as rec:
        rec.dump()
        rec.dump()
    first, second = dumps_in(tmp_path)
    for state in (first, second):
        assert [draw.source for draw in state.entropy if not draw.source.endswith(".state")] == []
        assert list(state.syscalls) == []


def test_dumps_are_of_one_moment(tmp_path):
    """A dump is a copy: what happens afterwards does not reach it."""
    with recording(tmp_path, level="full") as rec:
        rec.dump()
        look_up("later")
        rec.dump()
    first, second = dumps_in(tmp_path)
    assert (len(first.tool_calls), len(second.tool_calls)) == (0, 1)
    assert isinstance(first, pb.RuntimeState)
