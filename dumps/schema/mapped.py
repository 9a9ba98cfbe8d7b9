"""A file mapped into memory, and what can go wrong with that.

A mapped file must not be cut while it is open: the kernel ends the process with SIGBUS on the first touch of a page
that is gone. Readers copy a head out at once and call `MappedFile.check_size` before each section, which leaves a small
window. A dump from an untrusted source belongs into a child process (replay.isolate).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from pathlib import Path

from dumps.errors import DumpError, LimitExceeded, TornDump
from dumps.limits import Limits


class MappedFile:
    """A regular file, mapped read-only. ``view`` is all of it, and empty for an empty file, which cannot be mapped.

    Raises `DumpError` when there is no readable regular file at ``path``, `LimitExceeded` when it is too large.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        try:
            # Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
        except (OSError, ValueError) as error:
            wrong = getattr(error, "strerror", None) or error
            raise DumpError(f"cannot open {path}: {wrong}") from None
        self._map: mmap.mmap | None = None
        self.view = memoryview(b"")
        try:
            self.size = self._regular_size(path, limits)
            if self.size:
                self._map = mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ)
                self.view = memoryview(self._map)
        except (OSError, ValueError) as error:
            os.close(self._fd)
            raise DumpError(f"cannot map {path}: {error}") from None
        except DumpError:
            os.close(self._fd)
            raise

    def _regular_size(self, path: Path, limits: Limits) -> int:
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            what = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise DumpError(f"{path} is {what}", remedy="Pass the path of a .pplx file.")
        if status.st_size > limits.file_bytes:
            raise LimitExceeded(f"a file of {status.st_size} bytes, more than {limits.file_bytes} (file_bytes)")
        return status.st_size

    def check_size(self) -> None:
        """Raises `TornDump` when the file was cut since it was mapped; touching what is gone would be fatal."""
        if os.fstat(self._fd).st_size < self.size:
            raise TornDump("the file was cut while it was open", offset=os.fstat(self._fd).st_size)

    def close(self) -> None:
        if self._fd < 0:
            return
        self.view.release()
        if self._map is not None:
            # An exception's traceback may still hold a slice of the map; it is then unmapped with that.
            with contextlib.suppress(BufferError):
                self._map.close()
        os.close(self._fd)
        self._fd = -1
