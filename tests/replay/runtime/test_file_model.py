"""What a program is told of its files that goes its own way: other paths, other writes, other questions."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from dumps.schema import state_pb2 as pb
from replay.runtime.errors import UnrecordedFile
from tests.replay.runtime.file_programs import played, record, replay


def test_a_path_that_was_never_recorded(folder: Path):
    (folder / "settings.json").write_text("{}")
    _, calls = record(lambda: Path("settings.json").read_text())
    with played(calls) as files:
        for ask in (
            lambda: open("setings.json"),  # noqa: SIM115
            lambda: open("new.txt", "w"),  # noqa: SIM115
            lambda: os.path.exists("other"),
            lambda: os.listdir("elsewhere"),
            lambda: os.mkdir("made"),
            lambda: os.rename("x", "y"),
        ):
            with pytest.raises(UnrecordedFile):
                ask()
    assert [one.call for one in files.unrecorded] == ["open", "open", "stat", "listdir", "mkdir", "rename"]
    first = files.unrecorded[0]
    assert "recorded (dump):       settings.json" in str(first)
    assert "replayed (your code):  setings.json" in str(first)
    assert "mock_syscall" in first.remedy
    assert not any(folder.iterdir())


def test_new_files_where_they_are_allowed(folder: Path):
    with played([], new_files=True) as files:
        os.mkdir("made")
        Path("made/a.txt").write_text("one")
        Path("made/a.txt").rename("made/b.txt")
        assert os.listdir("made") == ["b.txt"]
        assert Path("made/b.txt").read_text() == "one"
        assert not os.path.exists("made/a.txt")
        assert not os.path.exists("made/never-there")
        with pytest.raises(FileExistsError):
            os.mkdir("made")
        with pytest.raises(OSError, match="not empty"):
            os.rmdir("made")
    assert files.written() == {"made/b.txt": b"one"}
    assert not any(folder.iterdir())


def test_what_is_known_answers_what_was_not_asked(folder: Path):
    """Fixed code looks before it opens; the recording says enough to answer it."""
    (folder / "data").mkdir()
    (folder / "data" / "a.txt").write_text("abc")

    def broken() -> Any:
        os.listdir("data")
        return Path("data/a.txt").read_text() + Path("data/b.txt").read_text()

    seen, calls = record(broken)
    assert seen[0] is FileNotFoundError

    def fixed() -> Any:
        return [
            path.read_text() if path.exists() else ""
            for path in (Path("data/a.txt"), Path("data/b.txt"), Path("data/c"))
        ] + [os.path.getsize("data/a.txt"), os.path.isdir("data")]

    assert replay(calls, fixed) == ["abc", "", "", 3, True]


def test_what_the_program_wrote_comes_before_what_was_recorded(folder: Path):
    def broken() -> Any:
        Path("state").write_text("wrong")
        return Path("state").read_text()

    def fixed() -> Any:
        Path("state").write_text("quite right")
        return Path("state").read_text(), Path("state").stat().st_size

    seen, calls = record(broken)
    assert seen == "wrong"
    assert replay(calls, fixed) == ("quite right", 11)


def test_what_others_did_in_between_comes_back(folder: Path):
    """A lock that another process took, and a queue that it filled, between two calls of this one."""
    real = {"open": open}  # not a name of a module, which would be found and replaced
    recording = True

    def other(name: str, content: str) -> None:
        if recording:
            with real["open"](name, "w") as file:
                file.write(content)

    def program() -> Any:
        seen: list[Any] = []
        for _ in range(2):
            try:
                with open("lock", "x"):
                    pass
                os.remove("lock")
                Path("queue").write_text("mine")
                other("lock", "")
                other("queue", "mine and yours")
                seen.append((Path("queue").read_text(), Path("queue").stat().st_size))
            except FileExistsError as error:
                seen.append(error.errno)
        return seen

    seen, calls = record(program)
    assert seen == [("mine and yours", 14), errno.EEXIST]
    recording = False
    assert replay(calls, program) == seen


def test_once_the_program_goes_its_own_way_errors_that_cannot_be_are_left_out(folder: Path):
    """Recorded: removed, written again, and removed by another process. The fixed program never removes it."""
    calls = [
        pb.Syscall(name="unlink", args=["a"], ret="0"),
        pb.Syscall(name="open", args=["a", "O_WRONLY|O_CREAT|O_TRUNC", "0", "0", "file"], ret="3"),
        pb.Syscall(name="stat", args=["a"], ret="-1", errno_name="ENOENT"),
    ]

    def broken() -> bool:
        os.remove("a")
        return fixed()

    def fixed() -> bool:
        with open("a", "w"):
            pass
        return os.path.exists("a")

    assert replay(calls, broken) is False
    assert replay(calls, fixed) is True


def test_what_lay_in_a_renamed_folder_is_gone_from_there(folder: Path):
    (folder / "old").mkdir()
    (folder / "old" / "a").write_text("text")

    def program() -> Any:
        before = os.path.exists("old/a")
        os.rename("old", "new")
        return before, Path("new/a").read_text()

    seen, calls = record(program)
    assert replay(calls, lambda: (*program(), os.path.exists("old/a"))) == (*seen, False)
