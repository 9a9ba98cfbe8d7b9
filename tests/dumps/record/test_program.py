"""A recording around code of this process: what it takes, what its dumps hold, and when it makes none."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time

import pytest

from dumps.record import program
from dumps.record.program import Recording, recording
from dumps.record.seams import current
from dumps.record.seams.tools import tool
from dumps.schema import state_pb2 as pb
from tests.program_dumps import dumps_in, only_dump


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
    with pytest.raises(ValueError, match=r"level='loud': one of 'shape', 'tokens', 'full'$"):
        recording(tmp_path, level="loud")
    with pytest.raises(ValueError, match="did you mean 'full'"):
        recording(tmp_path, level="ful")


def test_after_a_dump_the_command_that_replays_it_is_told(tmp_path, caplog):
    with recording(tmp_path / "a folder", level="full") as rec:
        rec.call(look_up, text="what")
        path = rec.dump()
        rec.call(lambda: None)  # which no replay can import
        rec.dump()
    with recording(tmp_path / "b") as rec:  # of which there is no replay
        rec.call(look_up, text="what")
        rec.dump()
    told = [one.getMessage() for one in caplog.records if one.getMessage().startswith("replay it")]
    assert told == [f"replay it: pplx-replay run '{path}' --target app={__name__}:look_up"]


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
