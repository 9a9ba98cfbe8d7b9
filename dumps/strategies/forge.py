"""Forged files: every seal holds, and what is sealed is wrong. This is what somebody does who knows the format.

Random damage ends at the first checksum. A forgery gets behind it, to the checks of fields, lengths and sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import zstandard
from google.protobuf.message import DecodeError

from dumps.schema import state_pb2 as pb
from dumps.schema.layout import PADDING, PREFIX, SEALS, SECTIONS, TRAILER
from dumps.schema.seals import RunningSeal, encode_directory, encode_trailer
from dumps.schema.wire import LEN, encode_tag, encode_varint, scan
from dumps.strategies.damage import EDITS, Draw


@dataclass(frozen=True, slots=True)
class Field:
    """A top-level field. ``length`` is what it claims, None for what it is."""

    number: int
    wire_type: int
    value: bytes
    length: int | None = None

    @property
    def encoded(self) -> bytes:
        tag = encode_tag(self.number, self.wire_type)
        if self.wire_type != LEN:
            return tag + self.value
        return tag + encode_varint(len(self.value) if self.length is None else self.length) + self.value


Forgery = Callable[[list[Field], Draw], list[Field]]

_BOMB_BYTES = 1 << 20
_PACKED_ZEROS = zstandard.ZstdCompressor(level=1).compress(bytes(_BOMB_BYTES))
_LIES = (0, 1, 127, 2**14, 2**20, 2**28, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
_MOST_EMPTY = 300


def forged(data: bytes, draw: Draw) -> bytes:
    """A whole dump, changed in one or two places and sealed again. Raises `DumpError` for bytes that are no dump."""
    fields = fields_of(data)
    for _ in range(draw(1, 2)):
        fields = FORGERIES[draw(0, len(FORGERIES) - 1)](fields, draw)
    return sealed(fields)


def fields_of(data: bytes) -> list[Field]:
    """What is to be sealed: all fields but seals and trailer. Raises `DumpError` for bytes that are no dump."""
    return [
        Field(one.number, one.wire_type, data[one.value : one.end])
        for one in scan(memoryview(data), len(PREFIX))
        if one.number not in (SEALS, TRAILER)
    ]


def sealed(fields: list[Field]) -> bytes:
    """A file of these fields with good seals, a directory of what looks like sections, and a trailer."""
    seal, out, entries = RunningSeal(), bytearray(), []

    def put(piece: bytes) -> None:
        out.extend(piece)
        seal.update(piece)

    put(PREFIX)
    for number, field in enumerate(fields):
        encoded = field.encoded
        if field.number == SECTIONS:
            entries.append((*_label(field), len(out), len(encoded)))
        put(encoded)
        bulk_follows = number + 1 < len(fields) and fields[number + 1].number in (SECTIONS, PADDING)
        if field.number == SECTIONS or (bulk_follows and field.number != PADDING):
            put(seal.seal(len(out)))
    last = len(out)
    out += seal.seal(last, encode_directory(entries))
    return bytes(out + encode_trailer(last))


def repeat(fields: list[Field], draw: Draw) -> list[Field]:
    """A field stands twice."""
    at = draw(0, len(fields) - 1)
    return [*fields[: at + 1], *fields[at:]]


def reorder(fields: list[Field], draw: Draw) -> list[Field]:
    """Two fields change places."""
    changed, one, other = list(fields), draw(0, len(fields) - 1), draw(0, len(fields) - 1)
    changed[one], changed[other] = changed[other], changed[one]
    return changed


def leave_out(fields: list[Field], draw: Draw) -> list[Field]:
    at = draw(0, len(fields) - 1)
    return [*fields[:at], *fields[at + 1 :]] if len(fields) > 1 else fields


def edit_inside(fields: list[Field], draw: Draw) -> list[Field]:
    """Random damage to a field's value; its length is right again."""
    at = draw(0, len(fields) - 1)
    value = EDITS[draw(0, len(EDITS) - 1)](fields[at].value or b"\0", draw)
    return [*fields[:at], replace(fields[at], value=value), *fields[at + 1 :]]


def lie_about_length(fields: list[Field], draw: Draw) -> list[Field]:
    """A length that is not the field's."""
    at = draw(0, len(fields) - 1)
    lie = _LIES[draw(0, len(_LIES) - 1)]
    return [*fields[:at], replace(fields[at], length=lie), *fields[at + 1 :]]


def lie_about_section(fields: list[Field], draw: Draw) -> list[Field]:
    """A section that claims another size, shape or part than it has."""
    section = pb.Section(kind="kv-contents", encoding=("raw", "zstd", "lz4")[draw(0, 2)], data=b"0123456789abcdef")
    section.raw_size, section.part = _LIES[draw(0, len(_LIES) - 1)], draw(0, 1)
    if draw(0, 1):
        section.dtype = ("float32", "int8", "object")[draw(0, 2)]
        section.shape.extend(_LIES[draw(0, len(_LIES) - 1)] for _ in range(draw(0, 3)))
    return [*fields, _section(section)]


def bomb(fields: list[Field], draw: Draw) -> list[Field]:
    """A few bytes that unpack to a MiB: more than they claim, fewer, or just as many."""
    claimed = _BOMB_BYTES + draw(-1, 1) * draw(0, _BOMB_BYTES)
    section = pb.Section(encoding="zstd", raw_size=claimed, data=_PACKED_ZEROS)
    bombs = []
    for number in range(draw(1, 3)):
        section.kind = f"bomb-{number}"
        bombs.append(_section(section))
    return [*fields, *bombs]


def many_empty(fields: list[Field], draw: Draw) -> list[Field]:
    """Two bytes for a whole message, hundreds of times."""
    number = (pb.RuntimeState.REQUESTS_FIELD_NUMBER, pb.RuntimeState.STEPS_FIELD_NUMBER)[draw(0, 1)]
    return [*fields[:1], *[Field(number, LEN, b"")] * draw(1, _MOST_EMPTY), *fields[1:]]


FORGERIES: tuple[Forgery, ...] = (
    repeat,
    reorder,
    leave_out,
    edit_inside,
    lie_about_length,
    lie_about_section,
    bomb,
    many_empty,
)


def _section(section: pb.Section) -> Field:
    return Field(SECTIONS, LEN, section.SerializeToString(deterministic=True))


def _label(field: Field) -> tuple[str, int]:
    section = pb.Section()
    try:
        section.ParseFromString(field.value)
    except DecodeError:  # no reader gets as far as its label
        return "", 0
    return section.kind, section.part
