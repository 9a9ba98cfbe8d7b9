"""Records what a program does with its files: `open` and the functions of `os`, with what pathlib, shutil, tempfile and
glob make of them.

Each call at the boundary to the system becomes one `Syscall`; which files count is the rule of `data_files`.

    name                                     args                                         ret
    open                                     path, flags, size, offset, kind              descriptor
    read, pread                              path, size asked, offset, descriptor         bytes read; data
    write, pwrite                            path, size, offset, descriptor               bytes written
    lseek, truncate, fsync, close            path, ... , descriptor
    stat, lstat, fstat                       path                                         "st_mode=33188 st_size=12 ..."
    statvfs                                  path                                         "f_bsize=4096 ..."
    listdir, scandir                         path                                         entries; data, see `listing`
    access, mkdir, rmdir, unlink, chmod, chown, utime, readlink     path, ...
    rename, link, symlink                    path, the other path

Writes that follow one another and meet no error are one entry, a call that closes well is none. What goes past Python
is not seen: mmap, databases, and extension modules that read by descriptor (for numpy see `numpy_files`). Nor are
extended attributes, special files and `os.chdir`.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dumps.record.seams.data_files import DataFiles, asked_by_loader
from dumps.record.seams.file_calls import FileCalls, path_result, plain
from dumps.record.seams.file_functions import FileFunctions, Opener, PathCall
from dumps.record.seams.listing import Entry, Scan, kind_of, pack
from dumps.record.seams.log import WorldLog
from dumps.record.seams.opening import flags_text, mode_flags
from dumps.record.seams.real_time import monotonic_ns
from dumps.record.seams.recorded_raw import RecordedRaw
from dumps.schema import state_pb2 as pb

_KINDS = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISFIFO, "pipe"))


def install(log: WorldLog, *, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> Callable[[], None]:
    """Record the process's files from here on. ``include`` and ``exclude`` are patterns of `DataFiles`.

    Returns the function that takes the recorder out again; files that are still open then go on without it.
    """
    return RecordedFiles(log, DataFiles(include=include, exclude=exclude)).install()


@dataclass(slots=True)
class _Open:
    """A descriptor of a data file."""

    name: str
    moved: int = 0  # bytes so far, for what has no position
    written: pb.Syscall | None = None  # the last write, while nothing but more of it has followed


class RecordedFiles(FileFunctions):
    """Stands in for `open` and the functions of `os`: each does the real thing, and notes it."""

    def __init__(self, log: WorldLog, data_files: DataFiles) -> None:
        super().__init__()
        self._log, self._data_files = log, data_files
        self._calls = FileCalls(log)
        self._lock = threading.RLock()
        self._files: dict[int, _Open] = {}
        self._active = False

    def install(self) -> Callable[[], None]:
        undo = self.take_over()
        self._active = True

        def uninstall() -> None:
            self._active = False
            undo()

        return uninstall

    def name(self, path: Any, dir_fd: int | None = None) -> str | None:
        try:
            if not self._active:
                return None
            if isinstance(path, int):
                opened = self._files.get(path)
                return None if opened is None else opened.name
            folder = None if dir_fd is None else self._files.get(dir_fd)
            if dir_fd is not None and folder is None:
                return None
            name = self._data_files.name(path, None if folder is None else folder.name)
            if not self._data_files.is_data(name) or asked_by_loader(sys._getframe(1)):
                return None
            return name
        except Exception:  # no path at all: the real function says so
            return None

    def has(self, fd: int) -> bool:
        return fd in self._files

    # Descriptors

    def open_raw(self, file: Any, name: str | None, mode: str, closefd: bool, opener: Opener | None) -> io.RawIOBase:
        def made() -> RecordedRaw:
            return RecordedRaw(self, file, mode, closefd, opener)

        if opener is not None or isinstance(file, int):  # the descriptor comes from `os.open`, which noted it
            return made()
        raw: RecordedRaw = self._note_open(str(name), mode_flags(mode), made)
        return raw

    def open_fd(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
        name = self.name(path, dir_fd)
        if name is None:
            return self.real["open"](path, flags, mode, dir_fd=dir_fd)
        return self._note_open(name, flags, lambda: self.real["open"](path, flags, mode, dir_fd=dir_fd))

    def _note_open(self, name: str, flags: int, function: Callable[[], Any]) -> Any:
        args = [name, flags_text(flags)]
        return self._calls.noted("open", args, function, lambda opened, call: self._opened(name, opened, call))

    def _opened(self, name: str, opened: Any, call: pb.Syscall) -> None:
        fd = opened if isinstance(opened, int) else opened.fileno()
        status = self.real["fstat"](fd)
        kind = next((kind for test, kind in _KINDS if test(status.st_mode)), "other")
        with self._lock:
            self._files[fd] = _Open(name)
        call.args.extend([str(status.st_size), str(self._position(fd)), kind])
        call.ret = str(fd)

    def close(self, fd: int) -> None:
        self.closing(fd, lambda: self.real["close"](fd))

    def closing(self, fd: int, function: Callable[[], None]) -> None:
        with self._lock:  # before it is closed: another thread may get the same number at once
            opened = self._files.pop(fd, None)
        if opened is None:
            return function()
        try:
            function()
        except OSError as error:
            self._calls.note("close", [opened.name, str(fd)], monotonic_ns(), error=error)
            raise

    def read(self, fd: int, length: int) -> Any:
        return self.reading("read", fd, length, lambda: self.real["read"](fd, length))

    def pread(self, fd: int, length: int, offset: int) -> Any:
        return self.reading("pread", fd, length, lambda: self.real["pread"](fd, length, offset), offset)

    def reading(self, name: str, fd: int, size: int, function: Callable[[], Any], offset: int | None = None) -> Any:
        """Note one read; ``function`` does it and returns bytes, or None where there was nothing yet."""
        opened = self._files.get(fd)
        if opened is None or not self._active:
            return function()
        at = self._position(fd, opened) if offset is None else offset

        def describe(data: bytes | None, call: pb.Syscall) -> None:
            call.ret = "None" if data is None else str(len(data))
            opened.moved += len(data or b"")
            self._calls.keep(call, data or b"")

        return self._calls.noted(name, [opened.name, str(size), str(at), str(fd)], function, describe)

    def write(self, fd: int, data: Any) -> Any:
        return self.writing("write", fd, data, lambda: self.real["write"](fd, data))

    def pwrite(self, fd: int, data: Any, offset: int) -> Any:
        return self.writing("pwrite", fd, data, lambda: self.real["pwrite"](fd, data, offset), offset)

    def writing(self, name: str, fd: int, data: Any, function: Callable[[], Any], offset: int | None = None) -> Any:
        """Note one write; ``function`` does it and returns the bytes written, or None."""
        opened = self._files.get(fd)
        if opened is None or not self._active:
            return function()
        size = memoryview(data).nbytes
        begun = monotonic_ns()
        at = self._position(fd, opened) if offset is None else offset
        args = [opened.name, str(size), str(at), str(fd)]
        try:
            done = function()
        except OSError as error:
            opened.written = None
            self._calls.note(name, args, begun, error=error)
            raise
        opened.moved += done or 0
        try:
            self._wrote(opened, name, args, begun, size, done)
        except Exception:  # recording must not end what it records
            self._log.lost["recorder_errors"] += 1
        return done

    def _wrote(self, opened: _Open, name: str, args: list[str], begun: int, size: int, done: int | None) -> None:
        last = opened.written
        whole = name == "write" and done == size
        if last is not None and whole and int(last.args[2]) + int(last.args[1]) == int(args[2]):
            with self._log.lock:
                last.args[1] = last.ret = str(int(last.args[1]) + size)
                last.duration_ns += monotonic_ns() - begun
            return
        call = self._calls.note(name, args, begun, ret=str(done))
        opened.written = call if whole else None

    def lseek(self, fd: int, position: int, how: int) -> Any:
        return self.seeking(fd, position, how, lambda: self.real["lseek"](fd, position, how))

    def seeking(self, fd: int, position: int, how: int, function: Callable[[], int]) -> int:
        """Note a seek from the end, the one whose result a replay cannot know."""
        opened = self._files.get(fd)
        if opened is None or how != os.SEEK_END or not self._active:
            return function()
        result: int = self._calls.noted("lseek", [opened.name, str(position), str(how), str(fd)], function, plain)
        return result

    def _position(self, fd: int, opened: _Open | None = None) -> int:
        try:
            return int(self.real["lseek"](fd, 0, os.SEEK_CUR))
        except OSError:  # a pipe
            return opened.moved if opened is not None else 0

    def truncating(self, fd: int, size: int, function: Callable[[], int]) -> int:
        opened = self._files.get(fd)
        if opened is None or not self._active:
            return function()
        opened.written = None
        result: int = self._calls.noted("truncate", [opened.name, str(size)], function, plain)
        return result

    # Paths

    def by_path(self, call: PathCall) -> Any:
        given = (call.path, call.args[0]) if call.two_paths else (call.path,)
        shown = [name or os.fsdecode(one) for name, one in zip((call.name, call.other), given, strict=False)]
        extra = [str(one) for one in call.args[len(given) - 1 :] if isinstance(one, int)]
        if call.syscall in ("link", "symlink"):  # of (points_to, path): the path that changes comes first
            shown.reverse()
        result = path_result(call.syscall)

        def describe(found: Any, message: pb.Syscall) -> None:
            result.describe(found, message)
            if result.data is not None:
                self._calls.keep(message, result.data(found))

        def do() -> Any:
            return self.real[call.function](call.path, *call.args, **call.kwargs)

        return self._calls.noted(call.syscall, shown + extra, do, describe)

    def scan(self, path: Any, name: str) -> Any:
        def entries() -> list[os.DirEntry[Any]]:
            with self.real["scandir"](path) as found:
                return list(found)

        def describe(entries: list[os.DirEntry[Any]], call: pb.Syscall) -> None:
            call.ret = str(len(entries))
            self._calls.keep(call, pack((kind_of(entry), os.fsdecode(entry.name)) for entry in entries))

        found = self._calls.noted("scandir", [name], entries, describe)
        if isinstance(path, int):  # entries of a descriptor stay real: their status goes by that descriptor
            return Scan(found)
        return Scan(Entry(one.name, one.path, kind_of(one), one.inode(), self._entry_stat) for one in found)

    def _entry_stat(self, path: Any, follow_symlinks: bool) -> os.stat_result:
        result: os.stat_result = self.call_by_path("stat", path, follow_symlinks=follow_symlinks)
        return result
