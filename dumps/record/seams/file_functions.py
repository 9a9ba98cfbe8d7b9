"""Takes over `open` and the functions of `os` that deal with files. Recording and replay both do, each in its own way.

In how many ways such a function can be called is sorted out here, once for both: with a path or a descriptor, with
arguments by place or by name, `os.replace` for `os.rename`.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dumps.record.seams import numpy_files
from dumps.record.seams.opening import assemble
from dumps.record.seams.rebind import StandIn, rebind

Opener = Callable[[Any, int], int]

_BY_PATH = (
    "stat", "lstat", "fstat", "access", "listdir", "readlink", "mkdir", "rmdir", "remove", "unlink", "chmod", "chown",
    "utime", "truncate", "ftruncate", "fsync", "fdatasync", "rename", "replace", "link", "symlink", "statvfs",
    "fstatvfs",
)  # fmt: skip
_TWO_PATHS = ("rename", "replace", "link", "symlink")
_SYSCALLS = {
    "remove": "unlink",
    "replace": "rename",
    "ftruncate": "truncate",
    "fdatasync": "fsync",
    "fstatvfs": "statvfs",
}
_SUPPORT_SETS = ("supports_dir_fd", "supports_effective_ids", "supports_fd", "supports_follow_symlinks")

# Import goes on as it is: it is no data, and it must not wait for us.
_KEEP = ("posix", "importlib", "_frozen_importlib", "_frozen_importlib_external", "zipimport", "linecache", "tokenize")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathCall:
    """A call of a function of `os` about a file of the program, or about two of which one is.

    ``path`` may be a descriptor, ``args`` are those after it. ``name`` is the recorded name of the file, ``other`` that
    of the second one; None for a file that is none of the program's data.
    """

    function: str
    path: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    name: str | None
    other: str | None

    @property
    def two_paths(self) -> bool:
        return self.function in _TWO_PATHS

    @property
    def syscall(self) -> str:
        """The name that the dump gives it."""
        if self.function == "stat":
            return "fstat" if isinstance(self.path, int) else "stat" if self._follows_links() else "lstat"
        return _SYSCALLS.get(self.function, self.function)

    def _follows_links(self) -> bool:
        return bool(self.kwargs.get("follow_symlinks", True))


class FileFunctions(ABC):
    """What stands in for `open` and the functions of `os`, which remain in ``real``: by name in `os`, and "io.open"."""

    def __init__(self) -> None:
        self.real: dict[str, Any] = {}

    def take_over(self, more: Mapping[str, Callable[..., Any]] | None = None) -> Callable[[], None]:
        """Set them, and ``more`` by name in `os`, where the system has them, also where a module bound one early
        (``from os import stat``). Returns the function that restores exactly what was there."""
        functions: dict[str, Callable[..., Any]] = {
            "open": self.open_fd,
            "close": self.close,
            "read": self.read,
            "pread": self.pread,
            "write": self.write,
            "pwrite": self.pwrite,
            "lseek": self.lseek,
            "scandir": self._scandir,
            "sendfile": functools.partial(self._no_shortcut, "sendfile"),
            "copy_file_range": functools.partial(self._no_shortcut, "copy_file_range"),
        }
        functions |= {name: functools.partial(self.call_by_path, name) for name in _BY_PATH}
        functions |= more or {}
        self.real["io.open"] = io.open
        self.real |= {name: getattr(os, name) for name in functions if hasattr(os, name)}
        undo_functions = _put_in_place(self.real, {"io.open": self._open, **functions})
        undo_numpy = numpy_files.install(self.has, self._has_name)

        def undo() -> None:
            undo_numpy()
            undo_functions()

        return undo

    def here(self, path: Any) -> Any:
        """The path by which this process finds a real file that the program calls ``path``."""
        return path

    @abstractmethod
    def name(self, path: Any, dir_fd: int | None = None) -> str | None:
        """The recorded name of a file that we record or play, None for any other. ``path`` may be a descriptor."""

    @abstractmethod
    def has(self, fd: int) -> bool:
        """Whether this descriptor is open on such a file."""

    @abstractmethod
    def open_raw(self, file: Any, name: str | None, mode: str, closefd: bool, opener: Opener | None) -> io.RawIOBase:
        """The raw file for `open`, of a raw mode ("r", "w+"). ``name`` is None only with an ``opener``."""

    @abstractmethod
    def open_fd(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Any: ...
    @abstractmethod
    def close(self, fd: int) -> None: ...
    @abstractmethod
    def read(self, fd: int, length: int) -> Any: ...
    @abstractmethod
    def pread(self, fd: int, length: int, offset: int) -> Any: ...
    @abstractmethod
    def write(self, fd: int, data: Any) -> Any: ...
    @abstractmethod
    def pwrite(self, fd: int, data: Any, offset: int) -> Any: ...
    @abstractmethod
    def lseek(self, fd: int, position: int, how: int) -> Any: ...

    @abstractmethod
    def scan(self, path: Any, name: str) -> Any:
        """`os.scandir` of the folder ``name``."""

    @abstractmethod
    def by_path(self, call: PathCall) -> Any: ...

    def call_by_path(self, function: str, path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        """`os.<function>`, which is `by_path` for a file that is ours."""
        path = kwargs.pop("src", kwargs.pop("fd", path))
        if "dst" in kwargs:
            args = (kwargs.pop("dst"), *args)
        name = self.name(path, kwargs.get("dir_fd", kwargs.get("src_dir_fd")))
        other: str | None = None
        if function in _TWO_PATHS and args:
            other = self.name(args[0], kwargs.get("dst_dir_fd", kwargs.get("dir_fd")))
        if (name is None and other is None) or (function in _TWO_PATHS and not args):
            return self.real[function](self.here(path), *args, **kwargs)
        return self.by_path(PathCall(function=function, path=path, args=args, kwargs=kwargs, name=name, other=other))

    def _has_name(self, path: Any) -> bool:
        return self.name(path) is not None

    def _open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Opener | None = None,
    ) -> Any:
        file = file if isinstance(file, int) else os.fspath(file)  # as `open` does: ``name`` is then no Path
        name = self.name(file)
        if name is None and opener is None:
            return self.real["io.open"](self.here(file), mode, buffering, encoding, errors, newline, closefd, opener)

        def open_raw(raw_mode: str) -> io.RawIOBase:
            return self.open_raw(file, name, raw_mode, closefd, opener)

        return assemble(open_raw, mode, buffering, encoding, errors, newline)

    def _scandir(self, path: Any = ".") -> Any:
        name = self.name(path)
        return self.real["scandir"](self.here(path)) if name is None else self.scan(path, name)

    def _no_shortcut(self, function: str, first: int, second: int, *args: Any, **kwargs: Any) -> Any:
        """Copying within the kernel would pass us by. Its callers have a second way; this error sends them there."""
        if self.has(first) or self.has(second):
            raise OSError(errno.EINVAL, "copied through the program, where it is recorded or played")
        return self.real[function](first, second, *args, **kwargs)


def _put_in_place(real: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Callable[[], None]:
    stand_ins = {name: StandIn(there, functions[name]) for name, there in real.items()}
    added: list[tuple[set[Any], Any]] = []
    for members in (getattr(os, group) for group in _SUPPORT_SETS):
        for name, there in real.items():
            if there in members:  # these sets hold the functions themselves, and shutil asks them
                members.add(stand_ins[name])
                added.append((members, stand_ins[name]))
    undo_names = rebind({there: stand_ins[name] for name, there in real.items()}, keep=_KEEP)
    undo_tempfile = _patch_tempfile(real["unlink"], stand_ins["unlink"])

    def undo() -> None:
        undo_tempfile()
        undo_names()
        for members, stand_in in added:
            members.discard(stand_in)

    return undo


def _patch_tempfile(there: Any, stand_in: Any) -> Callable[[], None]:
    """A temporary file removes itself with the `os.unlink` that is a default argument since tempfile's import."""
    changed: list[tuple[Any, tuple[Any, ...]]] = []
    for function in vars(getattr(tempfile, "_TemporaryFileCloser", object)).values():
        defaults = getattr(function, "__defaults__", None)
        if defaults and there in defaults:
            changed.append((function, defaults))
            function.__defaults__ = tuple(stand_in if one is there else one for one in defaults)

    def undo() -> None:
        for function, defaults in changed:
            function.__defaults__ = defaults

    return undo
