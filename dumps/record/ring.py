"""The flight recorder's file: where its areas lie, its header, and the ring of checked records.

The file is mapped shared, so what was written survives the writer's death in the page cache without any sync.
Nothing in it is trusted on reading: each record carries a length, a sequence number and a CRC, and the CRC is seeded
with a number drawn for this file, so that bytes which merely look like a record (a token list, a message) never pass.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields

from dumps.record.process import WriterProcess

FILE_MAGIC = b"PPLXRING"
FILE_VERSION = 1
PAGE = 4096
RECORD_MAGIC = b"\xf5\xc3\x9d\xb7"  # as a number above every token and block id; and no text in UTF-8 holds 0xf5
_RECORD = struct.Struct("<4sIQII")  # magic, payload length, sequence, kind, CRC
RECORD_HEAD = _RECORD.size
_CHECKED = struct.Struct("<IQI")  # what the CRC covers beside the payload

# Kinds of records. A keyframe and a failure also have areas of their own, which the ring's wrapping never overwrites.
REQUEST, BEGIN, END, FAILURE, KEYFRAME = 1, 2, 3, 4, 5

FAILURE_SLOTS = 8
FAILURE_BYTES = 8192
KEYFRAME_AREAS = 2

# A word that is a multiple of this prime is whole: changing any one byte of it leaves a remainder.
WORD_PRIME = 4294967291

MAX_FILE = 16 << 30
MAX_IDENTITY = 1 << 20
MAX_SLOTS = 1 << 16
MAX_SLOT_TOKENS = 1 << 24
MAX_SLOT_HEADER = 1 << 26
MAX_RING = 1 << 30
MAX_BLOCKS = 1 << 24
MIN_RING = 256

_CLOSED_AT = 2048  # offset of the word that a clean shutdown sets
_COUNTERS_AT = 2056
CLEAN = WORD_PRIME * 0x636C6F73
COUNTERS = (
    "requests_without_slot",
    "token_lists_cut",
    "headers_cut",
    "records_dropped",
    "keyframes_dropped",
    "queues_cut",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingLayout:
    """Sizes from which every offset follows. ``keyframe_bytes`` is the size of one of the two areas."""

    identity_bytes: int
    slots: int
    slot_tokens: int
    slot_header_bytes: int
    keyframe_bytes: int
    ring_bytes: int

    def problem(self) -> str | None:
        """The first size out of its range, in words."""
        ranges = {
            "identity_bytes": (2, MAX_IDENTITY),
            "slots": (1, MAX_SLOTS),
            "slot_tokens": (0, MAX_SLOT_TOKENS),
            "slot_header_bytes": (256, MAX_SLOT_HEADER),
            "keyframe_bytes": (64, 8 * MAX_BLOCKS),
            "ring_bytes": (MIN_RING, MAX_RING),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:
                return f"{name} must be between {low} and {high}, got {value}"
            if name not in ("identity_bytes", "slots", "slot_tokens") and value % 8:
                return f"{name} must be a multiple of 8, got {value}"
        if self.file_bytes > MAX_FILE:
            return f"the file would have {self.file_bytes} bytes, more than {MAX_FILE}"
        return None

    @property
    def identity_at(self) -> int:
        return PAGE

    @property
    def failures_at(self) -> int:
        return _page(self.identity_at + self.identity_bytes)

    @property
    def keyframes_at(self) -> int:
        return self.failures_at + FAILURE_SLOTS * FAILURE_BYTES

    @property
    def slab_at(self) -> int:
        return _page(self.keyframes_at + KEYFRAME_AREAS * self.keyframe_bytes)

    @property
    def slot_bytes(self) -> int:
        """Header area, then 8 bytes a token: each takes 4 of them, and each group of output tokens its own head."""
        return self.slot_header_bytes + 8 * self.slot_tokens + 64

    @property
    def ring_at(self) -> int:
        return _page(self.slab_at + self.slots * self.slot_bytes)

    @property
    def file_bytes(self) -> int:
        return _page(self.ring_at + self.ring_bytes)


_LAYOUT = struct.Struct("<6Q")


def _page(offset: int) -> int:
    return -(-offset // PAGE) * PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class RingHeader:
    """The first page. ``nonce`` seeds the CRC of every record of this file; times are nanoseconds."""

    layout: RingLayout
    writer: WriterProcess
    level: str
    nonce: int
    created_ns: int
    wall_minus_monotonic_ns: int
    identity_crc: int

    _FIXED = struct.Struct("<8sII6sHIIQqQ16sQI")

    def pack(self) -> bytes:
        """The header's bytes, CRC last."""
        sizes = [getattr(self.layout, field.name) for field in fields(self.layout)]
        body = self._FIXED.pack(
            FILE_MAGIC,
            FILE_VERSION,
            self._FIXED.size + _LAYOUT.size,
            self.level.encode("ascii"),
            0,
            self.writer.pid,
            self.nonce,
            self.created_ns,
            self.wall_minus_monotonic_ns,
            self.writer.start_ticks,
            self.writer.boot_id,
            self.writer.pid_namespace,
            self.identity_crc,
        ) + _LAYOUT.pack(*sizes)
        return body + struct.pack("<I", zlib.crc32(body))

    @classmethod
    def size(cls) -> int:
        return cls._FIXED.size + _LAYOUT.size + 4

    @classmethod
    def unpack(cls, page: bytes) -> RingHeader:
        """Read a header.

        Raises:
            ValueError: wrong magic, version, CRC, or sizes outside their limits.
        """
        if page[:8] != FILE_MAGIC:
            raise ValueError(f"the file does not begin with {FILE_MAGIC!r}")
        if len(page) < cls.size():
            raise ValueError("the header is cut off")
        version = struct.unpack_from("<I", page, 8)[0]
        if version != FILE_VERSION:
            raise ValueError(f"the ring's version is {version}, this reader knows {FILE_VERSION}")
        body = page[: cls.size() - 4]
        if struct.unpack_from("<I", page, len(body))[0] != zlib.crc32(body):
            raise ValueError("the header's CRC does not match")
        (_, _, _, level, _, pid, nonce, created, offset, ticks, boot, namespace, identity_crc) = cls._FIXED.unpack_from(
            body
        )
        sizes = _LAYOUT.unpack_from(body, cls._FIXED.size)
        layout = RingLayout(**dict(zip((field.name for field in fields(RingLayout)), sizes, strict=True)))
        if problem := layout.problem():
            raise ValueError(problem)
        return cls(
            layout=layout,
            writer=WriterProcess(pid=pid, start_ticks=ticks, boot_id=boot, pid_namespace=namespace),
            level=level.rstrip(b"\0").decode("ascii"),
            nonce=nonce,
            created_ns=created,
            wall_minus_monotonic_ns=offset,
            identity_crc=identity_crc,
        )


@dataclass(frozen=True, slots=True)
class Record:
    """One whole record as it was found. ``offset`` is its place in the bytes that were scanned."""

    sequence: int
    kind: int
    payload: bytes
    offset: int


def encode_record(nonce: int, sequence: int, kind: int, *payload: bytes) -> bytes:
    """A record's bytes, padded to a multiple of 8. A payload may come in pieces."""
    length = sum(map(len, payload))
    crc = zlib.crc32(_CHECKED.pack(length, sequence, kind), nonce)
    for piece in payload:
        crc = zlib.crc32(piece, crc)
    return b"".join((_RECORD.pack(RECORD_MAGIC, length, sequence, kind, crc), *payload, bytes(-length % 8)))


def decode_record(area: bytes, offset: int, nonce: int) -> Record | None:
    """The record at ``offset``, or None if there is no whole one."""
    if offset + RECORD_HEAD > len(area):
        return None
    magic, length, sequence, kind, crc = _RECORD.unpack_from(area, offset)
    begin = offset + RECORD_HEAD
    if magic != RECORD_MAGIC or length > len(area) - begin:
        return None
    payload = area[begin : begin + length]
    if zlib.crc32(payload, zlib.crc32(_CHECKED.pack(length, sequence, kind), nonce)) != crc:
        return None
    return Record(sequence, kind, payload, offset)


def scan_records(area: bytes, nonce: int) -> Iterator[Record]:
    """Every whole record in the ring's bytes, in the order of their places (not of their sequence)."""
    offset = area.find(RECORD_MAGIC)
    while offset >= 0:
        record = decode_record(area, offset, nonce) if offset % 8 == 0 else None
        step = 1 if record is None else RECORD_HEAD + len(record.payload)
        if record is not None:
            yield record
        offset = area.find(RECORD_MAGIC, offset + step)


def runs(records: list[Record]) -> list[list[Record]]:
    """The records as runs without a gap in their sequence, the newest run first; each run ascends."""
    unique = {record.sequence: record for record in records}
    found: list[list[Record]] = []
    for sequence in sorted(unique):
        if found and found[-1][-1].sequence == sequence - 1:
            found[-1].append(unique[sequence])
        else:
            found.append([unique[sequence]])
    return found[::-1]


class RingFile:
    """The writing side: one mapped file, appended to by one process.

    Raises:
        FileExistsError: something is at ``path`` already; a ring is never overwritten.
        OSError: no room on the disk for the whole file (found out here, so that a full disk is never a SIGBUS later).
        ValueError: sizes outside their limits.
    """

    def __init__(self, path: str | os.PathLike[str], header: RingHeader, identity: bytes) -> None:
        if sys.byteorder != "little":
            raise ValueError("the flight recorder writes little-endian words and this machine is big-endian")
        layout = header.layout
        if problem := layout.problem():
            raise ValueError(problem)
        self.layout = layout
        self.nonce = header.nonce
        self.sequence = 0
        self.written = 0  # bytes of records since the file began
        self._position = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, layout.file_bytes)
            header.writer.lock(self._fd)
            self.map = mmap.mmap(self._fd, layout.file_bytes)
        except BaseException:
            os.close(self._fd)
            os.unlink(path)
            raise
        self.words = memoryview(self.map).cast("Q")
        # Every page is touched now: the first write to a page costs more than a whole step should.
        for at in (*range(layout.failures_at, layout.slab_at, PAGE), *range(layout.ring_at, layout.file_bytes, PAGE)):
            self.map[at] = 0
        self.map[layout.identity_at : layout.identity_at + len(identity)] = identity
        for number in range(len(COUNTERS)):
            self.words[_COUNTERS_AT // 8 + number] = WORD_PRIME
        page = header.pack()
        self.map[: len(page)] = page

    def append(self, kind: int, *payload: bytes) -> bool:
        """Write one record. A record that could push everything else out of the ring is dropped, and False returned.

        A dropped record still uses up a sequence number: a reader must see that something is missing.
        """
        data = encode_record(self.nonce, self.sequence, kind, *payload)
        self.sequence += 1
        size = len(data)
        if size > self.layout.ring_bytes // 4:
            self.count("records_dropped")
            return False
        position = self._position
        if position + size > self.layout.ring_bytes:
            position = 0  # what is left of the old lap behind it keeps its older sequence numbers
        at = self.layout.ring_at + position
        self._position = position + size
        self.written += size
        self.map[at : at + size] = data
        return True

    def write_keyframe(self, number: int, payload: bytes) -> bool:
        """Write keyframe ``number`` into the area that the one before it does not use. False if it does not fit."""
        data = encode_record(self.nonce, number, KEYFRAME, payload)
        if len(data) > self.layout.keyframe_bytes:
            self.count("keyframes_dropped")
            return False
        at = self.layout.keyframes_at + number % KEYFRAME_AREAS * self.layout.keyframe_bytes
        self.map[at : at + len(data)] = data
        return True

    def write_failure(self, number: int, payload: bytes) -> None:
        """Keep failure ``number`` where the ring's wrapping does not reach it. The last few are kept."""
        data = encode_record(self.nonce, number, FAILURE, payload)
        at = self.layout.failures_at + number % FAILURE_SLOTS * FAILURE_BYTES
        self.map[at : at + len(data)] = data

    def count(self, counter: str) -> None:
        """Add one to a named counter of things that could not be recorded."""
        self.words[_COUNTERS_AT // 8 + COUNTERS.index(counter)] += WORD_PRIME

    def flush(self) -> None:
        """Push the file to the disk: needed against a power loss only, not against the process's death."""
        self.map.flush()

    def close(self, *, clean: bool) -> None:
        """Unmap the file. It stays where it is. ``clean`` says that the writer ended on purpose."""
        if clean:
            self.words[_CLOSED_AT // 8] = CLEAN
        self.words.release()
        self.map.close()
        os.close(self._fd)


def read_closed(page: bytes) -> bool:
    """Whether the writer said that it shut down on purpose."""
    return bool(struct.unpack_from("<Q", page, _CLOSED_AT)[0] == CLEAN)


def read_counters(page: bytes) -> dict[str, int | None]:
    """The counters of what could not be recorded; None for one that is damaged."""
    words = struct.unpack_from(f"<{len(COUNTERS)}Q", page, _COUNTERS_AT)
    return {
        name: word // WORD_PRIME - 1 if word and word % WORD_PRIME == 0 else None
        for name, word in zip(COUNTERS, words, strict=True)
    }
