"""Which process writes a ring, and whether it still lives."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterProcess:
    """A process named so that a later one with the same pid is not taken for it.

    ``start_ticks`` is field 22 of /proc/PID/stat; ``boot_id`` is 16 bytes; ``pid_namespace`` is the inode number of its
    namespace. Zeros where the system does not say.
    """

    pid: int
    start_ticks: int
    boot_id: bytes
    pid_namespace: int

    @classmethod
    def current(cls) -> WriterProcess:
        pid = os.getpid()
        return cls(pid=pid, start_ticks=_start_ticks(pid) or 0, boot_id=_boot_id(), pid_namespace=_pid_namespace())

    def lock(self, fd: int) -> None:
        """Hold the file's lock for as long as the descriptor is open; the kernel lets go of it at death."""
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def lives(self, fd: int) -> bool:
        """Whether the writer still runs. ``fd`` is any open descriptor of the ring.

        The pid decides where it means the same here as there. In another container it does not, and then the file's
        lock decides; the lock alone would not do, since a forked child of a dead writer still holds it.
        """
        if self.boot_id == _boot_id() and self.pid_namespace == _pid_namespace() and self.start_ticks:
            return _start_ticks(self.pid) == self.start_ticks
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(fd, fcntl.LOCK_UN)
        return False


def _start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot. None for one that is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    values = text.rpartition(")")[2].split()  # the command before it may hold spaces and brackets
    return None if values[0] in ("Z", "X") else int(values[19])


def _boot_id() -> bytes:
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return bytes.fromhex(text.strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
