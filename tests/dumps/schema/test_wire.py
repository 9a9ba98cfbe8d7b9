"""The scanner finds what the stock decoder finds."""

from __future__ import annotations

import pytest
from google.protobuf import empty_pb2, unknown_fields
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from dumps.errors import CorruptDump, DumpError, TornDump
from dumps.schema.wire import FIXED32, FIXED64, LEN, VARINT, encode_tag, encode_varint, read_varint, scan

START_GROUP = 3
Fields = list[tuple[int, int, int | bytes]]


def stock(data: bytes) -> Fields | None:
    """Fields as the stock decoder sees them; None when it refuses the bytes."""
    message = empty_pb2.Empty()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return None
    return [(f.field_number, f.wire_type, f.data) for f in unknown_fields.UnknownFieldSet(message)]  # type: ignore[attr-defined]


def ours(data: bytes) -> Fields | None:
    view = memoryview(data)
    fields: Fields = []
    try:
        for field in scan(view):
            raw = data[field.value : field.end]
            value: int | bytes = raw
            if field.wire_type == VARINT:
                value = read_varint(view, field.value, field.end)[0]
            elif field.wire_type != LEN:
                value = int.from_bytes(raw, "little")
            fields.append((field.number, field.wire_type, value))
    except DumpError:
        return None
    return fields


def refused_on_purpose(fields: Fields) -> bool:
    """The stock decoder takes groups and field number 0; we do not."""
    return any(number == 0 or wire_type == START_GROUP for number, wire_type, _ in fields)


def padded_varint(value: int, size: int) -> bytes:
    """``value`` in ``size`` bytes, more than it needs."""
    return bytes((value >> 7 * n) & 0x7F | (0x80 if n < size - 1 else 0) for n in range(size))


@st.composite
def messages(draw):
    """Bytes made of fields, some encoded in a longer way than needed."""
    out = b""
    for _ in range(draw(st.integers(0, 5))):
        number = draw(st.sampled_from([1, 2, 15, 16, 2047, 2**29 - 1]))
        wire_type = draw(st.sampled_from([VARINT, FIXED64, LEN, FIXED32]))
        tag = encode_tag(number, wire_type)
        out += padded_varint(number << 3 | wire_type, draw(st.integers(len(tag), 6)))
        if wire_type == VARINT:
            value = draw(st.integers(0, 2**64 - 1))
            out += padded_varint(value, draw(st.integers(len(encode_varint(value)), 11)))
        elif wire_type == LEN:
            payload = draw(st.binary(max_size=8))
            out += padded_varint(len(payload), draw(st.integers(1, 6))) + payload
        else:
            out += draw(st.binary(min_size=8, max_size=8))[: 8 if wire_type == FIXED64 else 4]
    return out


@given(st.one_of(st.binary(max_size=40), messages()))
@example(b"\x08" + b"\xff" * 9 + b"\x7f")  # a ten-byte varint with excess bits
@example(b"\x88\x80\x80\x80\x7f\x01")  # a tag beyond 32 bits
@example(b"\x0a\xff\xff\xff\xff\x0f")  # a length beyond 2 GiB
@example(b"\x00\x01")
@example(b"\x0b\x0c")
def test_same_fields_as_the_stock_decoder(data):
    theirs = stock(data)
    if theirs is not None and refused_on_purpose(theirs):
        assert ours(data) is None
    else:
        assert ours(data) == theirs


@given(messages(), st.data())
def test_a_growing_prefix_never_changes_fields_already_found(data, draws):
    whole = list(takeable(data))
    for end in range(len(data)):
        assert list(takeable(data[:end])) == [field for field in whole if field.end <= end]


def takeable(data: bytes):
    """Fields until the first error."""
    try:
        yield from scan(memoryview(data))
    except DumpError:
        return


@given(st.integers(0, 2**64 - 1))
def test_varints_come_back(value):
    encoded = encode_varint(value)
    assert read_varint(memoryview(encoded), 0, len(encoded)) == (value, len(encoded))


def test_a_scan_does_not_touch_what_lies_beyond_its_end():
    data = memoryview(b"\x08\x01\x10\x02")
    assert [field.number for field in scan(data, 0, 2)] == [1]
    with pytest.raises(TornDump):
        list(scan(data, 0, 3))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x0a\x05abc", TornDump),
        (b"\x09\x01", TornDump),
        (b"\x80", TornDump),
        (b"\x0a\xff\xff\xff\xff\x0f", CorruptDump),
        (b"\x0b", CorruptDump),
        (b"\x0c", CorruptDump),
        (b"\x0e", CorruptDump),
        (b"\x00\x00", CorruptDump),
    ],
)
def test_errors_name_the_offset_of_the_field(data, error):
    with pytest.raises(error) as caught:
        list(scan(memoryview(b"\x08\x01" + data)))
    assert caught.value.offset is not None
    assert caught.value.offset >= 2


def test_nested_fields_are_not_followed():
    """A scan is not recursive, so depth costs nothing."""
    data = b""
    for _ in range(5000):
        data = b"\x0a" + encode_varint(len(data)) + data
    assert len(list(scan(memoryview(data)))) == 1
