"""Handlers of a program's file calls: who is asked first, and what their answers give the program."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dumps.schema import state_pb2 as pb
from replay.runtime.syscalls import Syscalls, WrongAnswer
from tests.replay.runtime.file_programs import played, record


def test_handlers_come_first_and_chain(folder: Path):
    (folder / "a").write_bytes(b"recorded")
    _, calls = record(lambda: Path("a").read_bytes())
    asked: list[tuple[Any, ...]] = []

    def watch(args: tuple[Any, ...], recorded: pb.Syscall | None) -> Any:
        asked.append((args[0], None if recorded is None else recorded.data))
        return NotImplemented

    def broken_disk(args: tuple[Any, ...], recorded: pb.Syscall | None) -> Any:
        raise OSError(errno.EIO, "a disk that breaks")

    syscalls = Syscalls()
    syscalls.mock_syscall("open", lambda args, recorded: "made up" if args[0] == "b" else NotImplemented)
    with played(calls, syscalls=syscalls):
        undo = syscalls.mock_syscall("read", broken_disk)
        syscalls.mock_syscall("read", watch)
        with pytest.raises(OSError, match="a disk that breaks"):
            Path("a").read_bytes()
        undo()
        assert Path("a").read_bytes() == b"recorded"
        assert Path("b").read_text() == "made up"
    assert ("a", b"recorded") in asked


@pytest.mark.parametrize("given", [b'{"runs": 100}', '{"runs": 100}', bytearray(b'{"runs": 100}')])
def test_what_a_read_handler_returns_is_the_whole_file_asked_once_per_open(folder: Path, given: Any):
    (folder / "state.json").write_text('{"runs": 1, "and": "more"}')
    _, calls = record(lambda: Path("state.json").read_bytes())
    asked: list[tuple[Any, ...]] = []

    def handler(args: tuple[Any, ...], recorded: pb.Syscall | None) -> Any:
        assert recorded is not None
        asked.append(args)
        return given

    syscalls = Syscalls()
    with played(calls, syscalls=syscalls):
        syscalls.mock_syscall("read", handler)
        assert Path("state.json").read_text() == '{"runs": 100}'
        assert len(asked) == 1
        assert (asked[0][0], asked[0][2]) == ("state.json", 0)
        fd = os.open("state.json", os.O_RDONLY)
        assert [os.read(fd, 5), os.read(fd, 100), os.read(fd, 100), os.pread(fd, 3, 2)] == [
            b'{"run',
            b's": 100}',
            b"",
            b"run",
        ]
        assert os.lseek(fd, 0, os.SEEK_END) == 13
        os.close(fd)
        assert len(asked) == 2
        assert asked[1] == ("state.json", 5, 0)


def test_a_read_handler_answers_for_a_file_that_is_written_too(folder: Path):
    (folder / "a").write_text("recorded")

    def program() -> bytes:
        with open("a", "r+b") as file:
            read = file.read()
            file.write(b"!")
            file.flush()
            file.seek(0)
            return read + b" " + file.read()

    _, calls = record(program)
    syscalls = Syscalls()
    syscalls.mock_syscall("read", lambda args, recorded: "ü")
    with played(calls, syscalls=syscalls):
        assert program().decode() == "ü ü!"


@pytest.mark.parametrize(
    ("name", "given", "ask", "wanted"),
    [
        ("read", None, lambda: Path("a").read_bytes(), r"NoneType for read\('a', \d+, 0\); wanted: bytes or str"),
        ("open", 7, lambda: Path("a").read_bytes(), "int for open.*wanted: bytes or str"),
        ("stat", 3, lambda: os.stat("a"), "int for stat.*wanted: a dict of st_mode"),
        ("listdir", "a", lambda: os.listdir("."), "str for listdir.*wanted: a list of names"),
    ],
)
def test_a_handler_that_returns_what_the_call_cannot_give(
    folder: Path, name: str, given: Any, ask: Callable[[], Any], wanted: str
):
    (folder / "a").write_text("a")
    _, calls = record(lambda: (Path("a").read_bytes(), os.stat("a"), os.listdir(".")))
    syscalls = Syscalls()
    syscalls.mock_syscall(name, lambda args, recorded: given)
    with played(calls, syscalls=syscalls), pytest.raises(WrongAnswer, match=wanted) as caught:
        ask()
    assert "NotImplemented" in caught.value.remedy
