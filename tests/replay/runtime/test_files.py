"""Real programs' file failures, recorded on real file systems and played with the files gone."""

from __future__ import annotations

import errno
import io
import os
import resource
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dumps.record.recorder import RecordLevel
from dumps.record.seams import files as recorded_files
from dumps.record.seams.log import WorldLog
from dumps.schema import state_pb2 as pb
from replay.runtime.errors import UnrecordedFile
from replay.runtime.syscalls import DataLeftOut
from tests.replay.runtime.file_programs import outcome, played, record, replay


@contextmanager
def biggest_file(size: int) -> Iterator[None]:
    """Files cannot grow beyond ``size`` in this process: EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_file_cache(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "cache").mkdir()
    (folder / "cache" / "old.json").write_text('{"old": true}')

    def program() -> Any:
        cache = Path("cache")
        found = {path.name: path.read_text() for path in sorted(cache.glob("*.json"))}
        with tempfile.NamedTemporaryFile("w", dir=cache, delete=False, suffix=".part") as part:
            part.write("new")
            part.flush()
            os.fsync(part.fileno())
        os.replace(part.name, cache / "new.json")
        return found, sorted(os.listdir(cache)), (cache / "new.json").read_bytes(), os.path.getsize("cache/new.json")

    # Its random names are the same in both runs when entropy is replayed; here they are by hand.
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: iter(["one"]))
    seen, calls = record(program)
    assert seen[0] == {"old.json": '{"old": true}'}
    assert replay(calls, program) == seen
    assert not any(folder.iterdir())


def test_a_temporary_folder_that_is_removed_by_descriptor(folder: Path):
    def program() -> Any:
        os.makedirs("work/deep", exist_ok=True)
        Path("work/deep/file").write_bytes(b"x" * 100_000)
        copied = shutil.copy2("work/deep/file", "work/copy")
        shutil.rmtree("work")
        return copied, os.path.exists("work")

    seen, calls = record(program)
    assert seen == ("work/copy", False)
    assert replay(calls, program) == seen


def test_a_full_disk(folder: Path):
    def program() -> Any:
        written = 0
        with open("log.bin", "wb", buffering=0) as log:
            for _ in range(10):
                written += log.write(b"x" * 400) or 0
                Path("size").write_text(str(written))
        return written

    with biggest_file(1500):
        seen, calls = record(program)
    assert seen[:2] == (OSError, errno.EFBIG)
    with played(calls) as files:
        assert outcome(program) == seen
    assert len(files.written()["log.bin"]) == 1500  # the fourth write was a short one
    assert files.written()["size"] == b"1500"


def test_a_buffered_writer_fails_when_it_is_closed(folder: Path):
    def program() -> Any:
        with open("out.txt", "w") as out:
            out.write("y" * 3000)  # fits in the buffer
        return "written"

    with biggest_file(1000):
        seen, calls = record(program)
    assert seen[:2] == (OSError, errno.EFBIG)
    assert replay(calls, program) == seen


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_no_space_left_on_a_device(folder: Path):
    def program() -> Any:
        with open("/dev/full", "wb") as full:
            full.write(b"x")

    log = WorldLog(level=RecordLevel.FULL)
    undo = recorded_files.install(log, include=["/dev/full"])
    try:
        seen = outcome(program)
    finally:
        undo()
    assert seen[1] == errno.ENOSPC
    for call in log.syscalls:  # the device is there on every machine; a replay must not go to it
        call.args[0] = "volume"

    def elsewhere() -> Any:
        with open("volume", "wb") as full:
            full.write(b"x")

    assert replay(log.syscalls, elsewhere) == seen


def test_a_signal_interrupts_a_read(folder: Path):
    class Interrupted(InterruptedError):
        pass

    def on_alarm(*_: object) -> None:
        raise Interrupted(errno.EINTR, "the program's own handler")

    def program() -> Any:
        seen: list[Any] = []
        fd = os.open("pipe", os.O_RDONLY)
        try:
            seen.append(os.read(fd, 100))
            try:
                seen.append(os.read(fd, 100))
            except InterruptedError as error:
                seen.append(error.errno)
            seen.append(os.read(fd, 100))
            seen.append(os.read(fd, 100))
        finally:
            os.close(fd)
        return seen

    os.mkfifo("pipe")

    def writer() -> None:
        with open("/proc/self/cwd/pipe", "wb", buffering=0) as pipe:
            pipe.write(b"first")
            time.sleep(0.3)  # the reader waits by now
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            time.sleep(0.2)
            pipe.write(b"second")

    before = signal.signal(signal.SIGUSR1, on_alarm)
    thread = threading.Thread(target=writer)
    try:
        thread.start()
        seen, calls = record(program)
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [b"first", errno.EINTR, b"second", b""]
    assert [call.errno_name for call in calls if call.name == "read"] == ["", "EINTR", "", ""]
    assert replay(calls, program) == seen


def test_short_reads_stay_short(folder: Path):
    calls = [
        pb.Syscall(name="open", args=["feed", "O_RDONLY", "0", "0", "pipe"], ret="7"),
        pb.Syscall(name="read", args=["feed", "100", "0", "7"], ret="3", data=b"abc"),
        pb.Syscall(name="read", args=["feed", "100", "3", "7"], ret="1", data=b"d"),
        pb.Syscall(name="read", args=["feed", "100", "4", "7"], ret="-1", errno_name="ECONNRESET"),
    ]

    def program() -> Any:
        with open("feed", "rb", buffering=0) as feed:
            got = [feed.read(100), feed.read(100)]
            with pytest.raises(ConnectionResetError) as caught:
                feed.read(100)
        return got, caught.value.errno

    assert replay(calls, program) == ([b"abc", b"d"], errno.ECONNRESET)


def test_code_and_the_system_are_real(folder: Path):
    (folder / "module.py").write_text("answer = 42")
    with played([]) as files:
        assert Path("module.py").read_text() == "answer = 42"
        assert Path(os.devnull).read_bytes() == b""
        assert os.path.exists(io.__file__)
        assert os.listdir("/proc/self/fd")
    assert not files.unrecorded


def test_below_level_full_a_read_says_what_would_have_sufficed(folder: Path):
    (folder / "a").write_text("text")
    _, calls = record(lambda: Path("a").read_text(), level=RecordLevel.SHAPE)
    assert not any(call.data for call in calls)
    with played(calls), pytest.raises(DataLeftOut, match="gave 4, of which the dump holds 0 bytes") as caught:
        Path("a").read_text()
    assert "full" in caught.value.remedy


def test_recorded_time_goes_by(folder: Path):
    class Clock:
        now = 0

        def wall_ns(self) -> int:
            return 0

        def advance(self, ns: int) -> None:
            self.now += ns

        def catch_up(self, monotonic_ns: int) -> None:
            self.now = max(self.now, monotonic_ns)

    calls = [
        pb.Syscall(name="open", args=["a", "O_RDONLY", "1", "0", "file"], ret="3", time_ns=1000, duration_ns=5),
        pb.Syscall(name="read", args=["a", "10", "0", "3"], ret="1", data=b"x", duration_ns=30_000_000_000),
    ]
    clock = Clock()
    assert replay(calls, lambda: Path("a").read_bytes(), clock=clock) == b"x"
    assert clock.now == 30_000_001_005


def test_names_that_were_bound_early(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "a").write_text("bound")
    monkeypatch.setitem(globals(), "early_open", open)
    monkeypatch.setitem(globals(), "early_stat", os.stat)

    def program() -> Any:
        with globals()["early_open"]("a") as file:
            return file.read(), globals()["early_stat"]("a").st_size

    seen, calls = record(program)
    assert seen == ("bound", 5)
    assert replay(calls, program) == seen


def test_everything_is_back_afterwards(folder: Path):
    before = open, io.open, {name: getattr(os, name) for name in dir(os)}, set(os.supports_dir_fd)
    descriptors = len(os.listdir("/proc/self/fd"))
    with played([], new_files=True):
        assert open is not before[0]
        Path("left-open").write_text("x")
        left = os.open("left-open", os.O_RDONLY)
        assert os.read(left, 1) == b"x"
    assert (open, io.open, {name: getattr(os, name) for name in dir(os)}, set(os.supports_dir_fd)) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(left)


@pytest.mark.parametrize("name", ["open", "read", "stat", "listdir", "lseek", "write", "rename"])
@pytest.mark.parametrize("args", [[], [""], ["a"], ["a", "?"], ["a", "-1", "x", "9", "?"], ["\0"]])
def test_damaged_calls_are_no_reason_to_fail(folder: Path, name: str, args: list[str]):
    def end() -> int:
        with open("a", "r+") as file:
            return file.seek(0, os.SEEK_END)

    call = pb.Syscall(name=name, args=args, ret="?", errno_name="EWHAT" if args == [""] else "", data=b"\xff\0/")
    with played([call]):
        for ask in (
            lambda: Path("a").read_text(),
            lambda: os.stat("a"),
            lambda: os.listdir("a"),
            lambda: os.rename("a", "b"),
            end,
        ):
            with suppress(OSError, UnrecordedFile, DataLeftOut, UnicodeDecodeError):
                ask()
