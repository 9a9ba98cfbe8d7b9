"""The requests of a history: which they are, how long, and their tokens put together from slab and ring."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf import json_format

from dumps.ledger import record
from dumps.record.history import History, SchedulerState, request_headers
from dumps.record.image import RingImage
from dumps.record.ring import MAX_SLOT_TOKENS
from dumps.record.slab import Slot
from dumps.schema import state_pb2 as pb

_HIDDEN_AT_SHAPE = "removed at record level shape; level tokens keeps it"


class Requests:
    """Every request that the history, a failure, or the queue at its end names. ``index``: serial to place."""

    def __init__(self, image: RingImage, history: History | None, scheduler: SchedulerState) -> None:
        self._image = image
        self._scheduler = scheduler
        self._headers = request_headers(image)
        self._draws = _draws(history)
        start = history.start if history else None
        self._starts: dict[int, int] = {}  # output tokens where the history starts, by serial
        if history is not None and start is not None:
            if not history.newest:  # else the slab is exact of these, in older rings too
                self._starts = dict.fromkeys(start.waiting, 0) | dict(start.outputs)
            self._starts |= {serial: output for serial, _, output, _ in start.running}
        named = _named(history)
        failed = {int(f["request"]) for f in image.failures if f.get("request") is not None}
        if history is None or history.newest:
            # Added since the last step began: no step has named them yet. Of a failure's it is not known when it came.
            newest = max(named, default=0)
            late = sorted(serial for serial in {*image.slots, *self._headers} if self._waits(serial, newest, failed))
            if history is not None:
                scheduler.waiting.update(dict.fromkeys(late))
            named |= set(late)
        named |= failed
        self.index: dict[int, int] = {serial: place for place, serial in enumerate(sorted(named))}

    def _waits(self, serial: int, newest: int, failed: set[int]) -> bool:
        """Whether a request came after all those that steps name; one that failed may have ended before them."""
        slot = self._image.slots.get(serial)
        return serial > newest and not (serial in failed and (slot is None or slot.ended is not None))

    def fill(self, state: pb.RuntimeState) -> None:
        """Add them to ``state``, with ledger entries for what is missing of them."""
        level = self._image.header.level
        missing = {"prompt": 0, "output": 0, "unknown": 0, "place": 0, "end": 0}
        hidden: set[str] = set()
        ids: set[str] = set()
        for serial in self.index:
            message = state.requests.add()
            slot = self._image.slots.get(serial)
            header = dict(slot.header if slot else self._headers.get(serial, {}))
            missing["unknown"] += not header
            hidden.update(header.pop("hidden", []))
            self._fill_header(message, header, serial, ids)
            if unknown := self._fill_status(message, serial, slot):
                missing[unknown] += 1
            self._fill_lengths(message, serial, header, slot)
            if level != "shape":
                for name in self._fill_tokens(message, serial, slot) if header else ("prompt", "output"):
                    missing[name] += 1
            if text := header.get("prompt_text"):
                message.prompt_text = str(text)
        self._ledger(state, level, missing, hidden)

    def _fill_header(self, message: pb.Request, header: Mapping[str, Any], serial: int, ids: set[str]) -> None:
        name = str(header.get("id") or f"unknown-{serial}")
        message.id = name if name not in ids else f"{name}#{serial}"
        ids.add(message.id)
        plain = {k: header[k] for k in ("arrival_ns", "endpoint", "stream", "sample_index") if k in header}
        json_format.ParseDict(plain, message, ignore_unknown_fields=True)
        sampling = dict(header.get("sampling", {}))
        sampling["logit_bias"] = [
            entry if isinstance(entry, dict) else {"token_id": entry[0], "bias": entry[1]}
            for entry in sampling.get("logit_bias") or ()
        ]
        if header.get("sampling"):
            json_format.ParseDict(sampling, message.sampling, ignore_unknown_fields=True)
        if flags := header.get("flags"):
            json_format.ParseDict(flags, message.flags, ignore_unknown_fields=True)

    def _fill_status(self, message: pb.Request, serial: int, slot: Slot | None) -> str:
        """Set status and end. Returns what of it nothing tells: "place" in the queues, "end", or neither."""
        scheduler = self._scheduler
        if serial in scheduler.arrivals:
            message.arrival_step = scheduler.arrivals[serial]
        ended = scheduler.ended.get(serial)
        if ended is None and serial in scheduler.running:
            message.status = "running"
        elif ended is None and serial in scheduler.waiting:
            message.status = "preempted" if serial in scheduler.preempted else "waiting"
        elif end := ended or (slot.ended if slot else None):
            message.status = "finished"
            message.finish_step, message.finish_reason, message.finish_cause = end
        elif slot is not None:  # a slot is not taken over while its request lives, so this one lived to the end
            message.status = "running"
            return "place"
        else:
            message.status = "finished"
            return "end"
        return ""

    def _fill_lengths(self, message: pb.Request, serial: int, header: Mapping[str, Any], slot: Slot | None) -> None:
        """From the last token drawn in the steps; of a request that drew none there, from their start or the slab.

        The slab may be ahead of steps that end before a damaged or missing one.
        """
        draws = self._draws.get(serial, [])
        arrived = serial in self._scheduler.arrivals
        before = 0 if arrived else self._starts.get(serial)
        prompt = slot.num_prompt if slot else int(header.get("num_prompt", 0))
        if not prompt and draws:
            prompt = max(draws[0][0] - (before or 0), 0)
        prompt = max(prompt, 1)
        message.num_prompt_tokens = prompt
        if draws:
            length = draws[-1][0] + 1
        elif before is not None:
            length = prompt + before
        else:
            kept = [position + len(ids) for position, ids in slot.pieces] if slot else []
            length = max((slot.length if slot else None) or 0, *kept, prompt)
        message.num_output_tokens = max(length - prompt, 0)
        if message.num_output_tokens and serial in self._scheduler.waiting:
            message.status = "preempted"

    def _fill_tokens(self, message: pb.Request, serial: int, slot: Slot | None) -> list[str]:
        """Set the token lists that are complete. Returns the names of those that are not."""
        prompt, length = message.num_prompt_tokens, message.num_prompt_tokens + message.num_output_tokens
        pieces = slot.pieces if slot and not slot.hidden else ()
        draws = self._draws.get(serial, [])
        missing: list[str] = []
        prompt_ids = _joined(0, prompt, pieces, draws)
        if prompt_ids is None:
            missing.append("prompt")
        else:
            message.prompt_token_ids = prompt_ids
        output_ids = _joined(prompt, length, pieces, draws)
        if output_ids is None:
            missing.append("output")
        else:
            message.output_token_ids = output_ids
        digests = [digest for position, _, digest in draws if digest is not None and prompt <= position]
        if digests and len(digests) == message.num_output_tokens:
            message.output_digests = struct.pack(f"<{len(digests)}Q", *digests)
        return missing

    def _ledger(self, state: pb.RuntimeState, level: str, missing: Mapping[str, int], hidden: set[str]) -> None:
        if level == "shape":
            for name in ("prompt_token_ids", "output_token_ids"):
                note = "record level shape keeps lengths only; level tokens would have kept the ids"
                record(state, f"requests[].{name}", pb.ABSENT, note)
            record(state, "steps[].scheduled[].sampled_token", pb.ABSENT, "as requests[].output_token_ids")
        else:
            for name in ("prompt", "output"):
                if missing[name]:
                    note = f"of {missing[name]} requests: their slots were taken by later ones, or they did not fit"
                    record(state, f"requests[].{name}_token_ids", pb.ABSENT, note)
        for name in sorted(hidden):
            note = _HIDDEN_AT_SHAPE if level == "shape" else "of some requests: it did not fit into their slots"
            record(state, f"requests[].sampling.{name}", pb.ABSENT, note)
        if missing["place"]:
            note = f"of {missing['place']} requests: unfinished, in a queue that no kept step tells of"
            record(state, "requests[].status", pb.INFERRED, note)
        if missing["end"]:
            note = f"of {missing['end']} requests: known from a failure only; their slots were taken by later ones"
            for name in ("status", "finish_reason"):
                record(state, f"requests[].{name}", pb.INFERRED if name == "status" else pb.ABSENT, note)
        if level != "full":
            record(state, "requests[].prompt_text", pb.ABSENT, f"record level {level}; level full keeps it")
        if missing["unknown"]:
            note = f"of {missing['unknown']} requests: more were live than the recorder has slots"
            # Where its prompt ended can only be guessed, and so how much of it is output.
            for name in ("id", "num_prompt_tokens", "num_output_tokens"):
                record(state, f"requests[].{name}", pb.SYNTHESISED, note)
            record(state, "requests[].sampling", pb.ABSENT, note)


Draw = tuple[int, int | None, int | None]  # position, token, digest


def _joined(begin: int, end: int, pieces: Sequence[tuple[int, array[int]]], draws: Sequence[Draw]) -> bytes | None:
    """The tokens from position ``begin`` to ``end`` as int32 bytes. None unless all of them are on record."""
    size = end - begin
    # A length is a claim, and room is made only for what the record could fill.
    if size > sum(len(ids) for _, ids in pieces) + len(draws) or size > MAX_SLOT_TOKENS:
        return None
    tokens: npt.NDArray[np.int64] = np.full(size, -1, dtype=np.int64)
    for position, ids in pieces:
        part = np.asarray(ids[max(begin - position, 0) : max(end - position, 0)], dtype=np.int64)
        at = max(position - begin, 0)
        tokens[at : at + len(part)] = part
    for position, token, _ in draws:
        if token is not None and begin <= position < end:
            tokens[position - begin] = token
    return tokens.astype("<i4").tobytes() if (tokens >= 0).all() else None


def _draws(history: History | None) -> dict[int, list[Draw]]:
    """What the steps drew, by serial. The token drawn for a chunk stands at the position behind the chunk."""
    found: dict[int, list[Draw]] = {}
    for step in history.steps if history else ():
        begin, end = step.begin, step.end
        if end is None:
            continue
        for row, serial in enumerate(begin.serials):
            if end.drew[row]:
                token = end.tokens[row] if end.tokens is not None else None
                digest = end.digests[row] if end.digests is not None else None
                found.setdefault(serial, []).append((begin.starts[row] + begin.counts[row], token, digest))
    return found


def _named(history: History | None) -> set[int]:
    named: set[int] = set()
    if history is None:
        return named
    if history.start is not None:
        named.update(history.start.waiting, (running[0] for running in history.start.running))
    for step in history.steps:
        begin = step.begin
        named.update(begin.serials, begin.arrived, begin.admitted)
        named.update(entry[0] for entry in [*begin.aborted, *begin.finished, *(step.end.finished if step.end else ())])
        for entry in begin.exhausted:
            named.update({entry.serial} if entry.victim is None else {entry.serial, entry.victim})
    return named
