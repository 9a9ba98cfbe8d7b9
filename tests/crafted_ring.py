"""Rings no recorder would write: every checksum holds, and what they claim is for the test to choose."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dumps.record import slab
from dumps.record.process import WriterProcess
from dumps.record.records import StepStart, encode_begin
from dumps.record.ring import BEGIN, KEYFRAME, WORD_PRIME, RingHeader, RingLayout, encode_record

NONCE = 7


def craft_ring(
    path: Path,
    *,
    num_blocks: int = 8,
    identity: bytes | None = None,
    step: StepStart | None = None,
    keyframe: bytes | None = None,
    keyframe_bytes: int = 64,
    slots: Sequence[bytes] = (),
    ring_bytes: int = 1 << 20,
) -> Path:
    """A ring of a dead writer with at most one step, and slots of the smallest size."""
    facts: Mapping[str, Any] = {"engine": {"num_blocks": num_blocks, "block_size": 16}}
    known = json.dumps(facts).encode() if identity is None else identity
    layout = RingLayout(
        identity_bytes=len(known),
        slots=max(len(slots), 1),
        slot_tokens=0,
        slot_header_bytes=256,
        keyframe_bytes=keyframe_bytes,
        ring_bytes=ring_bytes,
    )
    header = RingHeader(
        layout=layout,
        writer=WriterProcess(pid=1, start_ticks=1, boot_id=b"\1" * 16, pid_namespace=0),
        level="tokens",
        nonce=NONCE,
        created_ns=1,
        wall_minus_monotonic_ns=0,
        identity_crc=zlib.crc32(known),
    )
    pieces = [(0, header.pack()), (layout.identity_at, known)]
    pieces += [(layout.slab_at + number * layout.slot_bytes, slot) for number, slot in enumerate(slots)]
    if keyframe is not None:
        pieces.append((layout.keyframes_at, encode_record(NONCE, 0, KEYFRAME, keyframe)))
    if step is not None:
        pieces.append((layout.ring_at, encode_record(NONCE, 0, BEGIN, *encode_begin(step))))
    with path.open("wb") as file:
        file.truncate(layout.file_bytes)
        for offset, data in pieces:
            file.seek(offset)
            file.write(data)
    return path


def craft_slot(serial: int, num_prompt: int) -> bytes:
    """A slot that claims a prompt of ``num_prompt`` tokens and keeps none of them."""
    header = b'{"id":"a"}'
    fixed = (serial, len(header), num_prompt, 0, 0)
    crc = zlib.crc32(header, zlib.crc32(struct.pack("<5I", *fixed), NONCE))
    front = slab._SLOT.pack(slab.SLOT_MAGIC, *fixed, crc) + struct.pack("<Q", (num_prompt + 1) * WORD_PRIME)
    return front.ljust(slab._JSON_AT, b"\0") + header
