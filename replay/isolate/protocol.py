"""Frames between a supervisor and its worker: four bytes of big-endian length, then one JSON object of that length.

No I/O happens here. Bytes go in as they arrive, whole messages come out. The supervisor reads what a process said that
had an untrusted dump in its hands, so every length and every value is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from replay import strict_json
from replay.errors import ReplayError

MAX_FRAME_BYTES = 64 * 1024 * 1024
HEADER_BYTES = 4


class ProtocolError(ReplayError):
    """The other side sent something that is not a frame. Usually a library that wrote to the wrong descriptor."""

    remedy = "report this: worker and supervisor do not speak the same protocol"


def encode(message: Mapping[str, Any], *, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """One frame. Raises ProtocolError for a message that JSON cannot hold or that is above ``max_bytes``."""
    try:
        body = strict_json.dumps(message)
    except strict_json.InvalidJson as error:
        raise ProtocolError(str(error)) from error
    if len(body) > max_bytes:
        raise ProtocolError(
            f"a message of {len(body)} bytes, the limit is {max_bytes}",
            remedy="leave out --full, or replay one request with --scope request",
        )
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class FrameDecoder:
    """Takes bytes in pieces of any size and gives the messages that are complete.

    The first error is final: a stream that lost its frame borders cannot be trusted again.
    """

    def __init__(self, *, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._error: ProtocolError | None = None

    def feed(self, data: bytes | memoryview) -> Iterator[dict[str, Any]]:
        """Add bytes and yield each message they complete. Raises ProtocolError; what came before it is yielded."""
        self._buffer += data
        while (message := self._next()) is not None:
            yield message

    def close(self) -> None:
        """Say that no more bytes come. Raises ProtocolError when a frame was begun and not finished."""
        if self._error is None and self._buffer:
            self._fail(f"the stream ended inside a frame, after {len(self._buffer)} bytes of it")

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._buffer)

    def _next(self) -> dict[str, Any] | None:
        if self._error is not None:
            raise self._error
        if len(self._buffer) < HEADER_BYTES:
            return None
        length = int.from_bytes(self._buffer[:HEADER_BYTES], "big")
        if length > self._max_bytes:
            self._fail(f"a frame of {length} bytes is announced, the limit is {self._max_bytes}")
        end = HEADER_BYTES + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[HEADER_BYTES:end])
        del self._buffer[:end]
        try:
            message = strict_json.loads(body)
        except strict_json.InvalidJson as error:
            self._fail(str(error))
        if not isinstance(message, dict):
            self._fail(f"a frame holds {type(message).__name__}, not an object")
        return message

    def _fail(self, message: str) -> NoReturn:
        self._error = ProtocolError(message)
        raise self._error
