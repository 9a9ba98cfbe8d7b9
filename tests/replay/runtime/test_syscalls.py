from __future__ import annotations

import errno
import os
import stat
from typing import Any

import pytest

from dumps.schema import state_pb2 as pb
from replay.runtime.fds import DescriptorMap
from replay.runtime.syscalls import DataLeftOut, HandlerBroken, Syscalls, UnknownSyscall, UnrecordedSyscall


def test_the_recording_answers_by_name_and_first_argument_in_order():
    calls = Syscalls(
        [
            pb.Syscall(name="read", args=["socket:1", "100"], ret="3", data=b"abc"),
            pb.Syscall(name="read", args=["socket:2", "100"], ret="1", data=b"z"),
            pb.Syscall(name="read", args=["socket:1", "100"], ret="-1", errno_name="ECONNRESET"),
            pb.Syscall(name="write", args=["socket:1", "5"], ret="0x5"),
            pb.Syscall(name="stat", args=["f"], ret="st_mode=33188 st_size=12 st_mtime_ns=1500000000 junk"),
            pb.Syscall(name="listdir", args=["d"], ret="2", data=b"/a\0d/b"),
            pb.Syscall(name="fsync", args=["f"], ret="?"),
        ]
    )
    assert calls.call("read", "socket:1", 100) == b"abc"
    with pytest.raises(ConnectionResetError) as caught:
        calls.call("read", "socket:1", 100)
    assert caught.value.errno == errno.ECONNRESET
    assert calls.call("read", "socket:2", 100) == b"z"
    assert calls.call("write", "socket:1", 5) == 5
    status = calls.call("stat", "f")
    assert (stat.S_ISREG(status.st_mode), status.st_size, status.st_mtime_ns, status.st_mtime) == (
        True,
        12,
        1500000000,
        1.5,
    )
    assert calls.call("listdir", "d") == ["a", "b"]
    assert calls.call("fsync", "f") is None
    with pytest.raises(UnrecordedSyscall, match="not so often"):
        calls.call("read", "socket:1", 100)


def test_handlers_chain_the_newest_first():
    recorded = pb.Syscall(name="read", args=["f"], ret="1", data=b"r")
    calls = Syscalls([recorded])
    seen: list[Any] = []

    def first(args: tuple[Any, ...], call: pb.Syscall | None) -> Any:
        seen.append(("first", args, call))
        return NotImplemented

    def second(args: tuple[Any, ...], call: pb.Syscall | None) -> Any:
        seen.append(("second", args, call))
        if args[0] == "disk":
            raise OSError(errno.ENOSPC, "full")
        return b"mine" if args[0] == "g" else NotImplemented

    calls.mock_syscall("read", first)
    undo = calls.mock_syscall("read", second)
    assert calls.call("read", "g") == b"mine"
    assert [who for who, *_ in seen] == ["second"]
    with pytest.raises(OSError, match="full"):
        calls.call("read", "disk")
    assert calls.call("read", "f") == b"r"
    assert seen[-2:] == [("second", ("f",), recorded), ("first", ("f",), recorded)]
    undo()
    undo()
    with pytest.raises(UnrecordedSyscall):
        calls.call("read", "g")


@pytest.mark.parametrize(
    ("name", "near"),
    [("reed", "Nearest: read, rename"), ("pread", "Nearest: read"), ("remove", "Nearest: unlink")],
)
def test_a_call_that_nobody_makes_is_refused_with_the_nearest(name, near):
    """In what is raised, which is all that a traceback shows."""
    with pytest.raises(UnknownSyscall, match=f"'{name}'.*{near}$"):
        Syscalls([pb.Syscall(name="pread", args=["f"])]).mock_syscall(name, lambda args, recorded: b"")


def test_a_call_that_only_this_recording_knows_can_be_answered():
    calls = Syscalls([pb.Syscall(name="recv", args=["socket:1"], ret="1", data=b"r")])
    calls.mock_syscall("recv", lambda args, recorded: b"mine")
    assert calls.call("recv", "socket:1") == b"mine"
    with pytest.raises(UnknownSyscall) as caught:
        calls.mock_syscall("xyzzy", lambda args, recorded: None)
    assert "There are: access, chmod" in str(caught.value)
    assert "recv" in str(caught.value)


def test_odd_records():
    calls = Syscalls(
        [
            pb.Syscall(name="read", args=["f"], ret="9", data=b"cut", data_partial=True),
            pb.Syscall(name="write", args=["f"], errno_name="ENOTHERE"),
            pb.Syscall(name="close", errno_name="strerror"),
        ]
    )
    with pytest.raises(DataLeftOut, match="gave 9, of which the dump holds 3 bytes"):
        calls.call("read", "f")
    with pytest.raises(OSError, match="ENOTHERE") as caught:
        calls.call("write", "f")
    assert caught.value.errno == errno.EIO
    with pytest.raises(OSError, match="strerror"):
        calls.call("close")


def test_descriptors():
    fds = DescriptorMap(
        [pb.Descriptor(fd=0, kind="pipe", target="stdin"), pb.Descriptor(fd=900, kind="socket", target="x")]
    )
    assert (fds[900].kind, fds[900].replayed, len(fds)) == ("socket", False, 2)
    opened = fds.open("file", "cache.json")
    assert os.read(opened.fd, 10) == b""  # whoever goes past us finds nothing
    assert fds[opened.fd].target == "cache.json"
    assert list(fds) == sorted([0, opened.fd, 900])
    fds.close(opened.fd)
    assert opened.fd not in fds
    with pytest.raises(KeyError):
        fds.close(opened.fd)
    left = fds.open("file", "left")
    fds.close_all()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(left.fd)


def test_a_handlers_own_bug_is_no_error_of_the_system():
    calls = Syscalls()

    def look_up(args: Any, recorded: Any) -> Any:
        return {}[args[0]]

    calls.mock_syscall("read", look_up)
    with pytest.raises(HandlerBroken, match=r"handler .*look_up of read\('f', 9\) failed: KeyError: 'f'"):
        calls.call("read", "f", 9)
    assert [type(one) for one in calls.refusals] == [HandlerBroken]
    calls.mock_syscall("stat", lambda args, recorded: os.open("/nowhere/at/all", os.O_RDONLY))
    with pytest.raises(FileNotFoundError):  # what a call may well raise
        calls.call("stat", "f")
