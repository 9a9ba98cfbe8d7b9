"""How full a disk was, and the times of files to the last bit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from replay.runtime.errors import UnrecordedFile
from replay.runtime.syscalls import make_status
from tests.replay.runtime.file_programs import played, record, replay


def test_the_space_of_a_disk_is_the_recorded_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    then = os.statvfs_result([4096, 4096, 1000, 500, 400, 10, 9, 8, 0, 255], {"f_fsid": 7})
    fd = os.open(folder, os.O_RDONLY)

    def program() -> Any:
        (folder / "file").write_text("x")
        opened = os.open("file", os.O_RDONLY)
        found = [os.statvfs("."), os.statvfs(folder), os.fstatvfs(opened), os.statvfs(opened)]
        os.close(opened)
        return found, shutil.disk_usage("."), os.statvfs("."), [one.f_fsid for one in found]

    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda path: then)
        patch.setattr(os, "fstatvfs", lambda path: then)
        seen, calls = record(program)
    os.close(fd)
    assert seen[1] == (4096 * 1000, 4096 * 500, 4096 * 400)
    assert replay(calls, program) == seen


def test_an_error_is_the_recorded_one_and_what_was_not_recorded_is_refused(folder: Path) -> None:
    def program() -> Any:
        return os.statvfs("nowhere")

    seen, calls = record(program)
    assert seen[0] is FileNotFoundError
    assert replay(calls, program) == seen
    with pytest.raises(UnrecordedFile, match="statvfs"), played(calls):
        os.statvfs(".")


def test_a_handler_answers_with_a_dict(folder: Path) -> None:
    with played([]) as files:
        files.model.handlers.mock_syscall("statvfs", lambda args, recorded: {"f_frsize": 4096, "f_bavail": 2})
        assert shutil.disk_usage(".").free == 8192


def test_a_time_is_the_float_that_the_system_gives(folder: Path) -> None:
    path = folder / "file"
    path.touch()
    for nanoseconds in (1_750_316_423_590_866_512, 1_795_853_820_769_416_472, 999_999_999, 0):
        os.utime(path, ns=(nanoseconds, nanoseconds))
        real = path.stat()
        made = make_status({"st_mtime_ns": real.st_mtime_ns, "st_atime_ns": real.st_atime_ns})
        assert (made.st_mtime, made.st_atime) == (real.st_mtime, real.st_atime)
