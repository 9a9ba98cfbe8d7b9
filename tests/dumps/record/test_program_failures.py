"""Recorded programs that fail in every way there is: each a process of its own, whose dump is read back."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

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
        if how == "exit well":
            sys.exit(0)
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


def test_a_program_that_exits_with_a_status_has_failed(start, tmp_path):
    process = start("exit")
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 3
    state = only_dump(tmp_path / "dumps")
    (failure,) = state.failures
    assert (failure.exception_type, failure.message, failure.frame) == ("SystemExit", "3", "little.py:main")
    assert (state.manifest.reason, state.program.finished) == ("exception", True)


def test_one_that_exits_with_status_0_has_not(start, tmp_path):
    process = start("exit well")
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
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
        said = [line for line in err.splitlines() if not line.startswith(("dump written", "replay it"))]
        results.append((process.returncode, out, said[-1:]))
    assert results[0] == results[1]
