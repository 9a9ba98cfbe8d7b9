from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dumps.record.recorder import RecordLevel
from dumps.record.seams import files
from dumps.record.seams.data_files import DataFiles
from dumps.record.seams.file_calls import MAX_READ
from dumps.record.seams.listing import unpack
from dumps.record.seams.log import LogLimits, WorldLog

REAL = {"open": open}  # not a name of this module, which would be found and replaced


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorldLog]:
    """Files of the current folder are recorded here."""
    monkeypatch.chdir(tmp_path)
    log = WorldLog(level=RecordLevel.FULL)
    undo = files.install(log)
    yield log
    undo()
    assert not log.lost


def seen(log: WorldLog) -> list[tuple[str, ...]]:
    found = [(call.name, *call.args, call.errno_name or call.ret) for call in log.syscalls]
    log.syscalls.clear()
    return found


def test_calls_as_they_are_recorded(log: WorldLog):
    os.mkdir("d")
    Path("d/a.txt").write_text("hello")
    fd = log.syscalls[1].ret
    assert seen(log) == [
        ("mkdir", "d", "0"),
        ("open", "d/a.txt", "O_WRONLY|O_CREAT|O_TRUNC", "0", "0", "file", fd),
        ("write", "d/a.txt", "5", "0", fd, "5"),
    ]
    with open("d/a.txt", "rb", buffering=0) as file:
        fd = str(file.fileno())
        assert file.read(3) == b"hel"
        assert file.read(3) == b"lo"
    assert [call.data for call in log.syscalls if call.name == "read"] == [b"hel", b"lo"]
    assert seen(log) == [
        ("open", "d/a.txt", "O_RDONLY", "5", "0", "file", fd),
        ("read", "d/a.txt", "3", "0", fd, "3"),
        ("read", "d/a.txt", "3", "3", fd, "2"),
    ]
    with pytest.raises(FileNotFoundError):
        Path("none").read_text()
    with pytest.raises(FileExistsError):
        os.mkdir("d")
    assert seen(log) == [("open", "none", "O_RDONLY", "ENOENT"), ("mkdir", "d", "EEXIST")]
    os.rename("d/a.txt", "d/b.txt")
    os.listdir("d")
    assert unpack(log.syscalls[-1].data) == [("", "b.txt")]
    with os.scandir("d") as entries:
        assert [(entry.name, entry.is_file(), entry.stat().st_size) for entry in entries] == [("b.txt", True, 5)]
    assert unpack(log.syscalls[-2].data) == [("f", "b.txt")]
    assert "st_size=5 " in log.syscalls[-1].ret
    assert [call[:2] for call in seen(log)] == [
        ("rename", "d/a.txt"),
        ("listdir", "d"),
        ("scandir", "d"),
        ("stat", "d/b.txt"),
    ]


def test_many_small_writes_are_one_entry(log: WorldLog):
    with open("log", "wb", buffering=0) as file:
        for _ in range(1000):
            file.write(b"line\n")
        file.seek(10)
        file.write(b"x")
    writes = [(call.args[1], call.args[2], call.ret) for call in log.syscalls if call.name == "write"]
    assert writes == [("5000", "0", "5000"), ("1", "10", "1")]


def test_a_large_read_is_kept_in_pieces(log: WorldLog):
    content = os.urandom(2 * MAX_READ + 7)
    Path("big").write_bytes(content)
    assert Path("big").read_bytes() == content
    reads = [call for call in log.syscalls if call.name == "read"]
    assert b"".join(call.data for call in reads) == content
    assert not any(call.data_partial for call in reads)
    fd = os.open("big", os.O_RDONLY)
    assert os.read(fd, len(content)) == content  # one call, which cannot be cut
    os.close(fd)
    assert log.syscalls[-1].data == content[:MAX_READ]
    assert log.syscalls[-1].data_partial


def test_below_level_full_sizes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    log = WorldLog(level=RecordLevel.SHAPE)
    undo = files.install(log)
    try:
        Path("a").write_text("text")
        assert Path("a").read_text() == "text"
        assert os.listdir() == ["a"]
    finally:
        undo()
    assert not any(call.data for call in log.syscalls)
    assert [call.ret for call in log.syscalls if call.name in ("read", "listdir")] == ["4", "0", "1"]
    assert all(call.data_partial for call in log.syscalls if call.name == "listdir")


def test_a_full_log_costs_the_record_and_not_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    log = WorldLog(level=RecordLevel.FULL, limits=LogLimits(syscalls=2))
    undo = files.install(log)
    try:
        Path("a").write_text("text")
        assert Path("a").read_text() == "text"
    finally:
        undo()
    assert len(log.syscalls) == 2
    assert log.lost["syscalls"] == 3


def test_a_recorder_that_breaks_costs_the_record_and_not_the_program(log: WorldLog, monkeypatch: pytest.MonkeyPatch):
    def broken(call: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(WorldLog, "add_syscall", lambda self, call: broken(call))
    Path("a").write_text("text")
    assert Path("a").read_text() == "text"
    assert log.lost.pop("recorder_errors") >= 4


def test_file_objects_are_as_open_makes_them(log: WorldLog):
    Path("a").write_bytes(b"one\r\ntwo\n")
    for arguments in (
        {"mode": "r"},
        {"mode": "rt", "encoding": "utf-16-le", "errors": "replace"},
        {"mode": "r", "newline": ""},
        {"mode": "rb"},
        {"mode": "rb", "buffering": 0},
        {"mode": "r+b"},
        {"mode": "a", "buffering": 1},
        {"mode": "ab", "buffering": 17},
    ):
        real, recorded = (function("a", **arguments) for function in (REAL["open"], open))
        with real, recorded:
            for attribute in ("name", "mode", "encoding", "errors", "newlines", "line_buffering"):
                assert getattr(real, attribute, None) == getattr(recorded, attribute, None), (arguments, attribute)
            assert isinstance(recorded, type(real))
            assert (real.readable(), real.writable(), real.seekable()) == (
                recorded.readable(), recorded.writable(), recorded.seekable(),
            )  # fmt: skip
            assert not real.readable() or real.read() == recorded.read()


@pytest.mark.parametrize(
    "arguments",
    [
        {"mode": "q"}, {"mode": "rw"}, {"mode": "rr"}, {"mode": "tb"}, {"mode": ""}, {"mode": 1},
        {"mode": "rb", "encoding": "utf-8"}, {"mode": "rb", "newline": ""}, {"mode": "rb", "errors": "x"},
        {"mode": "r", "buffering": 0}, {"mode": "r", "newline": "x"}, {"mode": "r", "encoding": "no-such"},
        {"mode": "r", "closefd": False},
    ],
)  # fmt: skip
def test_open_refuses_what_open_refuses(log: WorldLog, arguments: dict[str, object]):
    Path("a").write_text("x")
    errors = []
    for function in (REAL["open"], open):
        with pytest.raises((ValueError, TypeError, LookupError)) as caught:
            function("a", **arguments)  # type: ignore[call-overload]
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]


def test_everything_is_back_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    before = builtins.open, io.open, {name: getattr(os, name) for name in dir(os)}
    log = WorldLog(level=RecordLevel.FULL)
    undo = files.install(log)
    left = open("left", "w")  # noqa: SIM115
    undo()
    assert (builtins.open, io.open, {name: getattr(os, name) for name in dir(os)}) == before
    log.syscalls.clear()
    left.write("still works")
    left.close()
    assert Path("left").read_text() == "still works"
    assert not log.syscalls


def test_which_files_are_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    rule = DataFiles(cwd=str(tmp_path / "app"), exclude=["private/*"], include=["templates/*.py"])
    names = {
        "cache/a.json": "cache/a.json",
        str(tmp_path / "app" / "x"): "x",
        str(tmp_path / "app"): ".",
        str(tmp_path / "home" / ".config" / "app.toml"): "~/.config/app.toml",
        "/srv/data": "/srv/data",
    }
    (tmp_path / "app").mkdir()
    monkeypatch.chdir(tmp_path / "app")
    for path, name in names.items():
        assert rule.name(path) == rule.name(os.fsencode(path)) == rule.name(Path(path)) == name
        assert rule.path(name) == os.path.abspath(path)
        assert rule.is_data(name)
    assert rule.name("~/a") == "./~/a"
    assert rule.path("./~/a") == str(tmp_path / "app" / "~" / "a")
    code = ["/proc/self/status", "/usr/share/zoneinfo/UTC", "/etc/resolv.conf", "/dev/null", "main.py",
            "a/__pycache__/b", "private/key", "run.pplx", "context-snapshot-1.json", os.__file__, pytest.__file__,
            os.path.join(sys.prefix, "lib", "x.json"), "~/.cache/huggingface/hub/m"]  # fmt: skip
    for path in code:
        name = path if path.startswith("~") else rule.name(path)
        assert not rule.is_data(name), path
    assert rule.is_data("templates/a.py")
    assert rule.is_data("/etc/app.conf")
    with pytest.raises(ValueError, match="null"):
        rule.name("a\0b")


def test_loaders_are_left_alone(log: WorldLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import importlib.metadata
    import linecache

    (tmp_path / "text.txt").write_text("a line\n")
    log.syscalls.clear()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert linecache.getline("text.txt", 1) == "a line\n"
    assert list(importlib.metadata.distributions(name="no-such-thing")) == []
    assert seen(log) == []


def test_a_warning_of_open_names_the_line_that_opens(log: WorldLog):
    Path("a.txt").write_text("hello", encoding="utf-8")
    with pytest.warns(RuntimeWarning, match="line buffering") as caught:
        open("a.txt", "rb", 1).close()
    assert [one.filename for one in caught] == [__file__]


def test_a_missing_argument_is_the_callers_error(log: WorldLog):
    Path("a.txt").write_text("hello", encoding="utf-8")
    log.syscalls.clear()
    for function in (os.rename, os.link, os.symlink):
        with pytest.raises(TypeError):
            function("a.txt")  # type: ignore[call-arg]
    assert not log.syscalls
