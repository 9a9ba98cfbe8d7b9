"""The flight recorder as a serving process uses it: tell it what each step plans and draws, and it is on record.

It writes into a mapped file and never waits for a disk. What does not fit (a prompt beyond its slot, more live requests
than slots, a record beyond its ring) is left out and counted, never raised: recording must not end what it records.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from dumps.record import ring
from dumps.record.fallbacks import FallbackRecord, fitted
from dumps.record.prefixes import BYTES_PER_BLOCK, HitRecord, disguised
from dumps.record.process import WriterProcess
from dumps.record.records import (
    ExhaustedRecord,
    KeyframeRecord,
    RunningRecord,
    StepEnd,
    StepStart,
    encode_begin,
    encode_end,
    encode_json,
    encode_keyframe,
)
from dumps.record.ring import RingFile, RingHeader, RingLayout
from dumps.record.slab import Slab

__all__ = [
    "ExhaustedRecord",
    "FallbackRecord",
    "FlightRecorder",
    "HitRecord",
    "KeyframeRecord",
    "RecordLevel",
    "RunningRecord",
    "StepEnd",
    "StepStart",
]

KEYFRAME_SHARE = 0.4  # of the ring, written between two keyframes: the older of two is then always still inside it
HEADER_BYTES = 4096  # of a request, without its prompt's text
TEXT_BYTES_PER_TOKEN = 12
MAX_MESSAGE = 1000  # characters of a failure's message


class RecordLevel(StrEnum):
    """What is kept of people's text: lengths and parameters only, token ids, or ids and text."""

    SHAPE = "shape"
    TOKENS = "tokens"
    FULL = "full"


class FlightRecorder:
    """Writes one ring. Methods may be called from several threads; steps come from one.

    ``identity`` is JSON with the parts of a dump that do not change: manifest, model, engine, kv, quirks. ``slots`` is
    the number of requests whose tokens are kept, ``slot_tokens`` the tokens of each, ``slot_blocks`` the blocks in one
    table, ``ring_bytes`` the size of the history.

    Raises:
        FileExistsError: ``path`` exists. OSError: no room for the file. ValueError: a size outside its limits.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        identity: Mapping[str, Any],
        *,
        level: RecordLevel,
        slots: int,
        slot_tokens: int,
        ring_bytes: int,
        slot_blocks: int,
    ) -> None:
        self.path = os.fspath(path)
        self.level = RecordLevel(level)
        self._keep_tokens = self.level is not RecordLevel.SHAPE
        facts = encode_json(dict(identity))
        engine = identity.get("engine", {})
        header_bytes = HEADER_BYTES
        if self.level is RecordLevel.FULL:
            header_bytes += TEXT_BYTES_PER_TOKEN * slot_tokens
        layout = RingLayout(
            identity_bytes=len(facts),
            slots=slots,
            slot_tokens=slot_tokens if self._keep_tokens else 0,
            slot_header_bytes=_multiple(header_bytes),
            keyframe_bytes=_keyframe_bytes(
                num_blocks=int(engine.get("num_blocks", 0)) or slots * slot_blocks,
                max_running=max(int(engine.get("max_num_seqs", 0)), slots),
                slot_blocks=slot_blocks,
                prefix_cache=bool(engine.get("prefix_cache")),
            ),
            ring_bytes=_multiple(ring_bytes),
        )
        now = time.time_ns()
        header = RingHeader(
            layout=layout,
            writer=WriterProcess.current(),
            level=self.level.value,
            nonce=secrets.randbits(32),
            created_ns=now,
            wall_minus_monotonic_ns=now - time.monotonic_ns(),
            identity_crc=zlib.crc32(facts),
        )
        self._file = RingFile(self.path, header, facts)
        self._slab = Slab(self._file, keep_tokens=self._keep_tokens)
        self._lock = threading.RLock()  # re-entrant: a signal handler may report a failure in the middle of a step
        self._secret = secrets.token_bytes(32)  # never written: see `disguised`
        self._serial = 0
        self._failures = 0
        self._keyframes = 0
        self._keyframe_written = 0
        self._flushed_written = 0
        self._period = int(layout.ring_bytes * KEYFRAME_SHARE)
        self._step: StepStart | None = None
        self._broken = False  # a step began after one that never ended: history must start anew
        self._closed = False

    def add_request(self, header: Mapping[str, Any], prompt: Sequence[int]) -> int:
        """Take a request on record and return its serial (1, 2, ...).

        ``header`` has id, arrival_ns, endpoint, stream, sampling, sample_index and perhaps prompt_text and flags. What
        the record level does not allow is taken out here.
        """
        kept = _allowed(header, self.level)
        kept["num_prompt"] = len(prompt)
        text = kept.pop("prompt_text", None)
        brief, cut = _fit(kept, min(self._slab.header_room, HEADER_BYTES - 256))
        whole = brief
        if text is not None:
            whole, text_cut = _fit(json.loads(brief) | {"prompt_text": text}, self._slab.header_room)
            cut |= text_cut
        with self._lock:
            self._serial += 1
            if cut:
                self._file.count("headers_cut")
            self._slab.add(self._serial, whole, prompt, cut=cut)
            # The ring has it too: a request that got no slot, or lost it, is known by name as long as its steps are.
            self._file.append(ring.REQUEST, self._serial.to_bytes(4, "little"), brief)
            return self._serial

    def begin_step(self, step: StepStart) -> None:
        """Record a plan before it is executed: a death in the step then shows what it was about to do."""
        with self._lock:
            if self._step is not None:
                self._broken = True
            self._step = step
            self._file.append(ring.BEGIN, *encode_begin(step))
            for serial, reason, cause in step.aborted:
                self._slab.finish(serial, step.index, reason, cause)

    def end_step(self, step: StepEnd) -> None:
        """Record what the step that began last has drawn."""
        if step.fallbacks:
            room = self._file.layout.ring_bytes
            kept, cut = fitted(step.fallbacks, ring_bytes=room, keep_tokens=self._keep_tokens)
            step = replace(step, fallbacks=kept, fallbacks_cut=cut)
        if step.cached and not self._keep_tokens:
            step = replace(step, cached=disguised(step.cached, self._secret))
        with self._lock:
            begun, self._step = self._step, None
            self._file.append(ring.END, *encode_end(step, keep_tokens=self._keep_tokens))
            if begun is None:
                return
            self._slab.draw(begun.serials, step.tokens)
            for serial, reason, cause in begun.finished:
                self._slab.finish(serial, step.index, reason, cause)
            for serial, reason, cause in step.finished:
                self._slab.finish(serial, step.index, reason, cause)
            self._slab.flush_turn(step.index)
            if self._file.written - self._flushed_written > self._period:
                self._flush_slab()

    def failure(self, facts: Mapping[str, Any]) -> None:
        """Record a failure twice: among the steps, and where the ring's wrapping never reaches it.

        ``facts`` are those of `Failure` in state.proto with a request's serial for its index. ``time_ns`` is added.
        """
        known = {"time_ns": time.monotonic_ns()} | {k: v for k, v in facts.items() if v is not None}
        known["message"] = str(known.get("message", ""))[:MAX_MESSAGE]
        with self._lock:
            known["number"] = self._failures
            payload = _fit_failure(known)
            self._file.write_failure(self._failures, payload)
            self._failures += 1
            self._file.append(ring.FAILURE, payload)

    def keyframe_due(self) -> bool:
        """Whether `keyframe` should be called before the next step."""
        return self._broken or self._step is not None or self._file.written - self._keyframe_written > self._period

    def keyframe(self, keyframe: KeyframeRecord) -> None:
        """Record the complete scheduler state before the next step."""
        if keyframe.cached and not self._keep_tokens:
            keyframe = replace(keyframe, cached=disguised(keyframe.cached, self._secret))
        with self._lock:
            self._step = None
            self._flush_slab()  # a history that starts here has no other place to take earlier tokens from
            payload = encode_keyframe(keyframe, self._file.sequence)
            too_long = len(payload) + ring.RECORD_HEAD - self._file.layout.keyframe_bytes
            if 0 < too_long <= 4 * len(keyframe.waiting):
                self._file.count("queues_cut")
                kept = keyframe.waiting[: len(keyframe.waiting) - too_long // 4 - 2]
                payload = encode_keyframe(replace(keyframe, waiting=kept), self._file.sequence)
            if self._file.write_keyframe(self._keyframes, payload):
                self._keyframes += 1
            self._keyframe_written = self._file.written
            self._broken = False

    def _flush_slab(self) -> None:
        self._slab.flush()
        self._flushed_written = self._file.written

    def flush(self) -> None:
        """Bring everything into the file and the file to the disk. Only a power loss makes that necessary."""
        with self._lock:
            self._slab.flush()
            self._file.flush()

    def close(self, *, clean: bool) -> None:
        """End the recording. The file stays; ``clean`` says that there is nothing to recover from it."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._slab.flush()
                self._file.close(clean=clean)


def _multiple(size: int) -> int:
    return -(-size // 8) * 8


def _keyframe_bytes(*, num_blocks: int, max_running: int, slot_blocks: int, prefix_cache: bool) -> int:
    """Room for a free list, for tables that may share blocks, for a queue, and for the prefix cache."""
    tables = min(max_running * slot_blocks, 8 * num_blocks)
    cached = BYTES_PER_BLOCK * num_blocks if prefix_cache else 0
    return _multiple(4096 + 4 * (num_blocks + tables + 4 * max_running) + cached)


def _allowed(header: Mapping[str, Any], level: RecordLevel) -> dict[str, Any]:
    """The header without what the level forbids; ``hidden`` names what was there and is not any more."""
    kept = dict(header)
    sampling = dict(kept.get("sampling", {}))
    hidden: list[str] = []
    if level is RecordLevel.SHAPE:
        hidden += [name for name in ("stop", "stop_token_ids", "logit_bias") if sampling.pop(name, None)]
    if level is not RecordLevel.FULL:
        kept.pop("prompt_text", None)
    kept["sampling"] = sampling
    if hidden:
        kept["hidden"] = hidden
    return kept


def _fit_failure(facts: dict[str, Any]) -> bytes:
    """The facts as JSON for one failure slot; texts are cut as far as they must, since some come from clients."""
    for limit in (MAX_MESSAGE, 200, 20):
        payload = encode_json({k: v[:limit] if isinstance(v, str) else v for k, v in facts.items()})
        if len(payload) <= ring.FAILURE_BYTES - 64:
            return payload
    return encode_json({k: str(facts.get(k, ""))[:20] for k in ("kind", "message")} | {"number": facts["number"]})


def _fit(header: dict[str, Any], room: int) -> tuple[bytes, bool]:
    """The header as JSON of at most ``room`` bytes: its longest optional parts go first if they must."""
    data = encode_json(header)
    if len(data) <= room:
        return data, False
    sampling = dict(header.get("sampling", {}))
    lost = list(header.get("hidden", []))
    kept = {name: value for name, value in header.items() if name != "prompt_text"}
    for name in ("logit_bias", "stop", "stop_token_ids"):
        if len(data := encode_json(kept)) <= room:
            break
        if sampling.pop(name, None):
            lost.append(name)
        kept = kept | {"sampling": sampling, "hidden": lost}
    if len(data := encode_json(kept)) <= room:
        return data, True
    return encode_json({"id": str(kept.get("id", ""))[: room // 12], "num_prompt": kept.get("num_prompt", 0)}), True
