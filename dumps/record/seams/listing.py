"""Folders as they are listed: an `os.scandir` of ours, whose entries ask back through recording or replay.

The entries of the real one answer `stat` without anybody noticing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any

FILE, FOLDER, LINK, OTHER = "f", "d", "l", "o"
"""What an entry is, without following a link."""


class Entry:
    """Stands for an `os.DirEntry`. ``path`` and ``name`` are str or bytes, as the folder was."""

    __slots__ = ("_inode", "_kind", "_stat", "name", "path")

    def __init__(self, name: Any, path: Any, kind: str, inode: int, ask: Callable[[Any, bool], os.stat_result]) -> None:
        """``ask(path, follow_symlinks)`` gives the entry's status."""
        self.name, self.path, self._kind, self._inode, self._stat = name, path, kind, inode, ask

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def inode(self) -> int:
        return self._inode

    def is_symlink(self) -> bool:
        return self._kind == LINK

    def is_junction(self) -> bool:
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(FOLDER, stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(FILE, stat.S_ISREG, follow_symlinks)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._stat(self.path, follow_symlinks)

    def _is(self, kind: str, test: Callable[[int], bool], follow_symlinks: bool) -> bool:
        if self._kind != LINK or not follow_symlinks:
            return self._kind == kind
        try:
            return test(self._stat(self.path, True).st_mode)
        except FileNotFoundError:  # a link to nowhere
            return False


class Scan:
    """An iterator and context manager over entries, as `os.scandir` returns."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def kind_of(entry: os.DirEntry[Any]) -> str:
    if entry.is_symlink():
        return LINK
    return FOLDER if entry.is_dir(follow_symlinks=False) else FILE if entry.is_file(follow_symlinks=False) else OTHER


def pack(names: Iterable[tuple[str, str]]) -> bytes:
    """(kind, name) pairs as a recorded listing's data. `os.listdir` has no kinds: they are "" there."""
    return b"\0".join(kind.encode() + b"/" + os.fsencode(name) for kind, name in names)


def unpack(data: bytes) -> list[tuple[str, str]]:
    pairs = (piece.partition(b"/") for piece in data.split(b"\0") if piece)
    return [(kind.decode("ascii", "replace"), os.fsdecode(name)) for kind, _, name in pairs]
