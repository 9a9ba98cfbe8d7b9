"""The recorded world around any code: put in place whole, taken out whole, and what it notes of the program in it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import random
import socket
import threading
import time
import uuid
from pathlib import Path

import pytest

from dumps.record.program import recording
from dumps.record.seams import current
from dumps.schema import state_pb2 as pb
from replay.runtime import env as env_module
from replay.runtime import loop
from replay.runtime.env import Env, NoWorldRecorded, Refusal, load_env
from replay.runtime.errors import RuntimeReplayError, UnrecordedFile, UnrecordedRequest
from replay.runtime.loop import Stalled
from tests.small_programs import play, says, state_of

PROGRAM = """
from dumps.record.seams.tools import tool

def main(url, pause=0.2):
    first = get(url + "/a")
    time.sleep(pause)
    return first, get(url + "/b"), time.time(), os.urandom(4).hex()

def swapped(url):
    return get(url + "/b"), get(url + "/a")

def curious(url):
    first = get(url + "/a")
    try:
        get(url + "/news")
    except Exception:
        pass
    return first, get(url + "/b")

def longer(url):
    main(url)
    try:
        return get(url + "/c")
    except Exception:
        return "swallowed"

def shorter(url):
    return get(url + "/a")

def twice(url):
    get(url + "/a"), get(url + "/a")
"""


@pytest.fixture(scope="module")
def recorded(programs):
    """The module, its dump, and the address of a server that is gone."""
    name = programs.write(PROGRAM)
    dump, url = programs.record_served(name, says("A"), says("B"))
    return programs.module(name), dump, url


def first(env: Env) -> Refusal:
    assert env.first_refusal is not None
    return env.first_refusal


def interesting() -> list[object]:
    """What a world replaces, as this process has it now."""
    return [
        time.time, time.monotonic, time.sleep, time.perf_counter, datetime.datetime, os.urandom, uuid.uuid4,
        random.random, open, os.open, os.stat, socket.socket, socket.create_connection, asyncio.new_event_loop,
        asyncio.SelectorEventLoop, asyncio.BaseEventLoop.run_forever, threading.excepthook, current.active(),
        current.replaying(),
    ]  # fmt: skip


def test_a_program_sees_what_was_recorded_and_waits_for_nothing(recorded):
    module, dump, url = recorded
    wall_ns = state_of(dump).program
    began = time.monotonic()
    env, outcome = play(dump, module.main, url=url, pause=9_000)
    assert time.monotonic() - began < 900
    first, second, at, drawn = outcome.value
    assert (first, second) == ("A", "B")
    assert at - (wall_ns.started_ns + wall_ns.wall_minus_monotonic_ns) / 1e9 == pytest.approx(9_000, abs=5)
    assert drawn == next(draw.data for draw in state_of(dump).entropy if draw.size == 4).hex()
    assert env.elapsed_s > 9_000
    assert env.findings() == []
    assert env.counts() == {
        "exchanges": {"recorded": 2, "asked": 2, "left_over": 0},
        "tool_calls": {"recorded": 0, "begun": 0},
        "unrecorded": 0,
        "unrecorded_requests": 0,
    }


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_whatever_leaves_the_block_takes_the_world_out(recorded, error):
    before = interesting()
    env = load_env(recorded[1])

    def leave():
        with env:
            assert interesting() != before
            raise error

    with pytest.raises(error):
        leave()
    assert interesting() == before


@pytest.mark.parametrize("part", ["files", "entropy", "clock", "http_client_peer"])
def test_a_part_that_cannot_be_put_in_place_leaves_nothing_behind(recorded, monkeypatch, part):
    before = interesting()
    env = load_env(recorded[1])

    def broken(*_):
        raise OSError("no")

    monkeypatch.setattr(getattr(env, part, None) or getattr(env_module, part), "install", broken)
    with pytest.raises(OSError, match="no"):
        env.__enter__()
    assert interesting() == before


def test_a_part_that_fails_to_leave_does_not_keep_the_others_in(recorded, monkeypatch):
    before = interesting()
    env = load_env(recorded[1])
    install = env.entropy.install

    def install_badly():
        undo = install()

        def fail():
            undo()
            raise OSError("stuck")

        return fail

    monkeypatch.setattr(env.entropy, "install", install_badly)
    with pytest.raises(OSError, match="stuck"), env:
        pass
    assert interesting() == before


def test_one_world_at_a_time_and_each_once(recorded):
    env, other = load_env(recorded[1]), load_env(recorded[1])
    with env:
        with pytest.raises(RuntimeReplayError, match="in place already"), other:
            pass
        with pytest.raises(RuntimeReplayError, match="in place already"), env:
            pass
        assert current.replaying()
    with pytest.raises(RuntimeReplayError, match="used before"), env:
        pass
    with other:
        pass


def test_what_is_being_recorded_is_not_replayed(recorded, tmp_path):
    before = interesting()
    with recording(tmp_path), pytest.raises(RuntimeError, match="recorded or replayed already"), load_env(recorded[1]):
        pass
    assert interesting() == before


async def test_a_loop_on_real_time_is_refused(recorded):
    with pytest.raises(RuntimeReplayError, match="does not run on the clock") as caught:
        async with load_env(recorded[1]):
            pass
    assert "asyncio.run" in caught.value.remedy
    assert not current.replaying()


def test_async_with_in_a_loop_on_the_clock_of_the_world(recorded):
    before = interesting()
    env = load_env(recorded[1])

    async def main():
        async with env:
            began = time.monotonic()
            await asyncio.sleep(3600)
            return time.monotonic() - began

    assert loop.run(env.clock, main()) == pytest.approx(3600, abs=0.1)
    assert interesting() == before
    stranger = load_env(recorded[1])

    async def elsewhere():
        async with stranger:
            pass

    with pytest.raises(RuntimeReplayError, match="clock of this world"):
        loop.run(env.clock, elsewhere())


def test_each_part_works_alone(recorded):
    env = load_env(recorded[1])
    before = interesting()
    real = time.monotonic()
    undo = env.clock.install()
    time.sleep(1000)
    undo()
    assert time.monotonic() - real < 10
    undo = env.entropy.install()
    drawn = os.urandom(4)
    undo()
    assert drawn == next(draw.data for draw in state_of(recorded[1]).entropy if draw.size == 4)
    undo = env.tools.install()
    undo()
    connection = env.network.connect("127.0.0.1", int(recorded[2].rpartition(":")[2]), tls=False)
    connection.send(b"GET /a HTTP/1.1\r\nHost: " + recorded[2].partition("//")[2].encode() + b"\r\n\r\n")
    assert connection.take().data.endswith(b"A")
    assert env.kv is not None
    assert env.stacks is not None
    assert env.fds is not None
    assert interesting() == before


def test_a_syscall_handler_answers_for_a_file(recorded):
    env = load_env(recorded[1])

    def full(args, recorded):
        assert (args[0], recorded) == ("/nowhere/data.json", None)
        raise OSError(28, "No space left on device")

    env.mock_syscall("open", full)
    with env, pytest.raises(OSError, match="No space left"):
        Path("/nowhere/data.json").read_text()


def test_what_was_not_recorded_is_noted_though_the_program_swallows_it(recorded):
    module, dump, url = recorded
    env, outcome = play(dump, module.curious, url=url)
    assert outcome.value == ("A", "B")
    (refusal,) = env.refusals
    assert (refusal.kind, refusal.step, refusal.left_over, refusal.task) == ("unrecorded", 2, 1, "MainThread")
    assert isinstance(refusal.error, UnrecordedRequest)
    assert "/news" in refusal.sentence
    assert "\n" not in refusal.sentence
    assert [finding.code for finding in env.findings()] == ["unrecorded"]
    assert env.counts()["unrecorded"] == 1


def test_past_the_end_nothing_is_left_over(recorded):
    module, dump, url = recorded
    env, outcome = play(dump, module.longer, url=url)
    assert outcome.value == "swallowed"
    assert first(env).left_over == 0
    assert first(env).monotonic_ns >= env.clock.started_ns + 200_000_000


def test_another_order_is_told_and_refuses_nothing(recorded):
    module, dump, url = recorded
    env, outcome = play(dump, module.swapped, url=url)
    assert outcome.value == ("B", "A")
    assert env.first_refusal is None
    assert [finding.code for finding in env.findings()] == ["order"]


def test_what_the_program_did_not_ask_for_is_left_over(recorded):
    module, dump, url = recorded
    env, outcome = play(dump, module.shorter, url=url)
    assert outcome.value == "A"
    (finding,) = env.findings()
    assert finding.code == "left-over"
    assert str(finding).startswith("left-over: x2 GET")
    assert env.counts()["exchanges"] == {"recorded": 2, "asked": 1, "left_over": 1}


def test_a_retry_too_many_is_called_one(recorded):
    module, dump, url = recorded
    env, outcome = play(dump, module.twice, url=url)
    assert outcome.ended == "stopped"
    assert "the program asks once more" in str(first(env).error)


def test_a_file_that_was_not_recorded_is_a_refusal_too(recorded):
    env = load_env(recorded[1])
    with env, pytest.raises(UnrecordedFile):
        Path("/nowhere/data.json").read_text()
    assert first(env).kind == "unrecorded"
    assert env.world_step == 0


def test_a_stall_is_one_and_nothing_unrecorded(recorded):
    async def deadlock():
        await asyncio.Event().wait()

    env, outcome = play(recorded[1], deadlock)
    assert outcome.ended == "stalled"
    assert first(env).kind == "stalled"
    assert isinstance(first(env).error, Stalled)
    assert env.counts()["unrecorded"] == 0
    assert [finding.code for finding in env.findings()] == ["left-over", "left-over", "stalled"]


def test_tasks_that_ask_at_once_get_what_each_of_them_got(programs):
    name = programs.write("""
        import httpx
        async def main(url):
            async def ask(client, name):
                return name, (await client.get(f"{url}/{name}")).text
            async with httpx.AsyncClient(trust_env=False) as client:
                return await asyncio.gather(*(ask(client, name) for name in "abc"))
    """)
    dump, url = programs.record_served(name, says("1"), says("2"), says("3"))
    answers = {exchange.url[-1]: exchange.chunks[-1].data[-1:].decode() for exchange in state_of(dump).exchanges}
    env, outcome = play(dump, programs.module(name).main, url=url)
    assert dict(outcome.value) == answers
    assert env.findings() == []


def test_a_dump_of_an_engine_has_an_empty_world():
    env = Env(pb.RuntimeState())
    with env:
        assert time.time() < 1
    assert env.counts()["exchanges"] == {"recorded": 0, "asked": 0, "left_over": 0}
    with pytest.raises(NoWorldRecorded, match="that of an engine") as caught:
        load_env(pb.RuntimeState())
    assert "recording" in caught.value.remedy


def test_a_dump_without_what_the_program_was_told_is_refused(tmp_path):
    with recording(tmp_path, level="shape") as rec:
        written = rec.dump()
    assert written is not None
    with pytest.raises(NoWorldRecorded, match="level 'shape'") as caught:
        load_env(written)
    assert 'level="full"' in caught.value.remedy


def test_a_wrong_answer_of_a_handler_is_noted_though_the_program_swallows_it(recorded):
    env = load_env(recorded[1])
    env.mock_syscall("open", lambda args, recorded: None)
    with env, contextlib.suppress(Exception):
        Path("/nowhere/data.json").read_text()
    assert first(env).kind == "unsupported"
    assert "returned NoneType for open('/nowhere/data.json', 'O_RDONLY" in first(env).sentence


def test_an_unknown_tool_call_is_refused_before_anything_is_in_place(recorded):
    before = interesting()
    with pytest.raises(RuntimeReplayError, match="tool-1"):
        load_env(recorded[1], tool_results={"tool-1": "{}"})
    assert interesting() == before
