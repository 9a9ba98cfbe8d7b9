"""Writes a dump in one pass, front to back, so that a writer which dies leaves everything up to its last seal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import zstandard
from google.protobuf.message import EncodeError

from dumps.errors import DumpError, InvalidState
from dumps.limits import MAX_PART_BYTES, Limits
from dumps.schema import state_pb2 as pb
from dumps.schema.layout import CONTAINER, PREFIX
from dumps.schema.seals import RunningSeal, encode_directory, encode_trailer
from dumps.schema.sections import RAW, ZSTD, encode_section
from dumps.schema.wire import scan
from dumps.tensors import tensor_bytes

_ZSTD_LEVEL = 3
# Beyond this ratio a reader refuses a part, so a writer stores it raw.
_MAX_RATIO = Limits().compression_ratio
_WORTH_COMPRESSING = 64
_HEAD_PIECE = 2048
_MAX_HEAD_PIECES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionData:
    """A section to be written: ``data`` raw, and for a tensor its dtype name and the shape of the whole.

    ``part_bytes``: raw bytes of one part, at least a row of the tensor. Parts can be verified and read side by side.
    """

    kind: str
    data: bytes | memoryview
    dtype: str = ""
    shape: tuple[int, ...] = ()
    compress: bool = True
    part_bytes: int = MAX_PART_BYTES


def write_dump(path: Path, state: pb.RuntimeState, sections: Sequence[SectionData] = ()) -> None:
    """Write a sealed dump of ``state`` and ``sections``. Errors as `DumpWriter`."""
    with DumpWriter(path) as writer:
        writer.head(state)
        for section in sections:
            writer.section(
                section.kind,
                section.data,
                dtype=section.dtype,
                shape=section.shape,
                compress=section.compress,
                part_bytes=section.part_bytes,
            )


class DumpWriter:
    """A dump being written: `head` once, then any number of `section`, then `close`.

    The file is created with mode 0600 and must not exist: a dump never replaces another one. It is written in place;
    nothing is held back or renamed, since the writer is often a process about to die. Leaving the ``with`` block by an
    exception closes the file without its final seal, and a reader will call it torn.

    Raises `DumpError` when the file cannot be created and `InvalidState` for a state or section that no reader would
    take. An OSError while writing (a full disk) passes through.
    """

    def __init__(self, path: Path, *, part_bytes: int = MAX_PART_BYTES) -> None:
        """``part_bytes``: raw bytes of one section part, at most 512 MiB."""
        self.path = path
        self._part_bytes = min(part_bytes, MAX_PART_BYTES)
        self._directory: list[tuple[str, int, int, int]] = []
        self._has_head = False
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        except FileExistsError:
            raise DumpError(f"{path} exists already", remedy="Choose another name, or move the file away.") from None
        except OSError as error:
            raise DumpError(f"cannot create {path}: {error.strerror}", remedy="Choose a writable place.") from None
        self._file = os.fdopen(fd, "wb")
        self._at = 0
        self._seal = RunningSeal()
        self._put(PREFIX)

    def head(self, state: pb.RuntimeState) -> None:
        """Write all content fields of ``state``, sealed piece by piece, so that a cut file keeps its first pieces.

        The state must hold a manifest and no container field.
        """
        if self._has_head:
            raise InvalidState("a dump has one head")
        content = memoryview(_content(state))
        self._has_head = True
        for piece in _pieces(content):
            self._put(piece)
            self._put_seal()

    def section(
        self,
        kind: str,
        data: bytes | memoryview,
        *,
        dtype: str = "",
        shape: Sequence[int] = (),
        compress: bool = True,
        part_bytes: int = MAX_PART_BYTES,
    ) -> None:
        """Write ``data`` as one or more sealed parts of at most ``part_bytes``, which cannot exceed the writer's own.

        A tensor is cut between rows of its first dimension.

        Call it once per kind: its parts are consecutive.
        """
        if not self._has_head:
            raise InvalidState("the head comes before the first section")
        if not kind or any(entry[0] == kind for entry in self._directory):
            raise InvalidState(f"section {kind!r}: a kind is written once and has a name")
        view = memoryview(data)
        raw = view.cast("B") if view.nbytes else memoryview(b"")
        if dtype and tensor_bytes(dtype, shape) != len(raw):
            raise InvalidState(f"section {kind!r}: {dtype} {list(shape)} does not take {len(raw)} bytes")
        most = min(part_bytes, self._part_bytes)
        for part, (piece, piece_shape) in enumerate(_split(raw, tuple(shape), most, kind)):
            encoding, payload = _encode(piece, compress)
            padding, front = encode_section(
                at=self._at,
                kind=kind,
                part=part,
                encoding=encoding,
                raw_size=len(piece),
                dtype=dtype,
                shape=piece_shape,
                data_size=len(payload),
            )
            self._put(padding)
            offset = self._at
            self._put(front)
            self._put(payload)
            self._directory.append((kind, part, offset, self._at - offset))
            self._put_seal()

    def close(self) -> None:
        """Write the final seal with the directory and the trailer, and fsync. Does nothing the second time."""
        if self._file.closed:
            return
        if not self._has_head:
            self.abandon()
            raise InvalidState("a dump without a head: nothing was written into it")
        last = self._put_seal(encode_directory(self._directory))
        self._put(encode_trailer(last))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Close the file without its final seal: it is then torn, and says so."""
        self._file.close()

    def _put(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._seal.update(data)
        self._at += len(data)

    def _put_seal(self, directory: bytes = b"") -> int:
        """Write a seal and let it reach the kernel, so that it outlives this process. Returns its offset."""
        offset = self._at
        seal = self._seal.seal(offset, directory)
        self._put(seal)
        self._file.flush()
        return offset

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()


def _content(state: pb.RuntimeState) -> bytes:
    if not state.HasField("manifest"):
        raise InvalidState("a state without a manifest", remedy="Set state.manifest (id, reason, created_ns ...).")
    present = [field.name for field, _ in state.ListFields() if field.number in CONTAINER]
    if present:
        raise InvalidState(
            f"a state with container fields: {', '.join(present)}", remedy="Pass sections to `DumpWriter.section`."
        )
    try:
        return state.SerializeToString(deterministic=True)
    except EncodeError as error:
        raise InvalidState(f"the state cannot be written: {error}") from None


def _pieces(content: memoryview) -> Iterator[memoryview]:
    """The content cut between fields, into pieces that are large beside their seals and few."""
    least = max(_HEAD_PIECE, len(content) // _MAX_HEAD_PIECES)
    start = 0
    for field in scan(content):
        if field.end - start >= least or field.end == len(content):
            yield content[start : field.end]
            start = field.end


def _encode(piece: memoryview, compress: bool) -> tuple[str, bytes | memoryview]:
    if compress and len(piece) >= _WORTH_COMPRESSING:
        packed = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=False).compress(piece)
        if len(packed) < len(piece) <= _MAX_RATIO * len(packed):
            return ZSTD, packed
    return RAW, piece


def _split(
    raw: memoryview, shape: tuple[int, ...], part_bytes: int, kind: str
) -> Iterator[tuple[memoryview, tuple[int, ...]]]:
    """Pieces of at most ``part_bytes``, with their shapes; one empty piece for no data."""
    if len(raw) <= part_bytes:
        yield raw, shape
        return
    step, row = part_bytes, 1
    if shape:
        row = len(raw) // shape[0]
        if row > part_bytes:
            raise InvalidState(f"section {kind!r}: one row of {row} bytes is larger than a part ({part_bytes})")
        step = part_bytes // row * row
    for at in range(0, len(raw), step):
        piece = raw[at : at + step]
        yield piece, (len(piece) // row, *shape[1:]) if shape else ()
