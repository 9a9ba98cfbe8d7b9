"""What a head would cost once parsed, found out before it is.

Two bytes can be a whole empty `Request`, which takes some 250 bytes as an object. Walking all fields to count them
costs microseconds each, so it is the last of three steps: a head too small to matter, then a bound from counting bytes
that could be a tag, then the walk.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from dumps.errors import CorruptDump, LimitExceeded, TornDump
from dumps.limits import Limits
from dumps.schema.layout import STATE_FIELDS
from dumps.schema.wire import LEN, WireField, scan

_MESSAGE_MEMORY = 288
"""Bytes of the largest empty message (`Request`) and its place in a list, measured with upb."""
_SCALAR_MEMORY = 32
_PACKED_GROWTH = 16
"""A list of one-byte varints, with what growing it leaves behind; 10.7 was measured."""
_COUNT_STEP = 16 * 1024 * 1024


def check_bounds(data: memoryview, fields: Iterable[WireField], limits: Limits) -> None:
    """Raises `LimitExceeded` when the top-level ``fields`` hold a string or would take memory beyond ``limits``.

    Raises `CorruptDump` for bytes below the top level that are not protobuf, where it looks at them.
    """
    fields = list(fields)
    whole = _upper_bound(data, fields, limits.head_memory) > limits.head_memory
    walk = _Walk(data, limits)
    for field in fields:
        if whole or field.end - field.value > limits.string_bytes:
            try:
                walk.visit(field, STATE_FIELDS.get(field.number))
            except TornDump as error:
                raise CorruptDump(f"inside field {field.number}: {error.message}", offset=error.offset) from None


def _upper_bound(data: memoryview, fields: list[WireField], enough: int) -> int:
    """Bytes that ``fields`` cannot exceed when parsed; rough where it is below ``enough`` at once."""
    size = sum(field.end - field.tag for field in fields)
    bound = size * _PACKED_GROWTH + size // 2 * _MESSAGE_MEMORY
    if not fields or bound <= enough:
        return bound
    # Whatever its length, the tag of a length-delimited field starts with a byte whose low three bits are LEN.
    start, end = fields[0].tag, fields[-1].end
    possible_tags = 0
    for at in range(start, end, _COUNT_STEP):
        step = np.frombuffer(data[at : min(at + _COUNT_STEP, end)], dtype=np.uint8)
        possible_tags += int(np.count_nonzero((step & 7) == LEN))
    return size * _PACKED_GROWTH + possible_tags * _MESSAGE_MEMORY


class _Walk:
    def __init__(self, data: memoryview, limits: Limits) -> None:
        self.data = data
        self.limits = limits
        self.memory = 0

    def visit(self, field: WireField, known: FieldDescriptor | None) -> None:
        size = field.end - field.value
        nested: Descriptor | None = None
        if known is None or field.wire_type != LEN or known.type == FieldDescriptor.TYPE_BYTES:
            self.memory += size + _SCALAR_MEMORY
        elif known.type == FieldDescriptor.TYPE_MESSAGE:
            self.memory += _MESSAGE_MEMORY
            nested = known.message_type
        elif known.type == FieldDescriptor.TYPE_STRING:
            self.memory += size + _SCALAR_MEMORY
            if size > self.limits.string_bytes:
                limit = self.limits.string_bytes
                raise LimitExceeded(f"a string of {size} bytes, more than {limit} (string_bytes)", offset=field.tag)
        else:
            self.memory += size * _PACKED_GROWTH + _SCALAR_MEMORY
        if self.memory > self.limits.head_memory:
            raise LimitExceeded(
                f"the head would take more than {self.limits.head_memory} bytes of memory (head_memory)",
                offset=field.tag,
            )
        if nested is not None:
            numbers = nested.fields_by_number
            for inner in scan(self.data, field.value, field.end):
                self.visit(inner, numbers.get(inner.number))
