"""A raw file that a replay plays: what `open` puts its buffers on."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, Protocol


class PlayedFile(Protocol):
    """An open file of the replay, by position."""

    position: int

    def read(self, size: int, at: int | None = None) -> bytes | None: ...
    def write(self, data: bytes, at: int | None = None) -> int | None: ...
    def seek(self, position: int, how: int) -> int: ...
    def truncate(self, size: int) -> None: ...
    def close(self) -> None: ...
    def seekable(self) -> bool: ...


class ReplayedRaw(io.RawIOBase):
    """Stands where `io.FileIO` stood, with its attributes."""

    name: Any

    def __init__(
        self, file: PlayedFile, fd: int, name: Any, mode: str, closefd: bool, closed: Callable[[int], None]
    ) -> None:
        """``mode`` is raw ("r", "w+"). ``closed(fd)`` is called when the descriptor goes."""
        super().__init__()
        self._file, self._fd, self._closefd, self._closed = file, fd, closefd, closed
        self.name = name
        self._raw_mode = mode
        self._blksize = io.DEFAULT_BUFFER_SIZE
        self.closefd = closefd

    @property
    def mode(self) -> str:
        letter, both = self._raw_mode[0], "+" in self._raw_mode
        return "rb+" if letter == "w" and both else f"{letter}b{'+' if both else ''}"

    def readable(self) -> bool:
        self._check_open()
        return self._raw_mode[0] == "r" or "+" in self._raw_mode

    def writable(self) -> bool:
        self._check_open()
        return self._raw_mode != "r"

    def seekable(self) -> bool:
        self._check_open()
        return self._file.seekable()

    def fileno(self) -> int:
        self._check_open()
        return self._fd

    def isatty(self) -> bool:
        self._check_open()
        return False

    def readinto(self, buffer: Any) -> int | None:
        self._check(self.readable(), "reading")
        view = memoryview(buffer).cast("B")
        data = self._file.read(len(view))
        if data is None:
            return None
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes | None:  # type: ignore[override]
        self._check(self.readable(), "reading")
        pieces: list[bytes] = []
        while piece := self._file.read(1 << 20):
            pieces.append(piece)
        return b"".join(pieces) if pieces or piece is not None else None

    def write(self, data: Any) -> int | None:
        self._check(self.writable(), "writing")
        return self._file.write(bytes(data))

    def seek(self, position: int, how: int = os.SEEK_SET, /) -> int:
        self._check_open()
        return self._file.seek(position, how)

    def tell(self) -> int:
        return self.seek(0, os.SEEK_CUR)

    def truncate(self, size: int | None = None, /) -> int:
        self._check(self.writable(), "writing")
        size = self.tell() if size is None else size
        self._file.truncate(size)
        return size

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._closefd:
            self._closed(self._fd)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _check(self, can: bool, what: str) -> None:
        if not can:
            raise io.UnsupportedOperation(f"File not open for {what}")
