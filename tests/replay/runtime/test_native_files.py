"""Ways past `open` to a file of the replay, in a world of one file."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dumps.schema import state_pb2 as pb
from replay.runtime.env import load_env
from replay.runtime.native_files import ReadsPastTheRecord
from tests.replay.runtime.file_programs import record


def given() -> int:
    with open("given.txt", "rb") as file:
        return len(file.read())


def written() -> int:
    with open("made.txt", "wb") as file:
        copy = os.dup(file.fileno())
        os.close(copy)
        return file.write(b"more")


def world(calls: list[pb.Syscall]) -> pb.RuntimeState:
    state = pb.RuntimeState(syscalls=calls)
    state.manifest.record_level, state.program.kind = "full", "block"
    state.program.started_ns, state.program.wall_minus_monotonic_ns = 10**9, 10**18
    return state


@pytest.mark.parametrize(
    "go_past", [lambda fd: os.dup(fd), lambda fd: os.dup2(fd, 99), lambda fd: mmap.mmap(fd, 4, access=mmap.ACCESS_READ)]
)
def test_a_played_file_is_read_by_nothing_else(folder: Path, go_past: Callable[[int], object]):
    (folder / "given.txt").write_text("text")
    _, calls = record(given)
    env = load_env(world(calls))
    with env, open("given.txt", "rb") as file, pytest.raises(ReadsPastTheRecord):
        go_past(file.fileno())
    assert [refusal.kind for refusal in env.refusals] == ["unsupported"]


def test_what_is_written_past_the_record_is_lost_in_both(folder: Path):
    seen, calls = record(written)
    env = load_env(world(calls))
    with env:
        assert written() == seen
    assert env.refusals == []


def test_other_descriptors_are_copied():
    with load_env(world([])):
        reads, writes = os.pipe()
        copy = os.dup(writes)
        os.write(copy, b"x")
        assert os.read(reads, 1) == b"x"
        for fd in (reads, writes, copy):
            os.close(fd)
