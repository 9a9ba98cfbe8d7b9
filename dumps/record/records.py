"""What the ring's records say: steps and keyframes as columns of 32-bit integers, rare events as JSON.

Columns are packed whole, since a step of 256 requests has a thousand numbers and 100 us. JSON is ASCII only, so that no
text from outside can hold the bytes that begin a record.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from dumps.prefix_hash import CachedBlock
from dumps.record.fallbacks import FallbackRecord, from_json
from dumps.record.prefixes import HitRecord, cached_size, decode_cached, encode_cached, hits_from_json

_BEGIN = struct.Struct("<QQIII")  # index, start ns, chunks, new blocks, bytes of events
_END = struct.Struct("<QIII")  # index, rows, flags, bytes of events
_KEYFRAME = struct.Struct("<QQIIII")  # before step, ring sequence, free, running, table blocks, waiting
_HAS_TOKENS, _HAS_DIGESTS, _HAS_CACHED = 1, 2, 4
_ENCODE = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode

Ended = tuple[int, str, str]  # serial, finish reason, finish cause


@dataclass(frozen=True, slots=True)
class ExhaustedRecord:
    """A request that found no block; see Exhausted in state.proto. Requests are serials."""

    serial: int
    blocks_needed: int
    blocks_free: int
    outcome: str
    victim: int | None = None
    before_chunk: int = 0


@dataclass(slots=True)
class StepStart:
    """A step as it was planned. ``serials``, ``starts`` and ``counts`` have one entry per scheduled chunk.

    ``new_blocks`` holds (row, physical block) pairs in the order in which they were handed out. ``finished`` is what
    ended while planning, ``hits`` what admitted requests took from the prefix cache.
    """

    index: int
    start_ns: int
    serials: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    new_blocks: list[tuple[int, int]] = field(default_factory=list)
    arrived: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    aborted: list[Ended] = field(default_factory=list)
    exhausted: list[ExhaustedRecord] = field(default_factory=list)
    finished: list[Ended] = field(default_factory=list)
    hits: list[HitRecord] = field(default_factory=list)


@dataclass(slots=True)
class StepEnd:
    """What a step drew: ``tokens`` and ``digests`` are parallel to its serials. -1 means that nothing was drawn.

    ``fallbacks`` are the decisions to go on that its requests asked to be traced, ``fallbacks_cut`` counts those left
    out of it; ``cached`` are the blocks registered in the prefix cache since the step before.
    """

    index: int
    tokens: list[int]
    digests: list[int] | None = None
    finished: list[Ended] = field(default_factory=list)
    fallbacks: Sequence[FallbackRecord] = ()
    fallbacks_cut: int = 0
    cached: Sequence[CachedBlock] = ()


class RunningRecord(NamedTuple):
    """A running request in a keyframe: its serial, its progress in tokens, its block table."""

    serial: int
    num_computed: int
    num_output: int
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class KeyframeRecord:
    """The complete scheduler state before step ``before_step``. ``free_blocks`` in the order of handing out, ``cached``
    in that of registration. ``outputs``: serial and output tokens of the waiting that were preempted with some."""

    before_step: int
    free_blocks: list[int]
    running: Sequence[RunningRecord | tuple[int, int, int, list[int]]]
    waiting: list[int]
    cached: Sequence[CachedBlock] = ()
    outputs: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class DecodedEnd:
    """A `StepEnd` as read. ``tokens`` is None at record level "shape"; ``drew`` is known at every level."""

    index: int
    drew: list[bool]
    tokens: list[int] | None
    digests: list[int] | None
    finished: list[Ended]
    fallbacks: Sequence[FallbackRecord] = ()
    fallbacks_cut: int = 0
    cached: Sequence[CachedBlock] = ()


def encode_begin(step: StepStart) -> tuple[bytes, ...]:
    """A payload in pieces. Raises OverflowError for a number outside 0 .. 2**32 - 1."""
    events: dict[str, Any] = {}
    if step.arrived:
        events["arrived"] = step.arrived
    if step.admitted:
        events["admitted"] = step.admitted
    if step.aborted:
        events["aborted"] = step.aborted
    if step.exhausted:
        events["exhausted"] = [asdict(entry) for entry in step.exhausted]
    if step.finished:
        events["finished"] = step.finished
    if step.hits:
        events["hits"] = step.hits
    rare = _json(events) if events else b""
    blocks = array("I", chain.from_iterable(step.new_blocks)).tobytes()
    head = _BEGIN.pack(step.index, step.start_ns, len(step.serials), len(step.new_blocks), len(rare))
    serials, starts, counts = array("I", step.serials), array("I", step.starts), array("I", step.counts)
    return head, serials.tobytes(), starts.tobytes(), counts.tobytes(), blocks, rare


def decode_begin(payload: bytes) -> StepStart:
    """Raises ValueError when the payload contradicts itself."""
    index, start_ns, rows, num_blocks, num_events = _unpack(_BEGIN, payload)
    cut = _Cut(payload, _BEGIN.size)
    serials, starts, counts = (cut.column(rows) for _ in range(3))
    flat = cut.column(2 * num_blocks)
    events = cut.events(num_events)
    return StepStart(
        index=index,
        start_ns=start_ns,
        serials=serials,
        starts=starts,
        counts=counts,
        new_blocks=list(zip(flat[::2], flat[1::2], strict=True)),
        arrived=events.get("arrived", []),
        admitted=events.get("admitted", []),
        aborted=_ended(events.get("aborted", [])),
        exhausted=[ExhaustedRecord(**entry) for entry in events.get("exhausted", [])],
        finished=_ended(events.get("finished", [])),
        hits=hits_from_json(events.get("hits", [])),
    )


def encode_end(step: StepEnd, *, keep_tokens: bool) -> tuple[bytes, ...]:
    """A payload in pieces. Without ``keep_tokens`` a byte per row says that a token was drawn, nothing says which."""
    rows = len(step.tokens)
    if keep_tokens:
        tokens = array("i", step.tokens).tobytes()
    elif step.tokens and min(step.tokens) >= 0:
        tokens = b"\1" * rows
    else:
        tokens = bytes(token >= 0 for token in step.tokens)
    digests = b"" if step.digests is None else array("Q", step.digests).tobytes()
    rare: dict[str, Any] = {"finished": step.finished} if step.finished else {}
    if step.fallbacks or step.fallbacks_cut:
        rare |= {"fallbacks": step.fallbacks, "fallbacks_cut": step.fallbacks_cut}
    events = _json(rare) if rare else b""
    flags = (_HAS_TOKENS if keep_tokens else 0) | (0 if step.digests is None else _HAS_DIGESTS)
    cached = b""
    if step.cached:
        flags, cached = flags | _HAS_CACHED, encode_cached(step.cached)
    return _END.pack(step.index, rows, flags, len(events)), tokens, digests, events, cached


def decode_end(payload: bytes) -> DecodedEnd:
    """Raises ValueError when the payload contradicts itself."""
    index, rows, flags, num_events = _unpack(_END, payload)
    cut = _Cut(payload, _END.size)
    if flags & _HAS_TOKENS:
        ids = cut.column(rows, "i")
        tokens, drew = ids, [token >= 0 for token in ids]
    else:
        tokens, drew = None, [byte != 0 for byte in cut.column(rows, "B")]
    digests = cut.column(rows, "Q") if flags & _HAS_DIGESTS else None
    events = cut.events(num_events)
    fallbacks = from_json(events.get("fallbacks", []))
    left_out = int(events.get("fallbacks_cut", 0))
    cached = decode_cached(cut.rest()) if flags & _HAS_CACHED else []
    return DecodedEnd(index, drew, tokens, digests, _ended(events.get("finished", [])), fallbacks, left_out, cached)


def encode_keyframe(keyframe: KeyframeRecord, ring_sequence: int) -> bytes:
    """``ring_sequence`` is the number that the next record in the ring has."""
    numbers = array("I", keyframe.free_blocks)
    tables = array("I")
    for serial, num_computed, num_output, blocks in keyframe.running:
        numbers.extend((serial, num_computed, num_output, len(blocks)))
        tables.extend(blocks)
    sizes = (len(keyframe.free_blocks), len(keyframe.running), len(tables), len(keyframe.waiting))
    head = _KEYFRAME.pack(keyframe.before_step, ring_sequence, *sizes)
    tail = b""  # nothing where there is nothing, as in rings older than the cache
    if keyframe.cached or keyframe.outputs:
        outputs = array("I", [number for pair in keyframe.outputs for number in pair])
        tail = encode_cached(keyframe.cached) + outputs.tobytes()
    return b"".join((head, numbers.tobytes(), tables.tobytes(), array("I", keyframe.waiting).tobytes(), tail))


def decode_keyframe(payload: bytes) -> tuple[KeyframeRecord, int]:
    """The keyframe and the sequence of the first ring record after it. Raises ValueError as the others do."""
    before_step, sequence, num_free, num_running, num_table, num_waiting = _unpack(_KEYFRAME, payload)
    cut = _Cut(payload, _KEYFRAME.size)
    free = cut.column(num_free)
    facts = cut.column(4 * num_running)
    tables = cut.column(num_table)
    waiting = cut.column(num_waiting)
    tail = cut.rest()
    size = cached_size(tail)
    cached = decode_cached(tail[:size])
    outputs = _pairs(tail[size:])
    running: list[RunningRecord] = []
    at = 0
    for row in range(0, len(facts), 4):
        serial, computed, output, length = facts[row : row + 4]
        running.append(RunningRecord(serial, computed, output, tables[at : at + length]))
        at += length
    if at != len(tables):
        raise ValueError("the block tables of a keyframe do not add up")
    return KeyframeRecord(before_step, free, running, waiting, cached, outputs), sequence


def _pairs(data: bytes) -> list[tuple[int, int]]:
    if len(data) % 8:
        raise ValueError("the outputs of a keyframe do not add up")
    numbers = array("I", data)
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def encode_json(facts: dict[str, Any]) -> bytes:
    """Facts of a request or a failure as ASCII JSON."""
    return _json(facts)


def decode_json(payload: bytes) -> dict[str, Any]:
    """Raises ValueError unless the payload is one JSON object."""
    try:
        value = json.loads(payload)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        return _without_surrogates(value) if b"\\ud" in payload else value
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error


def _without_surrogates(value: Any) -> Any:
    """Half a surrogate pair is allowed in JSON and in no message of a dump; clients do send it."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case list():
            return [_without_surrogates(item) for item in value]
        case dict():
            return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
        case _:
            return value


def _json(value: object) -> bytes:
    return _ENCODE(value).encode("ascii")


def _unpack(layout: struct.Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) < layout.size:
        raise ValueError("a record is shorter than its head")
    return layout.unpack_from(payload)


def _ended(entries: list[list[Any]]) -> list[Ended]:
    return [(int(serial), str(reason), str(cause)) for serial, reason, cause in entries]


class _Cut:
    """Takes columns off a payload, front to back, never more than it has."""

    def __init__(self, payload: bytes, offset: int) -> None:
        self._payload = payload
        self._offset = offset

    def column(self, count: int, code: str = "I") -> list[int]:
        column = array(code)
        return array(code, self._take(count * column.itemsize)).tolist()

    def events(self, size: int) -> dict[str, Any]:
        return decode_json(self._take(size)) if size else {}

    def rest(self) -> bytes:
        return self._take(len(self._payload) - self._offset)

    def _take(self, size: int) -> bytes:
        begin, self._offset = self._offset, self._offset + size
        if self._offset > len(self._payload):
            raise ValueError("a record is shorter than it says")
        return self._payload[begin : self._offset]
