"""Constants of the file: what stands at which place."""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor

from dumps.schema import state_pb2 as pb
from dumps.schema.wire import FIXED64, LEN, encode_tag

MAGIC = b"PPLX"
VERSION = 0x0009
PREFIX = MAGIC + VERSION.to_bytes(2, "big")
"""The six bytes before the message. The stock decoder reads what follows them."""

STATE_FIELDS: dict[int, FieldDescriptor] = pb.RuntimeState.DESCRIPTOR.fields_by_number  # type: ignore[assignment]
SEALS = pb.RuntimeState.SEALS_FIELD_NUMBER
PADDING = pb.RuntimeState.PADDING_FIELD_NUMBER
SECTIONS = pb.RuntimeState.SECTIONS_FIELD_NUMBER
TRAILER = pb.RuntimeState.TRAILER_FIELD_NUMBER
CONTAINER = frozenset({SEALS, PADDING, SECTIONS, TRAILER})
"""Fields that make the file; all others are content."""

SEAL_TAG = encode_tag(SEALS, LEN)
PADDING_TAG = encode_tag(PADDING, LEN)
SECTION_TAG = encode_tag(SECTIONS, LEN)
SECTION_DATA_TAG = encode_tag(pb.Section.DATA_FIELD_NUMBER, LEN)
TRAILER_TAG = encode_tag(TRAILER, FIXED64)
TRAILER_BYTES = len(TRAILER_TAG) + 8

ALIGNMENT = 64
MAX_PADDING = 127
"""So that its length is one byte, and moving it does not move what follows."""
