"""The temporary folder of a worker: its supervisor makes it and removes it, or else the next one does.

Each is locked as long as its supervisor lives. The system lets go of the lock at any death, so that a folder without
one is what is left of a supervisor that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time

PREFIX = "pplx-replay-"
MIN_AGE_S = 30.0
"""A folder that is younger may be one that is just being locked."""


class OwnFolder:
    """One new folder. ``path`` is where it lies."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix=PREFIX)
        self._lock: int | None = None
        with contextlib.suppress(OSError):  # a file system without locks: then it cannot be told, and stays
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove it with all it holds. It may be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def sweep() -> int:
    """Remove the folders whose supervisors are dead, of this user, where temporary files lie. Returns how many."""
    root, removed = tempfile.gettempdir(), 0
    try:
        names = [name for name in os.listdir(root) if name.startswith(PREFIX)]
    except OSError:
        return 0
    for name in names:
        path = os.path.join(root, name)
        with contextlib.suppress(OSError):
            removed += _remove_if_left(path)
    return removed


def _remove_if_left(path: str) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        facts = os.fstat(fd)
        if facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) != 0o700:
            return False
        if time.time() - facts.st_mtime < MIN_AGE_S:
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
        return True
    finally:
        os.close(fd)
