"""The protobuf wire format, as much of it as a container needs: tags, varints, field extents. Nothing is decoded.

`scan` finds exactly the fields that the stock decoder finds in the same bytes, with two exceptions, both refused here:
groups (no schema of ours has any, and they would make a scan recursive) and field number 0 (which the protobuf
specification forbids and upb lets through).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dumps.errors import CorruptDump, TornDump

VARINT, FIXED64, LEN, START_GROUP, END_GROUP, FIXED32 = range(6)

MAX_LENGTH = 2**31 - 1
"""Stock decoders refuse a longer field."""

_MAX_VARINT_BYTES = 10
_MAX_TAG_BYTES = 5
_WIRE_NAMES = {VARINT: "varint", FIXED64: "fixed64", LEN: "length-delimited", FIXED32: "fixed32"}


class WireField(NamedTuple):
    """Extents of one field, as offsets into the scanned buffer.

    ``tag`` is where the field starts, ``value`` where its value (for length-delimited fields: its payload) starts, and
    ``end`` where the next field starts.
    """

    number: int
    wire_type: int
    tag: int
    value: int
    end: int

    @property
    def wire_name(self) -> str:
        return _WIRE_NAMES[self.wire_type]


def scan(data: memoryview, start: int = 0, end: int | None = None) -> Iterator[WireField]:
    """Yield the fields between ``start`` and ``end`` in file order. Reads tags and lengths, never payloads.

    Raises `TornDump` when a field runs past ``end`` and `CorruptDump` for bytes that cannot be a field; fields before
    that were yielded already.
    """
    stop = len(data) if end is None else end
    at = start
    while at < stop:
        field = read_field(data, at, stop)
        yield field
        at = field.end


def read_field(data: memoryview, at: int, stop: int) -> WireField:
    """The field whose tag is at ``at``, which lies before ``stop``. Errors as `scan`."""
    # Tags and lengths below 128 are most of all, and a call for each would double the time of a scan.
    tag, value = data[at], at + 1
    if tag >= 0x80:
        tag, value = read_varint(data, at, stop, limit=_MAX_TAG_BYTES)
    number, wire_type = tag >> 3, tag & 7
    if tag > 0xFFFF_FFFF or number == 0:
        raise CorruptDump(f"no field can have the tag {tag:#x}", offset=at)
    if wire_type == LEN:
        if value < stop and data[value] < 0x80:
            length, value = data[value], value + 1
        else:
            length, value = read_varint(data, value, stop, limit=_MAX_TAG_BYTES)
        if length > MAX_LENGTH:
            raise CorruptDump(f"field {number} claims {length} bytes, more than a field can have", offset=at)
        end = value + length
    elif wire_type == VARINT:
        end = read_varint(data, value, stop)[1]
    elif wire_type == FIXED64:
        end = value + 8
    elif wire_type == FIXED32:
        end = value + 4
    else:
        raise CorruptDump(f"field {number} has wire type {wire_type}, which no dump uses", offset=at)
    if end > stop:
        left = stop - value
        raise TornDump(f"the bytes end inside field {number}: it needs {end - value} bytes, {left} are left", offset=at)
    return WireField(number, wire_type, at, value, end)


def read_varint(data: memoryview, at: int, stop: int, *, limit: int = _MAX_VARINT_BYTES) -> tuple[int, int]:
    """The varint at ``at``, and the offset after it. At most ``limit`` bytes; a 64-bit value drops its excess bits."""
    value = 0
    for count in range(limit):
        if at + count >= stop:
            raise TornDump("the bytes end inside a varint", offset=at)
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + count + 1
    raise CorruptDump(f"a varint of more than {limit} bytes", offset=at)


def fixed64(data: memoryview, at: int) -> int:
    """The little-endian 64-bit integer at ``at``."""
    return int.from_bytes(data[at : at + 8], "little")


def encode_varint(value: int) -> bytes:
    """The canonical encoding of a non-negative ``value`` below 2**64."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_tag(number: int, wire_type: int) -> bytes:
    """The canonical tag of a field."""
    return encode_varint(number << 3 | wire_type)
