"""The real file system is the model: whatever a program does with files, recorded and then replayed with the files
gone, it sees the same."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dumps.record.recorder import RecordLevel
from dumps.record.seams import files as recorded_files
from dumps.record.seams.log import WorldLog
from dumps.schema import state_pb2 as pb
from replay.runtime.files import Files

FEEDS = ("feed", "d/feed")  # what others write, and the program only reads
NAMES = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "none/a")
# Another process: neither recorded nor played. Not names of this module, which would be found and replaced.
REAL: dict[str, Any] = {"open": open, "remove": os.remove}

names = st.sampled_from(NAMES)
feeds = st.sampled_from(FEEDS)
data = st.binary(max_size=40)
sizes = st.integers(0, 50)


def ops(*parts: Any) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*(st.just(part) if isinstance(part, str) else part for part in parts))


operations = st.one_of(
    ops("write", names, st.sampled_from(["wb", "ab", "xb", "r+b", "w+b", "a+b"]), sizes, data),
    ops("unbuffered", names, sizes, data),
    ops("text", names, st.sampled_from(["r", "w", "a"])),
    ops("read", names, st.lists(sizes, max_size=3)),
    ops("os", names, sizes, sizes),
    ops("end", names, st.integers(-10, 0)),
    ops("truncate", names, sizes),
    ops("stat", names),
    ops("lstat", names),
    ops("exists", names),
    ops("access", names),
    ops("listdir", st.sampled_from(["d", "d/e", "a", "."])),
    ops("scandir", st.sampled_from(["d", "d/e", "a", "."])),
    ops("mkdir", names),
    ops("makedirs", names),
    ops("rmdir", names),
    ops("remove", names),
    ops("rename", names, names),
    ops("replace", names, names),
    ops("copy", names, names),
    ops("rmtree", names),
    ops("touch", names),
    ops("chmod", names),
    ops("outside-write", feeds, data),
    ops("outside-remove", feeds),
    ops("read", feeds, st.lists(sizes, max_size=3)),
    ops("os", feeds, sizes, sizes),
    ops("end", feeds, st.integers(-10, 0)),
    ops("stat", feeds),
    ops("exists", feeds),
)


def perform(operation: tuple[Any, ...]) -> Any:
    """What a program sees of one operation: a value, or an error with its number and files."""
    try:
        return OPERATIONS[operation[0].replace("-", "_")](*operation[1:])
    except (OSError, ValueError, shutil.Error) as error:
        return type(error), *((error.errno, error.filename, error.filename2) if isinstance(error, OSError) else ())


def write(name: str, mode: str, at: int, content: bytes) -> Any:
    with open(name, mode) as file:
        file.seek(at)
        file.write(content)
        where = file.tell()
        file.seek(0)
        return where, file.read() if "+" in mode else None


def unbuffered(name: str, at: int, content: bytes) -> Any:
    with open(name, "r+b", buffering=0) as file:
        file.seek(at)
        return file.write(content), file.tell(), file.seek(0), file.read(7), file.readall()


def text(name: str, mode: str) -> Any:
    with open(name, mode, encoding="latin-1") as file:
        return file.readlines() if mode == "r" else file.write("one\ntwo\n"), file.mode, file.name


def read(name: str, pieces: list[int]) -> Any:
    with open(name, "rb") as file:
        return [file.read(piece) for piece in pieces], file.read()


def with_os(name: str, at: int, size: int) -> Any:
    fd = os.open(name, os.O_RDONLY)
    try:
        whole = os.fstat(fd)
        return os.read(fd, size), os.pread(fd, size, at), os.lseek(fd, 0, os.SEEK_CUR), stat.S_IFMT(whole.st_mode)
    finally:
        os.close(fd)


def from_end(name: str, back: int) -> Any:
    with open(name, "rb") as file:
        return file.seek(back, os.SEEK_END), file.read()


def status(result: os.stat_result) -> Any:
    folder = stat.S_ISDIR(result.st_mode)
    return stat.S_IFMT(result.st_mode), stat.S_IMODE(result.st_mode), None if folder else result.st_size


def scandir(name: str) -> Any:
    with os.scandir(name) as entries:
        return [(entry.name, entry.path, entry.is_dir(), entry.is_file()) for entry in entries]


def outside_write(name: str, content: bytes) -> None:
    if RECORDING:
        with suppress(OSError), REAL["open"](name, "wb") as file:
            file.write(content)


def outside_remove(name: str) -> None:
    if RECORDING:
        with suppress(OSError):
            REAL["remove"](name)


# Looked up when they are called: a name bound here would go past recording and replay.
OPERATIONS: dict[str, Any] = {
    "write": write,
    "unbuffered": unbuffered,
    "text": text,
    "read": read,
    "os": with_os,
    "end": from_end,
    "truncate": lambda name, size: os.truncate(name, size),
    "stat": lambda name: status(os.stat(name)),
    "lstat": lambda name: status(os.lstat(name)),
    "exists": lambda name: (os.path.exists(name), Path(name).is_dir(), os.path.isfile(name)),
    "access": lambda name: os.access(name, os.R_OK),
    "listdir": lambda name: os.listdir(name),
    "scandir": scandir,
    "mkdir": lambda name: os.mkdir(name),
    "makedirs": lambda name: os.makedirs(name, exist_ok=True),
    "rmdir": lambda name: os.rmdir(name),
    "remove": lambda name: os.remove(name),
    "rename": lambda source, target: os.rename(source, target),
    "replace": lambda source, target: os.replace(src=source, dst=target),
    "copy": lambda source, target: str(shutil.copyfile(source, target)),
    "rmtree": lambda name: shutil.rmtree(name),
    "touch": lambda name: Path(name).touch(),
    "chmod": lambda name: os.chmod(name, 0o600),
    "outside_write": outside_write,
    "outside_remove": outside_remove,
}
RECORDING = False


@contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    folder.mkdir()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        shutil.rmtree(folder)


def record(folder: Path, there: dict[str, bytes], program: list[tuple[Any, ...]]) -> tuple[list[Any], list[pb.Syscall]]:
    global RECORDING
    with in_folder(folder):
        for name, content in there.items():
            path = Path(name)
            if path.parent.is_dir() or not path.parent.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.is_dir():
                    path.write_bytes(content)
        log = WorldLog(level=RecordLevel.FULL)
        undo = recorded_files.install(log)
        RECORDING = True
        try:
            seen = [perform(operation) for operation in program]
        finally:
            RECORDING = False
            undo()
    assert not log.lost
    return seen, log.syscalls


def replay(folder: Path, calls: list[pb.Syscall], program: list[tuple[Any, ...]]) -> list[Any]:
    with in_folder(folder):
        undo = Files(calls).install()
        try:
            seen = [perform(operation) for operation in program]
        finally:
            undo()
        assert os.listdir() == []  # nothing was written for real
    return seen


@given(
    there=st.dictionaries(st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a"]), data, max_size=4),
    program=st.lists(operations, min_size=1, max_size=12),
)
def test_a_replayed_program_sees_what_the_recorded_one_saw(tmp_path_factory, there, program):
    folder = tmp_path_factory.mktemp("files") / "program"
    seen, calls = record(folder, there, program)
    assert replay(folder, calls, program) == seen
