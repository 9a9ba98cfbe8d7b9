"""A state as plain JSON values: field names as in the schema, int32 lists as lists, digests as hex."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from dumps.errors import CorruptDump
from dumps.tensors import from_le32

LE32_FIELDS = frozenset(
    f"pplx.dump.v0_9.{name}"
    for name in (
        "Request.prompt_token_ids",
        "Request.output_token_ids",
        "Keyframe.free_blocks",
        "RunningRequest.block_table",
        "Scheduled.new_blocks",
        "PrefixHit.blocks",
        "KvCache.free_blocks",
        "KvCache.ref_counts",
        "KvCache.contents_blocks",
        "BlockTable.blocks",
    )
)
"""Fields of type bytes that hold little-endian int32 arrays."""

DIGEST_BYTES = {"pplx.dump.v0_9.Request.output_digests": 8}


def message_to_json(message: Message) -> dict[str, Any]:
    """``message`` as a dict for `json.dumps`. 64-bit integers become strings and NaN becomes "NaN", as protobuf's JSON
    mapping has it; bytes that are not int32 lists become hex."""
    document: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    _fix_bytes(message, document)
    return document


def bytes_to_json(full_name: str, value: bytes) -> list[int] | list[str] | str:
    """A bytes field by its full name: ids, digests, or hex for anything else and for a damaged list."""
    if full_name in LE32_FIELDS:
        try:
            return from_le32(value)
        except CorruptDump:
            return value.hex()
    step = DIGEST_BYTES.get(full_name)
    if step:
        return [value[at : at + step].hex() for at in range(0, len(value), step)]
    return value.hex()


def _fix_bytes(message: Message, document: dict[str, Any]) -> None:
    for field, value in message.ListFields():
        if field.type == field.TYPE_BYTES:
            name = field.full_name
            document[field.name] = (
                [bytes_to_json(name, one) for one in value] if field.is_repeated else bytes_to_json(name, value)
            )
        elif field.type == field.TYPE_MESSAGE:
            inner = document[field.name]
            if field.is_repeated:
                for one, inner_one in zip(value, inner, strict=True):
                    _fix_bytes(one, inner_one)
            else:
                _fix_bytes(value, inner)
