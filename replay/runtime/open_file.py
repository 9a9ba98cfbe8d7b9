"""One open file of a replay: reads and writes by position, from the recording and from what the replay wrote."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from dumps.schema import state_pb2 as pb
from replay.runtime.file_script import Session, number
from replay.runtime.overlay import Content
from replay.runtime.syscalls import content_of, os_error, raise_error, whole_data

if TYPE_CHECKING:
    from replay.runtime.file_model import FileModel


class OpenFile:
    """An open file of the replay. ``shown`` is the path as the program wrote it."""

    def __init__(
        self, model: FileModel, name: str, shown: Any, session: Session | None, content: Content | None, flags: int
    ) -> None:
        self.name, self.shown, self.session, self.content = name, shown, session, content
        self.kind = session.kind if session is not None else "folder" if flags & os.O_DIRECTORY else "file"
        self.readable = flags & os.O_ACCMODE != os.O_WRONLY
        self._model, self._append = model, bool(flags & os.O_APPEND)
        self._handled = False  # a handler has given the content, all of it
        self.position = self._written = 0
        if self._append:
            offset = number(session.call, 3) if session is not None else None
            self.position = content.size if content is not None and content.size is not None else offset or 0

    def read(self, size: int, at: int | None = None) -> bytes | None:
        """At most ``size`` bytes; as short as it was recorded. None where a read would have had to wait."""
        with self._model.lock:
            start = self.position if at is None else at
            found = None if self._handled else self._find(start)
            if not self._handled:
                self._ask_handlers(size, start, None if found is None else found[1])
            data = self._pieces(start, size, None) if self._handled else self._play_read(start, size, found)
            if at is None and data is not None:
                self.position += len(data)
            return data

    def write(self, data: bytes, at: int | None = None) -> int | None:
        """Bytes written: fewer where the recorded write stopped there."""
        with self._model.lock:
            content = self.content
            start = self.position if at is None else at
            if self._append and content is not None and content.size is not None:
                start = content.size
            call, room = self.session.write_at(start, len(data)) if self.session is not None else (None, len(data))

            def play() -> int:
                if call is not None:
                    self._model.pass_time(call)
                    raise_error(call)
                if content is not None:
                    content.write(start, data[:room])
                return room

            written = self._model.ask("write", (self.shown, len(data), start), call, play)
            self._written += int(written or 0)
            if at is None and written:
                self.position = start + int(written)
            return None if written is None else int(written)

    def seek(self, position: int, how: int) -> int:
        with self._model.lock:
            if not self.seekable():
                raise os_error(errno.ESPIPE)
            start = {os.SEEK_SET: 0, os.SEEK_CUR: self.position}.get(how)
            if start is None and how == os.SEEK_END:
                start = self._end()
            if start is None or start + position < 0:
                raise os_error(errno.EINVAL)
            self.position = start + position
            return self.position

    def truncate(self, size: int) -> None:
        with self._model.lock:
            self._model.truncate(self.name, size, None, self.content)

    def status(self) -> os.stat_result:
        with self._model.lock:
            return self._model.status("fstat", self.name, self.shown)

    def close(self) -> None:
        """Raises the recorded error of a close that failed."""
        with self._model.lock:
            history = self._model.script.history(self.name)
            if self.session is not None and self._written != self.session.bytes_written:
                history.own_way = True
            entry = history.query("close")
            if entry is not None:
                raise_error(entry.call)

    def seekable(self) -> bool:
        return self.kind in ("file", "folder")

    def _ask_handlers(self, size: int, at: int, call: pb.Syscall | None) -> None:
        """What one returns is the whole content from here on, so that a reader who goes on until the end meets one."""
        given = self._model.handlers.handled("read", (self.shown, size, at), call)
        if given is NotImplemented:
            return
        if self.content is None:
            self.content = Content(size=0, empty=True)
        self.content.truncate(0)
        self.content.write(0, content_of(given))
        self._handled = True

    def _find(self, at: int) -> tuple[Session, pb.Syscall, int] | None:
        """The recorded read for offset ``at``: of this open, else of another one of the same bytes."""
        sessions = [] if self.session is None else [self.session]
        if self.content is not None or self.session is None or not self.session.reads:
            sessions += self._model.sessions(self.name, self.content.origin if self.content is not None else self.name)
        for session in sessions:
            found = session.peek(at)
            if found is not None:
                return session, *found
        return None

    def _play_read(self, at: int, size: int, found: tuple[Session, pb.Syscall, int] | None) -> bytes | None:
        if self.kind == "folder":
            raise os_error(errno.EISDIR)
        if found is not None and found[1].errno_name and found[0] is self.session:
            found[0].take(at)
            self._model.pass_time(found[1])
            raise_error(found[1])
        if self.content is not None:
            return self._pieces(at, size, found)
        if size == 0:
            return b""
        if found is not None and not found[1].errno_name:
            return self._recorded_piece(at, size, found)
        if self.session is not None and self.session.ends_by(at):
            return b""
        raise self._model.unknown("read", self.name, f"{size} bytes from offset {at}")

    def _pieces(self, at: int, size: int, found: tuple[Session, pb.Syscall, int] | None) -> bytes:
        """A read of a file that the replay writes, too: its own bytes and recorded ones in turn, as one read."""
        assert self.content is not None
        if found is not None and found[0] is self.session and found[2] == 0 and number(found[1], 1) == size:
            size = min(size, number(found[1], "ret") or 0) or size  # as short as it was recorded
        out = bytearray()
        while len(out) < size:
            start, room = at + len(out), size - len(out)
            piece = self.content.read(start, room)
            if piece is None:
                recorded = self._find(start)
                room = min(room, self.content.unwritten_until(start) - start)
                if recorded is not None and not recorded[1].errno_name and recorded[1].ret not in ("0", "None"):
                    piece = self._recorded_piece(start, room, recorded)
                elif not out:
                    raise self._model.unknown("read", self.name, f"{room} bytes from offset {start}")
            if not piece:
                break
            out += piece
        return bytes(out)

    def _recorded_piece(self, at: int, size: int, found: tuple[Session, pb.Syscall, int]) -> bytes | None:
        session, call, into = found
        session.take(at)
        self._model.pass_time(call)
        return None if call.ret == "None" else whole_data(call)[into : into + size]

    def _end(self) -> int:
        if self.content is not None and self.content.size is not None:
            return self.content.size
        if self.session is not None and self.session.ends:
            call = self.session.ends[0] if len(self.session.ends) == 1 else self.session.ends.popleft()
            raise_error(call)
            return (number(call, "ret") or 0) - (number(call, 1) or 0)
        size = self.session.size if self.session is not None else None
        if size is None:
            raise self._model.unknown("lseek", self.name, "its size is not known")
        return size
