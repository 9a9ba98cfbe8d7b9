"""Reads a ring into memory, while its writer lives or after its death, and trusts nothing in it."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dumps.errors import BadMagic, CorruptDump, DumpError, UnsupportedVersion
from dumps.record import ring
from dumps.record.records import KeyframeRecord, decode_json, decode_keyframe
from dumps.record.ring import Record, RingHeader, RingLayout
from dumps.record.slab import SLOT_HEAD, Slot, read_slot

NOT_A_RING = "Pass a flight recorder's file (*.ring), or a torn dump (*.pplx)."
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not hold us up
DAMAGED = "Copy the file again from its source; if the disk is bad, nothing else can be read from it."


@dataclass(frozen=True, slots=True, kw_only=True)
class RingImage:
    """What a ring holds. ``runs`` are its records without gaps, newest run first.

    ``closed`` says that the writer shut down on purpose, ``alive`` that it still ran when the image was read.
    """

    path: Path
    header: RingHeader
    identity: Mapping[str, Any]
    closed: bool
    alive: bool
    counters: Mapping[str, int | None]
    runs: list[list[Record]]
    keyframes: list[tuple[KeyframeRecord, int]]
    failures: list[dict[str, Any]]
    damaged_failures: int
    slots: dict[int, Slot]


def is_ring(path: Path) -> bool:
    """Whether a regular file is at ``path`` that begins as a ring does. Raises OSError."""
    fd = os.open(path, _READ_FLAGS)
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode) and os.pread(fd, len(ring.FILE_MAGIC), 0) == ring.FILE_MAGIC
    finally:
        os.close(fd)


def read_ring(path: str | os.PathLike[str]) -> RingImage:
    """Read a ring.

    Of one that is being written, the image is a consistent state of a moment during the call: the parts are read in an
    order in which a later part can only know more than an earlier one, and what an earlier part does not know is cut.

    Raises:
        DumpError: not a ring, another version, damaged where it cannot be read around, or not readable at all.
    """
    path = Path(path)
    try:
        fd = os.open(path, _READ_FLAGS)
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror}") from error
    try:
        return _read(fd, path)
    except OSError as error:
        raise CorruptDump(f"{path}: {error.strerror}", remedy=DAMAGED) from error
    finally:
        os.close(fd)


def _read(fd: int, path: Path) -> RingImage:
    header, page = _read_header(fd, path)
    layout = header.layout
    facts = _pread(fd, layout.identity_bytes, layout.identity_at)
    if zlib.crc32(facts) != header.identity_crc:
        raise CorruptDump(
            f"{path}: the part that says which model and engine this was is damaged",
            offset=layout.identity_at,
            remedy=DAMAGED,
        )
    try:
        identity = decode_json(facts)
        keyframes = _read_keyframes(fd, header)
        records = list(ring.scan_records(_pread(fd, layout.ring_bytes, layout.ring_at), header.nonce))
        slots = _read_slots(fd, header)
        failures, damaged_failures = _read_failures(fd, header, records)
    except ValueError as error:
        raise CorruptDump(f"{path}: {error}", remedy=DAMAGED) from error
    return RingImage(
        path=path,
        header=header,
        identity=identity,
        closed=ring.read_closed(page),
        alive=not ring.read_closed(page) and header.writer.lives(fd),
        counters=ring.read_counters(page),
        runs=ring.runs(records),
        keyframes=keyframes,
        failures=failures,
        damaged_failures=damaged_failures,
        slots=slots,
    )


def _read_header(fd: int, path: Path) -> tuple[RingHeader, bytes]:
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise BadMagic(f"{path} is not a regular file", remedy=NOT_A_RING)
    page = os.pread(fd, ring.PAGE, 0)
    if page[: len(ring.FILE_MAGIC)] != ring.FILE_MAGIC:
        raise BadMagic(f"{path} is not a flight recorder's file", offset=0, remedy=NOT_A_RING)
    if len(page) < ring.PAGE:
        raise CorruptDump(f"{path} ends within its first page", offset=len(page), remedy=DAMAGED)
    version = int.from_bytes(page[8:12], "little")
    if version != ring.FILE_VERSION:
        raise UnsupportedVersion(f"{path}: ring version {version}, this reader knows {ring.FILE_VERSION}", offset=8)
    try:
        header = RingHeader.unpack(page)
    except ValueError as error:
        raise CorruptDump(f"{path}: {error}", offset=0, remedy=DAMAGED) from error
    if info.st_size != header.layout.file_bytes:
        raise CorruptDump(
            f"{path} has {info.st_size} bytes, its header says {header.layout.file_bytes}",
            offset=min(info.st_size, header.layout.file_bytes),
            remedy=DAMAGED,
        )
    return header, page


def _read_keyframes(fd: int, header: RingHeader) -> list[tuple[KeyframeRecord, int]]:
    layout = header.layout
    found: list[tuple[KeyframeRecord, int]] = []
    for number in range(ring.KEYFRAME_AREAS):
        area = _pread(fd, layout.keyframe_bytes, layout.keyframes_at + number * layout.keyframe_bytes)
        record = ring.decode_record(area, 0, header.nonce)
        if record is not None:
            found.append(decode_keyframe(record.payload))
    return sorted(found, key=lambda pair: pair[1])


def _read_slots(fd: int, header: RingHeader) -> dict[int, Slot]:
    layout: RingLayout = header.layout
    slots: dict[int, Slot] = {}
    for number in range(layout.slots):
        at = layout.slab_at + number * layout.slot_bytes
        head = _pread(fd, SLOT_HEAD, at)
        if not any(head):
            continue
        slot = read_slot(_pread(fd, layout.slot_bytes, at), layout, header.nonce)
        # A slot that was given to another request while it was read may hold tokens of both.
        if slot is not None and _pread(fd, SLOT_HEAD, at) == head:
            slots[slot.serial] = slot
    return slots


def _read_failures(fd: int, header: RingHeader, records: list[Record]) -> tuple[list[dict[str, Any]], int]:
    """Every failure known, in order: the last few from their own area, older ones as far as the ring has them.

    Also how many places of that area are written and not whole.
    """
    found: dict[int, dict[str, Any]] = {}
    damaged = 0
    payloads = [record.payload for record in records if record.kind == ring.FAILURE]
    for number in range(ring.FAILURE_SLOTS):
        area = _pread(fd, ring.FAILURE_BYTES, header.layout.failures_at + number * ring.FAILURE_BYTES)
        record = ring.decode_record(area, 0, header.nonce)
        if record is not None:
            payloads.append(record.payload)
        damaged += record is None and any(area[: ring.RECORD_HEAD])
    for payload in payloads:
        facts = decode_json(payload)
        found[int(facts.get("number", 0))] = facts
    return [found[number] for number in sorted(found)], damaged


def _pread(fd: int, size: int, offset: int) -> bytes:
    """Exactly ``size`` bytes: one call reads at most 2 GiB."""
    parts: list[bytes] = []
    while size > 0:
        part = os.pread(fd, size, offset)
        if not part:
            raise OSError(0, "the file became shorter while it was read")
        parts.append(part)
        size -= len(part)
        offset += len(part)
    return b"".join(parts)
