"""The slab: one slot per request, which keeps its header and tokens while the ring of steps goes on and wraps.

A slot is a header area and a token area. Header (JSON) and prompt are written once, under one CRC. Output tokens follow
in groups, each with its first position and a CRC, appended and never rewritten. A group waits until some tokens have
come together, since writing each token of 256 requests in each step would alone cost 40 us; until then the ring has
them. Positions count prompt and output tokens together.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dumps.record.records import decode_json
from dumps.record.ring import WORD_PRIME, RingFile, RingLayout

SLOT_MAGIC = 0x544F4C53  # "SLOT"
_SLOT = struct.Struct("<IIIIIII4x")  # magic, serial, JSON bytes, prompt tokens, prompt tokens kept, flags, CRC
SLOT_HEAD = _SLOT.size
_LENGTH_AT = SLOT_HEAD  # word: its tokens so far, plus 1
_ENDED_AT = SLOT_HEAD + 8  # how it ended; zeros while it lives
_ENDED = struct.Struct("<QII")  # step, bytes of "reason cause", CRC
_ENDED_TEXT = 80
_JSON_AT = _ENDED_AT + _ENDED.size + _ENDED_TEXT
_GROUP = struct.Struct("<III")  # first position, tokens, CRC
GROUP_TOKENS = 64  # tokens that make a group worth writing, and steps between two turns of a request

HIDDEN = 1  # the record level keeps no token ids
HEADER_CUT = 2  # the header did not fit and lost its optional parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A request as the slab has it.

    ``pieces`` are the token ids that were kept and are whole, each with the position of its first. ``length`` counts
    prompt and output tokens at the last group written; the ring knows of later ones. None where that word is damaged.
    """

    serial: int
    header: Mapping[str, Any]
    num_prompt: int
    ended: tuple[int, str, str] | None  # step, reason, cause
    pieces: Sequence[tuple[int, array[int]]]
    length: int | None
    hidden: bool
    header_cut: bool


class Slab:
    """The writing side. Slots of finished requests are taken again, the one that finished first before the others."""

    def __init__(self, file: RingFile, *, keep_tokens: bool) -> None:
        self.pending: dict[int, list[int]] = {}  # by serial: output tokens that are in no group yet
        self._file = file
        self._layout = file.layout
        self._keep_tokens = keep_tokens
        self._free = deque(range(file.layout.slots))
        self._slots: dict[int, _Cursor] = {}
        self._turns: list[dict[int, None]] = [{} for _ in range(GROUP_TOKENS)]
        self._rows: tuple[list[int], list[list[int]]] = ([], [])  # the last batch, and where its tokens wait

    @property
    def header_room(self) -> int:
        """Bytes that a header's JSON may take."""
        return self._layout.slot_header_bytes - _JSON_AT

    def add(self, serial: int, header: bytes, prompt: Sequence[int], *, cut: bool) -> None:
        """Give a request a slot. Without a free one it gets none, which is counted."""
        self.pending[serial] = []
        if not self._free:
            self._file.count("requests_without_slot")
            return
        slot = self._free.popleft()
        layout, num_prompt = self._layout, len(prompt)
        kept = array("I", prompt[: layout.slot_tokens] if self._keep_tokens else ()).tobytes()
        flags = (0 if self._keep_tokens else HIDDEN) | (HEADER_CUT if cut else 0)
        fixed = (serial, len(header), num_prompt, len(kept) // 4, flags)
        crc = zlib.crc32(kept, zlib.crc32(header, zlib.crc32(struct.pack("<5I", *fixed), self._file.nonce)))
        # The old request goes before the new one comes: a death in between leaves an empty slot, not a mixed one.
        data = self._file.map
        at = layout.slab_at + slot * layout.slot_bytes
        data[at : at + layout.slot_bytes] = bytes(layout.slot_bytes)
        tokens_at = at + layout.slot_header_bytes
        data[tokens_at : tokens_at + len(kept)] = kept
        data[at + _JSON_AT : at + _JSON_AT + len(header)] = header
        data[at : at + SLOT_HEAD] = _SLOT.pack(SLOT_MAGIC, *fixed, crc)
        self._slots[serial] = cursor = _Cursor(slot, at, num_prompt, tokens_at + len(kept), at + layout.slot_bytes)
        self._turns[serial % GROUP_TOKENS][serial] = None
        self._set(at + _LENGTH_AT, num_prompt)
        if self._keep_tokens and num_prompt * 4 > len(kept):
            self._cut(cursor)

    def draw(self, serials: list[int], tokens: list[int]) -> None:
        """Tokens that a step drew, -1 for a row that drew none. Rows of unknown requests are passed over.

        Most batches are the one before once more, so where each row's tokens go is looked up when the batch changes.
        """
        known, rows = self._rows
        if serials != known:
            try:
                rows = list(map(self.pending.__getitem__, serials))
            except KeyError:
                rows = [self.pending.get(serial, []) for serial in serials]
            self._rows = (list(serials), rows)
        if tokens and min(tokens) >= 0:
            for row, token in zip(rows, tokens, strict=False):
                row.append(token)
        else:
            for row, token in zip(rows, tokens, strict=False):
                if token >= 0:
                    row.append(token)

    def flush_turn(self, step: int) -> None:
        """Write the groups of those requests whose turn this step is."""
        pending = self.pending
        for serial in self._turns[step % GROUP_TOKENS]:
            if len(pending[serial]) >= GROUP_TOKENS:
                self._flush_one(serial)

    def flush(self) -> None:
        """Write everything that waits: done before the ring can wrap over it."""
        for serial, tokens in self.pending.items():
            if tokens:
                self._flush_one(serial)

    def finish(self, serial: int, step: int, reason: str, cause: str) -> None:
        """The request has ended: its slot may be taken again once all slots that ended earlier have been."""
        cursor = self._slots.get(serial)
        if cursor is not None:
            self._flush_one(serial)
            text = f"{reason} {cause}".encode("ascii", "replace")[:_ENDED_TEXT]
            ended = _ENDED.pack(step, len(text), _ended_crc(self._file.nonce, serial, step, text)) + text
            self._file.map[cursor.at + _ENDED_AT : cursor.at + _ENDED_AT + len(ended)] = ended
            del self._slots[serial], self._turns[serial % GROUP_TOKENS][serial]
            self._free.append(cursor.slot)
        self.pending.pop(serial, None)

    def _flush_one(self, serial: int) -> None:
        tokens = self.pending.get(serial)
        if not tokens:
            return
        cursor = self._slots.get(serial)
        if cursor is not None:
            if self._keep_tokens and not cursor.cut:
                ids = array("I", tokens).tobytes()
                end = cursor.write_at + _GROUP.size + len(ids)
                if end <= cursor.end:
                    crc = _group_crc(self._file.nonce, serial, cursor.length, ids)
                    group = _GROUP.pack(cursor.length, len(tokens), crc) + ids
                    self._file.map[cursor.write_at : end] = group
                    cursor.write_at = end
                else:
                    self._cut(cursor)
            cursor.length += len(tokens)
            self._set(cursor.at + _LENGTH_AT, cursor.length)
        tokens.clear()

    def _cut(self, cursor: _Cursor) -> None:
        cursor.cut = True
        self._file.count("token_lists_cut")

    def _set(self, at: int, value: int) -> None:
        self._file.words[at // 8] = (value + 1) * WORD_PRIME


@dataclass(slots=True)
class _Cursor:
    """Where a live request's slot is and how far it is written. All offsets are of the file."""

    slot: int
    at: int
    length: int
    write_at: int
    end: int
    cut: bool = False


def _group_crc(nonce: int, serial: int, position: int, ids: bytes) -> int:
    return zlib.crc32(ids, zlib.crc32(struct.pack("<II", serial, position), nonce))


def _ended_crc(nonce: int, serial: int, step: int, text: bytes) -> int:
    return zlib.crc32(text, zlib.crc32(struct.pack("<IQ", serial, step), nonce))


def read_slot(area: bytes, layout: RingLayout, nonce: int) -> Slot | None:
    """The request in one slot's bytes, or None if there is no whole one.

    Raises:
        ValueError: a header that passed its CRC and is not a JSON object.
    """
    magic, serial, header_bytes, num_prompt, num_kept, flags, crc = _SLOT.unpack_from(area)
    if magic != SLOT_MAGIC or header_bytes > layout.slot_header_bytes - _JSON_AT or num_kept > layout.slot_tokens:
        return None
    header = area[_JSON_AT : _JSON_AT + header_bytes]
    tokens_at = layout.slot_header_bytes
    kept = area[tokens_at : tokens_at + 4 * num_kept]
    fixed = struct.pack("<5I", serial, header_bytes, num_prompt, num_kept, flags)
    if zlib.crc32(kept, zlib.crc32(header, zlib.crc32(fixed, nonce))) != crc:
        return None
    return Slot(
        serial=serial,
        header=decode_json(header),
        num_prompt=num_prompt,
        ended=_read_ended(area, serial, nonce),
        pieces=[(0, array("I", kept)), *_groups(area[tokens_at + len(kept) :], serial=serial, nonce=nonce)],
        length=_word(area, _LENGTH_AT),
        hidden=bool(flags & HIDDEN),
        header_cut=bool(flags & HEADER_CUT),
    )


def _read_ended(area: bytes, serial: int, nonce: int) -> tuple[int, str, str] | None:
    step, size, crc = _ENDED.unpack_from(area, _ENDED_AT)
    text = area[_ENDED_AT + _ENDED.size : _ENDED_AT + _ENDED.size + min(size, _ENDED_TEXT)]
    if not text or _ended_crc(nonce, serial, step, text) != crc:
        return None
    reason, _, cause = text.decode("ascii", "replace").partition(" ")
    return step, reason, cause


def _groups(area: bytes, *, serial: int, nonce: int) -> Iterator[tuple[int, array[int]]]:
    """Every whole group. What follows a damaged one cannot be found; the ring may still have it."""
    at = 0
    while at + _GROUP.size <= len(area):
        position, count, crc = _GROUP.unpack_from(area, at)
        at += _GROUP.size
        ids = area[at : at + 4 * count]
        if not count or len(ids) < 4 * count or _group_crc(nonce, serial, position, ids) != crc:
            return
        yield position, array("I", ids)
        at += len(ids)


def _word(area: bytes, at: int) -> int | None:
    word = struct.unpack_from("<Q", area, at)[0]
    return int(word // WORD_PRIME) - 1 if word and word % WORD_PRIME == 0 else None
