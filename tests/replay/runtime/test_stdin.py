"""Programs that read their standard input, which no recording has."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest

from replay.runtime.env import load_env
from replay.runtime.stdin import StandardInput
from tests.small_programs import SmallPrograms, play, state_of

READS = """
def typed(): return fails(input("which? "))
def whole(): return fails(sys.stdin.read())
def lines(): return fails([int(line) for line in sys.stdin][0])
def raw(): return fails(sys.stdin.buffer.readline())
def early(): return fails(sys.__stdin__.readline())
def opened():
    with open(0, closefd=False) as file:
        return fails(file.read())
def by_name():
    with open("/dev/stdin") as file:
        return fails(file.read())
def descriptor(): return fails(os.read(0, 10))
def only_at_a_terminal(): return "tty" if sys.stdin.isatty() and os.isatty(0) else fails(sys.stdin.read())
def fails(what): raise ValueError(f"read {what!r}")
"""
ENTRIES = ["typed", "whole", "lines", "raw", "early", "opened", "by_name", "descriptor", "only_at_a_terminal"]


@pytest.fixture
def programs(tmp_path: Path) -> SmallPrograms:
    return SmallPrograms(tmp_path)


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A pipe with a line in it."""
    reads, writes = os.pipe()
    os.write(writes, b"99\n")
    os.close(writes)
    with _stdin_of(reads, monkeypatch):
        yield


class _stdin_of:
    def __init__(self, fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._before = os.dup(0)
        os.dup2(fd, 0)
        os.close(fd)
        self._file = open(0, closefd=False)  # noqa: SIM115
        monkeypatch.setattr("sys.stdin", self._file)
        monkeypatch.setattr("sys.__stdin__", self._file)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        os.dup2(self._before, 0)
        os.close(self._before)


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_is_read_from_it_is_refused(programs: SmallPrograms, stdin: None, entry: str) -> None:
    name = programs.write(READS)
    dump = programs.record(name, entry)
    assert [(one.fd, one.kind) for one in state_of(dump).descriptors] == [(0, "pipe")]
    assert "99" in state_of(dump).failures[0].message
    env, outcome = play(dump, getattr(programs.module(name), entry))
    assert isinstance(outcome.error, StandardInput)
    assert [one.error for one in env.refusals] == [outcome.error]

    report = programs.replay(dump, f"{name}:{entry}").report
    assert report is not None
    assert report["verdict"] == "inconclusive"
    assert report["findings"][0]["code"] == "program-unsupported"
    assert "standard input" in report["findings"][0]["message"]
    assert "argument" in report["findings"][0]["remedy"]


@pytest.mark.parametrize("entry", ["whole", "raw", "descriptor"])
def test_where_there_was_nothing_to_read_there_is_nothing(
    programs: SmallPrograms, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    name = programs.write(READS)
    with _stdin_of(os.open(os.devnull, os.O_RDONLY), monkeypatch):
        dump = programs.record(name, entry)
    report = programs.replay(dump, f"{name}:{entry}").report
    assert report is not None
    assert report["verdict"] == "reproduced"


def test_a_program_that_stood_at_a_terminal_is_told_so(
    programs: SmallPrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = programs.write(READS)
    master, terminal = pty.openpty()
    with _stdin_of(terminal, monkeypatch):
        dump = programs.record(name, "only_at_a_terminal")
    os.close(master)
    env, outcome = play(dump, programs.module(name).only_at_a_terminal)
    assert (outcome.value, env.refusals) == ("tty", [])


def test_after_the_replay_it_is_what_it_was(programs: SmallPrograms, stdin: None) -> None:
    dump = programs.record(programs.write("def main(): pass"))
    with load_env(dump), pytest.raises(StandardInput):
        input()
    assert input() == "99"
