"""Writes calls on files down as the `Syscall` messages of a dump; `files` has the table of them."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dumps.record.message_text import utf8
from dumps.record.seams.listing import pack
from dumps.record.seams.log import MIB, WorldLog, task_name
from dumps.record.seams.real_time import monotonic_ns
from dumps.schema import state_pb2 as pb

MAX_READ = 1 * MIB
"""Bytes kept of one read."""

_STAT_FIELDS = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size")
_STAT_TIMES = ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")

SPACE_FIELDS = (
    "f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail", "f_flag", "f_namemax",
    "f_fsid",
)  # fmt: skip

Describe = Callable[[Any, pb.Syscall], None]
"""Writes the result of a call into its message."""


class FileCalls:
    """The calls of one recording. What goes wrong in noting one is counted and goes no further."""

    def __init__(self, log: WorldLog) -> None:
        self.log = log

    def noted(self, name: str, args: list[str], function: Callable[[], Any], describe: Describe) -> Any:
        """Do ``function`` and note what came of it. Raises what it raises."""
        begun = monotonic_ns()
        try:
            result = function()
        except OSError as error:
            self.note(name, args, begun, error=error)
            raise
        self.note(name, args, begun, describe=lambda call: describe(result, call))
        return result

    def note(
        self,
        name: str,
        args: list[str],
        begun: int,
        *,
        ret: str = "0",
        error: OSError | None = None,
        describe: Callable[[pb.Syscall], None] | None = None,
    ) -> pb.Syscall | None:
        """Note a call that was ``begun`` then and is over. None where that went wrong."""
        try:
            call = pb.Syscall(time_ns=begun, name=name, args=[utf8(one) for one in args], ret=ret)
            call.duration_ns = max(monotonic_ns() - begun, 0)
            call.tid, call.task = threading.get_native_id(), task_name()
            if error is not None:
                call.ret = "-1"
                call.errno_name = errno.errorcode.get(error.errno or 0, str(error.errno))
            elif describe is not None:
                describe(call)
            self.log.add_syscall(call)
            return call
        except Exception:  # recording must not end what it records
            self.log.lost["recorder_errors"] += 1
            return None

    def keep(self, call: pb.Syscall, data: bytes) -> None:
        """Let ``call`` show what it read: at level "full", and as far as MAX_READ."""
        if self.log.level == "full":
            call.data = data[:MAX_READ]
        call.data_partial = len(call.data) < len(data)


@dataclass(frozen=True, slots=True)
class PathResult:
    """What the message of a call by path holds of its result: ``describe`` writes ``ret``, ``data`` gives the data."""

    describe: Describe
    data: Callable[[Any], bytes] | None = None


def plain(result: Any, call: pb.Syscall) -> None:
    """A number, or 0 for None."""
    call.ret = "0" if result is None else str(int(result))


def _counted(result: Any, call: pb.Syscall) -> None:
    call.ret = str(len(result))


def _status(result: os.stat_result, call: pb.Syscall) -> None:
    call.ret = " ".join(f"{name}={getattr(result, name)}" for name in (*_STAT_FIELDS, *_STAT_TIMES))


def _space(result: os.statvfs_result, call: pb.Syscall) -> None:
    call.ret = " ".join(f"{name}={getattr(result, name)}" for name in SPACE_FIELDS)


def _names(found: list[Any]) -> bytes:
    return pack(("", os.fsdecode(one)) for one in found)


_PLAIN = PathResult(plain)
_BY_SYSCALL = {
    "stat": PathResult(_status),
    "lstat": PathResult(_status),
    "fstat": PathResult(_status),
    "statvfs": PathResult(_space),
    "listdir": PathResult(_counted, _names),
    "readlink": PathResult(_counted, os.fsencode),
}


def path_result(syscall: str) -> PathResult:
    return _BY_SYSCALL.get(syscall, _PLAIN)
