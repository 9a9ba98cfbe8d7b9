"""A raw file whose reads and writes are recorded: what `open` puts its buffers on."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, Protocol

from dumps.record.seams.file_calls import MAX_READ


class Descriptors(Protocol):
    """Who notes what is done with a descriptor. Each does ``function``, and gives and raises what it does."""

    def reading(self, name: str, fd: int, size: int, function: Callable[[], Any]) -> Any: ...
    def writing(self, name: str, fd: int, data: Any, function: Callable[[], Any]) -> Any: ...
    def seeking(self, fd: int, position: int, how: int, function: Callable[[], int]) -> int: ...
    def truncating(self, fd: int, size: int, function: Callable[[], int]) -> int: ...
    def closing(self, fd: int, function: Callable[[], None]) -> None: ...


class RecordedRaw(io.FileIO):
    """The real raw file, telling ``descriptors`` what it does."""

    def __init__(
        self,
        descriptors: Descriptors,
        file: Any,
        mode: str,
        closefd: bool,
        opener: Callable[[Any, int], int] | None,
    ) -> None:
        self._descriptors = descriptors
        super().__init__(file, mode, closefd, opener)

    def readinto(self, buffer: Any) -> int | None:
        view = memoryview(buffer).cast("B")

        def read() -> bytes | None:
            count = super(RecordedRaw, self).readinto(view)
            return None if count is None else bytes(view[:count])

        data = self._descriptors.reading("read", self.fileno(), len(view), read)
        return None if data is None else len(data)

    def read(self, size: int | None = -1) -> bytes | None:  # type: ignore[override]
        if size is None or size < 0:
            return self.readall()
        data: bytes | None = self._descriptors.reading("read", self.fileno(), size, lambda: io.FileIO.read(self, size))
        return data

    def readall(self) -> bytes | None:  # type: ignore[override]
        """In pieces that the record can hold whole."""
        pieces: list[bytes] = []
        while piece := self.read(MAX_READ):
            pieces.append(piece)
        return b"".join(pieces) if pieces or piece is not None else None

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        done: int | None = self._descriptors.writing("write", self.fileno(), data, lambda: io.FileIO.write(self, data))
        return done

    def seek(self, position: int, how: int = os.SEEK_SET, /) -> int:
        return self._descriptors.seeking(self.fileno(), position, how, lambda: io.FileIO.seek(self, position, how))

    def truncate(self, size: int | None = None, /) -> int:
        wanted = self.tell() if size is None else size
        self._descriptors.truncating(self.fileno(), wanted, lambda: io.FileIO.truncate(self, wanted))
        return wanted

    def close(self) -> None:
        if self.closed or not self.closefd:
            return super().close()
        self._descriptors.closing(self.fileno(), super().close)
