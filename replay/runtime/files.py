"""Plays a recorded program's files: `open` and the functions of `os` answer from the dump.

    files = Files(dump.state.syscalls)
    undo = files.install()
    ...                                # open("cache.json") gives the recorded bytes; the file need not exist
    undo()

Reads give the recorded bytes with the recorded short reads and errors. Writes go to memory, where later reads see them;
they fail where the recorded ones failed. Files that are not a program's data (`dumps.record.seams.data_files`) are
real: code, packages, the system. A path that was never recorded raises `UnrecordedFile`.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dumps.record.seams.data_files import DataFiles, asked_by_loader
from dumps.record.seams.file_functions import FileFunctions, Opener, PathCall
from dumps.record.seams.listing import LINK, Entry, Scan
from dumps.record.seams.opening import mode_flags
from dumps.schema import state_pb2 as pb
from replay.runtime.errors import UnrecordedFile
from replay.runtime.fds import DescriptorMap
from replay.runtime.file_model import Clock, FileModel
from replay.runtime.file_script import Script
from replay.runtime.file_space import space
from replay.runtime.open_file import OpenFile
from replay.runtime.own_process import real_path
from replay.runtime.raw_files import ReplayedRaw
from replay.runtime.syscalls import Syscalls, os_error

_ATTRIBUTES = ("listxattr", "getxattr", "setxattr", "removexattr")


class Files(FileFunctions):
    """The files of one replay."""

    def __init__(
        self,
        recorded: Iterable[pb.Syscall],
        *,
        clock: Clock | None = None,
        syscalls: Syscalls | None = None,
        descriptors: DescriptorMap | None = None,
        real: Sequence[str] = (),
        new_files: bool = False,
        cwd: str | None = None,
    ) -> None:
        """``clock`` moves on by the time that recorded calls took. ``syscalls`` holds handlers, which come first.

        ``real`` are patterns of files that stay real. ``new_files`` lets the program create files of which the
        recording knows nothing, in memory. Recorded relative names are relative to ``cwd``, by default the current one.
        """
        super().__init__()
        self.model = FileModel(Script(recorded), syscalls or Syscalls(), clock, new_files=new_files)
        self.fds = descriptors if descriptors is not None else DescriptorMap()
        self._data_files = DataFiles(exclude=real, cwd=cwd)
        self._real_patterns = DataFiles(include=("*",), exclude=real, cwd=cwd)

    @property
    def unrecorded(self) -> list[UnrecordedFile]:
        """Everything that was asked for and not recorded, even where the program swallowed the error."""
        return self.model.unrecorded

    def written(self) -> dict[str, bytes]:
        """What the replayed program wrote, by recorded name, as far as all of its bytes are known."""
        found: dict[str, bytes] = {}
        with self.model.lock:
            for name, node in self.model.overlay.nodes.items():
                if node.content is not None and (data := node.content.whole()) is not None:
                    found[name] = data
        return found

    def install(self) -> Callable[[], None]:
        """Play from here on, in every thread. Returns the function that ends it and closes what is still open."""
        undo = self.take_over({name: functools.partial(self._no_attributes, name) for name in _ATTRIBUTES})

        def uninstall() -> None:
            undo()
            self.fds.close_all()

        return uninstall

    def name(self, path: Any, dir_fd: int | None = None) -> str | None:
        if isinstance(path, int):
            played = self._file(path)
            return None if played is None else played.name
        folder = None
        if dir_fd is not None:
            folder = self._file(dir_fd)
            if folder is None:
                return None
        try:
            name = self._data_files.name(path, None if folder is None else folder.name)
        except (TypeError, ValueError):  # no path at all: the real function says so
            return None
        if not self._real_patterns.is_data(name) or asked_by_loader(sys._getframe(1)):
            return None
        if self.model.knows(name):
            return name
        if not self._data_files.is_data(name):
            return None
        others = self._data_files.other_names(name, sys.path)
        return next((other for other in others if self.model.knows(other)), name)

    def here(self, path: Any) -> Any:
        return real_path(path)

    def has(self, fd: int) -> bool:
        return self._file(fd) is not None

    def reads(self, fd: int) -> bool:
        """Whether this descriptor is open on a file of the replay to read from."""
        played = self._file(fd)
        return played is not None and played.readable

    # Descriptors

    def open_raw(self, file: Any, name: str | None, mode: str, closefd: bool, opener: Opener | None) -> io.RawIOBase:
        if isinstance(file, int):
            fd = file
        elif opener is not None:
            fd = opener(file, mode_flags(mode) | os.O_CLOEXEC)
        else:
            fd = self.open_fd(file, mode_flags(mode))
        played = self._file(fd)
        if played is None:  # an opener that went past us: the real file
            return io.FileIO(fd, mode, closefd)
        if played.kind == "folder":
            self.close(fd)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file)
        return ReplayedRaw(played, fd, file, mode, closefd, self.close)

    def open_fd(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name = self.name(path, dir_fd)
        if name is None:
            fd: int = self.real["open"](self.here(path), flags, mode, dir_fd=dir_fd)
            return fd
        with self.model.lock:
            played = self.model.open(name, flags, os.fspath(path))
            return self.fds.open(played.kind, name, played).fd

    def close(self, fd: int) -> None:
        played = self._file(fd)
        if played is None:
            self.real["close"](fd)
            return
        self.fds.close(fd, self.real["close"])
        played.close()

    def read(self, fd: int, length: int) -> Any:
        played = self._file(fd)
        if played is None:
            return self.real["read"](fd, length)
        return _or_again(played.read(length))

    def pread(self, fd: int, length: int, offset: int) -> Any:
        played = self._file(fd)
        return self.real["pread"](fd, length, offset) if played is None else _or_again(played.read(length, offset))

    def write(self, fd: int, data: Any) -> Any:
        played = self._file(fd)
        return self.real["write"](fd, data) if played is None else _or_again(played.write(bytes(data)))

    def pwrite(self, fd: int, data: Any, offset: int) -> Any:
        played = self._file(fd)
        if played is None:
            return self.real["pwrite"](fd, data, offset)
        return _or_again(played.write(bytes(data), offset))

    def lseek(self, fd: int, position: int, how: int) -> Any:
        played = self._file(fd)
        return self.real["lseek"](fd, position, how) if played is None else played.seek(position, how)

    def _file(self, fd: Any) -> OpenFile | None:
        found = self.fds.replayed(fd)
        return found.file if found is not None and isinstance(found.file, OpenFile) else None

    # Paths

    def by_path(self, call: PathCall) -> Any:
        name = call.name
        if name is None:  # the second path is played: from a real file, or a link to one
            name = self._data_files.name(call.path)
        path = call.path if isinstance(call.path, int) else os.fspath(call.path)  # what errors name is no Path
        with self.model.lock:
            if call.two_paths:
                target = os.fspath(call.args[0])
                return self._move_or_link(call, name, call.other or self._data_files.name(target), (path, target))
            return self._answer(call, name, path)

    def _answer(self, call: PathCall, name: str, path: Any) -> Any:
        model, args, kwargs = self.model, call.args, call.kwargs
        match call.syscall:
            case "stat" | "lstat" | "fstat" as kind:
                return model.status(kind, name, path)
            case "statvfs":
                return space(model, name, path)
            case "access":
                return model.access(name, args[0] if args else kwargs.get("mode", os.F_OK), path)
            case "listdir":
                names = [one for _, one in model.listing("listdir", name, path)]
                return [os.fsencode(one) for one in names] if isinstance(path, bytes) else names
            case "readlink":
                target = model.read_link(name, path)
                return os.fsencode(target) if isinstance(path, bytes) else target
            case "mkdir":
                return model.make_folder(name, path, args[0] if args else kwargs.get("mode", 0o777))
            case "unlink" | "rmdir" as kind:
                return model.remove(kind, name, path)
            case "truncate":
                size = args[0] if args else kwargs["length"]
                played = self._file(path)
                return played.truncate(size) if played is not None else model.truncate(name, size, path)
            case kind:
                return model.touch(kind, name, path, args)

    def _move_or_link(self, call: PathCall, name: str, target: str, shown: tuple[Any, Any]) -> None:
        if call.syscall == "rename":
            return self.model.rename(name, target, shown)
        return self.model.link(call.syscall, target, os.fsdecode(shown[0]), name, shown)

    def _no_attributes(self, function: str, path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        """A file system without extended attributes, as many are: they are not recorded."""
        if self.name(path) is None:
            return self.real[function](path, *args, **kwargs)
        raise os_error(errno.ENOTSUP, path)

    def scan(self, path: Any, name: str) -> Any:
        path = path if isinstance(path, int) else os.fspath(path)
        with self.model.lock:
            found = self.model.listing("scandir", name, path)
        folder = self._data_files.path(name) if isinstance(path, int) else path
        as_bytes = isinstance(path, bytes)
        base = "" if isinstance(path, int) else os.fsdecode(folder)
        entries = []
        for what, child in found:
            full = os.path.join(base, child)
            shown: Any = os.fsencode(full) if as_bytes else full
            if not what:  # only `os.listdir` was recorded
                what = LINK
            ask = functools.partial(self._entry_stat, path if isinstance(path, int) else None)
            entries.append(Entry(os.fsencode(child) if as_bytes else child, shown, what, 0, ask))
        return Scan(entries)

    def _entry_stat(self, dir_fd: int | None, path: Any, follow_symlinks: bool) -> os.stat_result:
        result: os.stat_result = self.call_by_path("stat", path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        return result


def _or_again(result: Any) -> Any:
    """`os.read` and `os.write` raise where a raw file gives None."""
    if result is None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return result
