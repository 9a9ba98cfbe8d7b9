"""The structure of a v0.9.3 file as it stands on disk, for people: every field with offset, length, type and name.

Works on damaged files: it goes as far as the bytes allow and then says why it stopped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from dumps.errors import DumpError
from dumps.json_form import DIGEST_BYTES, LE32_FIELDS
from dumps.limits import Limits
from dumps.schema import state_pb2 as pb
from dumps.schema.container import check_prefix, read_container
from dumps.schema.layout import MAGIC, MAX_PADDING, PREFIX
from dumps.schema.seals import check_seal
from dumps.schema.wire import FIXED32, FIXED64, LEN, VARINT, WireField, read_varint, scan
from dumps.tensors import from_le32
from dumps.text import printable

_PREVIEW = 16
_PREVIEW_CHARS = 80
_BULK = frozenset({"pplx.dump.v0_9.Section.data"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RawNode:
    """One field, or a run of ``skipped`` like ones that are not shown.

    ``offset`` is that of its tag, ``length`` the bytes from there to its end; ``depth`` 0 is the top level. ``value``
    is safe to print.
    """

    offset: int
    length: int
    depth: int
    name: str
    number: int | None = None
    wire: str = ""
    value: str = ""
    skipped: int = 0


def raw_structure(data: memoryview, *, most_alike: int | None = 5) -> Iterator[RawNode]:
    """Yield the nodes of a file in file order, children after their parent.

    Of a run of fields with the same number at one place only the first ``most_alike`` are shown, None for all. Raises
    `DumpError` where the bytes stop being a dump, after all nodes before it.
    """
    magic = bytes(data[: len(MAGIC)])
    shown = printable(magic.decode("latin-1"))
    yield RawNode(offset=0, length=len(magic), depth=0, name="magic", wire="bytes", value=f"{shown} ({magic.hex(' ')})")
    version = bytes(data[len(MAGIC) : len(PREFIX)])
    if version:
        value = f"{int.from_bytes(version, 'big'):#06x}" + (" (v0.9.3)" if PREFIX.endswith(version) else "")
        yield RawNode(offset=4, length=len(version), depth=0, name="version", wire="big endian", value=value)
    check_prefix(data)
    yield from _message(data, len(PREFIX), len(data), pb.RuntimeState.DESCRIPTOR, 0, most_alike)  # type: ignore[arg-type]


def check_seals(data: memoryview, limits: Limits) -> tuple[int, int, DumpError | None]:
    """Seals that hold, seals that the file has, and the first problem of either the container or a seal."""
    container = read_container(data, limits)
    good = 0
    for seal in container.seals:
        try:
            check_seal(data, seal)
            good += 1
        except DumpError as error:
            container.problem = container.problem or error
    return good, len(container.seals), container.problem


def _message(
    data: memoryview, start: int, end: int, kind: Descriptor, depth: int, most_alike: int | None
) -> Iterator[RawNode]:
    number, alike, hidden_from, at = 0, 0, start, start
    for wire in scan(data, start, end):
        if wire.number != number:
            yield from _hidden(hidden_from, at, alike, most_alike, kind.fields_by_number.get(number), number, depth)
            number, alike = wire.number, 0
        alike += 1
        at = wire.end
        if most_alike is None or alike <= most_alike:
            yield from _field(data, wire, kind.fields_by_number.get(number), depth, most_alike)
            hidden_from = wire.end
    yield from _hidden(hidden_from, at, alike, most_alike, kind.fields_by_number.get(number), number, depth)


def _hidden(
    start: int, end: int, alike: int, most_alike: int | None, known: FieldDescriptor | None, number: int, depth: int
) -> Iterator[RawNode]:
    """The node that stands for what was not shown of a run of ``alike`` fields, if any was not."""
    if most_alike is None or alike <= most_alike:
        return
    yield RawNode(
        offset=start,
        length=end - start,
        depth=depth,
        name=known.name if known else "unknown",
        number=number,
        value=f"{alike - most_alike} more",
        skipped=alike - most_alike,
    )


def _field(
    data: memoryview, wire: WireField, known: FieldDescriptor | None, depth: int, most_alike: int | None
) -> Iterator[RawNode]:
    nested = known.message_type if known is not None and wire.wire_type == LEN else None
    yield RawNode(
        offset=wire.tag,
        length=wire.end - wire.tag,
        depth=depth,
        name=known.name if known else "unknown",
        number=wire.number,
        wire=wire.wire_name,
        value=nested.name if nested else _value(data, wire, known),
    )
    if nested is not None:
        try:
            yield from _message(data, wire.value, wire.end, nested, depth + 1, most_alike)
        except DumpError as error:
            # The top level goes on: the extent of this field is known, whatever is in it.
            name = "malformed"
            yield RawNode(offset=error.offset or wire.value, length=0, depth=depth + 1, name=name, value=error.message)


def _value(data: memoryview, wire: WireField, known: FieldDescriptor | None) -> str:
    if wire.wire_type == VARINT:
        return _varint(read_varint(data, wire.value, wire.end)[0], known)
    raw = data[wire.value : wire.end]
    if wire.wire_type in (FIXED32, FIXED64):
        return _fixed(bytes(raw), known)
    full_name = known.full_name if known else ""
    if full_name in LE32_FIELDS and len(raw) % 4 == 0:
        ids = ", ".join(map(str, from_le32(bytes(raw[: 4 * _PREVIEW]))))
        return f"{len(raw) // 4} int32: [{ids}{', ...' if len(raw) > 4 * _PREVIEW else ''}]"
    if known is not None and known.type == FieldDescriptor.TYPE_STRING:
        text = bytes(raw[: 4 * _PREVIEW_CHARS]).decode("utf-8", errors="replace")
        return f'"{printable(text, _PREVIEW_CHARS)}"'
    if known is not None and known.type not in (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE):
        return f"{len(raw)} bytes, packed: {_packed(raw, known)}"
    if full_name in DIGEST_BYTES:
        return f"{len(raw) // DIGEST_BYTES[full_name]} digests"
    if raw and len(raw) <= MAX_PADDING and not any(raw):
        return f"{len(raw)} zeros"
    note = ", payload" if full_name in _BULK else ""
    preview = bytes(raw[:_PREVIEW]).hex(" ") + (" ..." if len(raw) > _PREVIEW else "")
    return f"{len(raw)} bytes{note}" + (f": {preview}" if raw else "")


def _varint(value: int, known: FieldDescriptor | None) -> str:
    if known is None:
        return str(value)
    if known.type == FieldDescriptor.TYPE_BOOL:
        return "true" if value else "false"
    if known.enum_type is not None:
        named = known.enum_type.values_by_number.get(value)
        return f"{value} ({named.name})" if named else str(value)
    return str(value)


def _fixed(raw: bytes, known: FieldDescriptor | None) -> str:
    kind = known.type if known else None
    formats = {
        FieldDescriptor.TYPE_DOUBLE: "<d",
        FieldDescriptor.TYPE_FLOAT: "<f",
        FieldDescriptor.TYPE_SFIXED64: "<q",
        FieldDescriptor.TYPE_FIXED64: "<Q",
    }
    form = formats.get(kind) if kind is not None else None
    if form is None or struct.calcsize(form) != len(raw):
        return f"{int.from_bytes(raw, 'little'):#x}"
    return str(struct.unpack(form, raw)[0])


def _packed(raw: memoryview, known: FieldDescriptor) -> str:
    at = 0
    values: list[str] = []
    try:
        while at < len(raw) and len(values) < _PREVIEW:
            value, at = read_varint(raw, at, len(raw))
            values.append(str(value))
    except DumpError:
        return "malformed"
    return f"[{', '.join(values)}{', ...' if at < len(raw) else ''}]"
