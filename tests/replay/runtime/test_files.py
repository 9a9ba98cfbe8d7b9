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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dumps.record.recorder import RecordLevel
from dumps.record.seams import files as recorded_files
from dumps.record.seams.log import WorldLog
from dumps.schema import state_pb2 as pb
from replay.runtime.errors import UnrecordedFile
from replay.runtime.files import Files
from replay.runtime.syscalls import DataLeftOut, Syscalls, WrongAnswer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the program runs."""
    program = tmp_path / "program"
    program.mkdir()
    monkeypatch.chdir(program)
    return program


def record(program: Callable[[], Any], *, level: RecordLevel = RecordLevel.FULL) -> tuple[Any, list[pb.Syscall]]:
    """What the program saw, an error included, and what was recorded of it. Its files are gone afterwards."""
    log = WorldLog(level=level)
    undo = recorded_files.install(log)
    try:
        seen = outcome(program)
    finally:
        undo()
    for path in Path.cwd().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return seen, log.syscalls


def replay(calls: list[pb.Syscall], program: Callable[[], Any], **options: Any) -> Any:
    with played(calls, **options):
        return outcome(program)


@contextmanager
def played(calls: list[pb.Syscall], **options: Any) -> Iterator[Files]:
    files = Files(calls, **options)
    undo = files.install()
    try:
        yield files
    finally:
        undo()


def outcome(program: Callable[[], Any]) -> Any:
    try:
        return program()
    except OSError as error:
        return type(error), error.errno, error.filename, str(error)


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


def test_recorded_time_goes_by(folder: Path):
    class Clock:
        now = 0

        def wall_ns(self) -> int:
            return 0

        def advance(self, ns: int) -> None:
            self.now += ns

        def advance_to(self, monotonic_ns: int) -> None:
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
