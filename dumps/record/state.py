"""From a ring's image to the state of a dump: requests, steps, scheduler and KV cache, each with its grade."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from dumps.errors import CorruptDump
from dumps.ledger import record
from dumps.prefix_hash import CachedBlock
from dumps.record import ring
from dumps.record.events import fill_events
from dumps.record.history import History, HistoryStep, SchedulerState, read_history
from dumps.record.image import DAMAGED, RingImage
from dumps.record.records import Ended
from dumps.record.requests import Requests
from dumps.schema import state_pb2 as pb
from dumps.tensors import LE32_BYTES, le32

DIED = "the process ended without writing a dump: SIGKILL, out of memory, a segmentation fault or a power loss"
_COUNTED = {
    "requests_without_slot": "{} requests found no slot: they are recorded without token ids; give the recorder more",
    "token_lists_cut": "{} requests had more tokens than a slot holds; the rest is missing",
    "headers_cut": "{} request headers did not fit and lost stop strings, logit bias or text",
}


def state_from_ring(image: RingImage, *, reason: str | None = None) -> pb.RuntimeState:
    """The dump's content as far as the ring has it.

    ``reason`` is that of the manifest, for a live server that knows why it asks. Without one it is found: a writer that
    is alive or shut down on purpose gives "demand", a dead one its last failure or, without any, "process-death".

    Raises:
        CorruptDump: the ring's parts are whole and contradict each other.
    """
    try:
        return _state(image, reason)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, AttributeError, json_format.Error) as error:
        raise CorruptDump(f"{image.path}: its records contradict each other: {error}", remedy=DAMAGED) from error


def _state(image: RingImage, reason: str | None) -> pb.RuntimeState:
    state = pb.RuntimeState()
    _identity(state, image)
    history = read_history(image)
    num_blocks = state.engine.num_blocks
    if not 1 <= num_blocks <= ring.MAX_BLOCKS:
        raise ValueError(f"engine.num_blocks is {num_blocks}")
    if num_blocks * LE32_BYTES > image.header.layout.keyframe_bytes:
        # A writer makes room for the whole free list; without that bound a small file could claim any pool.
        raise ValueError(f"engine.num_blocks is {num_blocks}, and its keyframes have no room for so many")
    scheduler = SchedulerState(history.start if history else None, num_blocks)
    for step in history.steps if history else ():
        scheduler.apply(step)
    requests = Requests(image, history, scheduler)
    requests.fill(state)
    index = requests.index
    if history is not None:
        _fill_scheduler(state.scheduler, history, scheduler, index)
        for step in history.steps:
            _fill_step(state.steps.add(), step, index)
        fill_events(state, history.steps, index)
    _fill_kv(state, image, scheduler if history else None, index)
    _fill_failures(state, image, index)
    died = reason is None and not image.alive and not image.closed
    if died and not state.failures:
        _fill_death(state)
    state.manifest.reason = reason or (state.failures[-1].kind if died else "demand")
    state.manifest.id = _dump_id(image, state.manifest.reason)
    _ledger(state, image, history, scheduler)
    if died and state.failures[-1].kind != "process-death":
        record(state, "manifest.reason", pb.OBSERVED, f"the last failure on record; later {DIED}")
    return state


def _identity(state: pb.RuntimeState, image: RingImage) -> None:
    identity = image.identity
    if name := identity.get("active_model"):
        state.active_model = str(name)
    manifest = dict(identity.get("manifest", {}))
    for name in ("versions", "platform"):
        pairs = manifest.get(name)
        if isinstance(pairs, dict):
            manifest[name] = [{"key": key, "value": str(pairs[key])} for key in sorted(pairs)]
    _parse(manifest, state.manifest)
    _parse(identity.get("model", {}), state.model)
    _parse(identity.get("engine", {}), state.engine)
    for quirk in identity.get("quirks", []):
        _parse({"name": quirk} if isinstance(quirk, str) else quirk, state.quirks.add())
    header = image.header
    state.manifest.created_ns = time.time_ns()
    state.manifest.wall_minus_monotonic_ns = header.wall_minus_monotonic_ns
    state.manifest.record_level = header.level
    state.manifest.pid = header.writer.pid


def _parse(facts: Mapping[str, Any], message: Message) -> None:
    json_format.ParseDict(dict(facts), message, ignore_unknown_fields=True)


def _dump_id(image: RingImage, reason: str) -> str:
    """The same for the same records: recovering a ring twice must not look like two crashes."""
    last = image.runs[0][-1].sequence if image.runs else -1
    text = f"{last} {len(image.failures)} {reason} {image.alive}".encode()
    return hashlib.sha256(image.header.pack() + text).hexdigest()[:16]


def _fill_scheduler(
    message: pb.Scheduler, history: History, scheduler: SchedulerState, index: Mapping[int, int]
) -> None:
    message.waiting.extend(index[serial] for serial in scheduler.waiting)
    message.running.extend(index[serial] for serial in scheduler.running)
    start = history.start
    if history.steps:
        last = history.steps[-1]
        message.next_step = last.begin.index + (last.end is not None)
    elif start is not None:
        message.next_step = start.before_step
    if start is None:
        return
    message.start.before_step = start.before_step
    message.start.free_blocks = le32(start.free_blocks)
    message.start.waiting.extend(index[serial] for serial in start.waiting)
    for serial, num_computed, num_output, blocks in start.running:
        message.start.running.add(
            request=index[serial],
            num_computed_tokens=num_computed,
            num_output_tokens=num_output,
            block_table=le32(blocks),
        )
    message.start.prefix_hashes.extend(_prefix_hash(entry) for entry in start.cached)


def _prefix_hash(entry: CachedBlock) -> pb.PrefixHash:
    return pb.PrefixHash(block=entry.block, hash=entry.hash, parent=entry.parent)


def _fill_step(message: pb.Step, step: HistoryStep, index: Mapping[int, int]) -> None:
    begin, end = step.begin, step.end
    message.index = begin.index
    message.start_ns = begin.start_ns
    message.completed = end is not None
    message.arrived.extend(index[serial] for serial in begin.arrived)
    message.admitted.extend(index[serial] for serial in begin.admitted)
    blocks: dict[int, list[int]] = {}
    for row, block in begin.new_blocks:
        blocks.setdefault(row, []).append(block)
    drew = end.drew if end is not None else [False] * len(begin.serials)
    add = message.scheduled.add
    for row, (serial, start, count) in enumerate(zip(begin.serials, begin.starts, begin.counts, strict=True)):
        chunk = add(request=index[serial], start=start, num_tokens=count, sampled=drew[row])
        if row in blocks:
            chunk.new_blocks = le32(blocks[row])
        if end is not None and drew[row]:
            if end.tokens is not None:
                chunk.sampled_token = end.tokens[row]
            if end.digests is not None:
                chunk.logits_digest = end.digests[row]
    for entry in begin.exhausted:
        attempt = message.exhausted.add(
            request=index[entry.serial],
            blocks_needed=entry.blocks_needed,
            blocks_free=entry.blocks_free,
            outcome=entry.outcome,
            before_scheduled=entry.before_chunk,
        )
        if entry.victim is not None:
            attempt.victim = index[entry.victim]
    message.aborted.extend(_ended(entry, index) for entry in begin.aborted)
    for hit in begin.hits:
        taken = message.prefix_hits.add(request=index[hit.serial], num_tokens=hit.num_tokens, blocks=le32(hit.blocks))
        if hit.copied_from is not None:
            taken.copied_from = hit.copied_from
    message.finished.extend(_ended(entry, index) for entry in [*begin.finished, *(end.finished if end else ())])


def _ended(entry: Ended, index: Mapping[int, int]) -> pb.Finished:
    serial, reason, cause = entry
    return pb.Finished(request=index[serial], reason=reason, cause=cause)


def _fill_kv(
    state: pb.RuntimeState, image: RingImage, scheduler: SchedulerState | None, index: Mapping[int, int]
) -> None:
    kv, facts = state.kv, dict(image.identity.get("kv", {}))
    bytes_per_block = int(facts.pop("bytes_per_block", 0))
    _parse(facts, kv)
    kv.block_size = state.engine.block_size
    kv.num_blocks = state.engine.num_blocks
    kv.max_bytes = kv.num_blocks * bytes_per_block
    kv.contents_selection = "none"
    if scheduler is None:
        return
    kv.free_blocks = le32(scheduler.free)
    kv.prefix_hashes.extend(_prefix_hash(entry) for entry in scheduler.cached.values())
    references = [0] * kv.num_blocks
    for serial, request in scheduler.running.items():
        kv.tables.add(request=index[serial], blocks=le32(request.blocks), num_tokens=request.num_computed)
        for block in request.blocks:
            references[block] += 1
    kv.ref_counts = le32(references)
    kv.used_bytes = sum(count > 0 for count in references) * bytes_per_block


def _fill_failures(state: pb.RuntimeState, image: RingImage, index: Mapping[int, int]) -> None:
    ids = {request.id: position for position, request in enumerate(state.requests)}
    for facts in image.failures:
        known = dict(facts)
        serial, request_id = known.pop("request", None), known.pop("request_id", None)
        failure = state.failures.add()
        _parse(known, failure)
        if serial in index:
            failure.request = index[serial]
        elif request_id in ids:
            failure.request = ids[request_id]
        if failure.HasField("seq_len_exceeded_at"):
            state.kv.seq_len_exceeded_at = failure.seq_len_exceeded_at


def _fill_death(state: pb.RuntimeState) -> None:
    failure = state.failures.add(kind="process-death", message=DIED)
    if state.steps:
        failure.step = state.scheduler.next_step
        failure.time_ns = state.steps[-1].start_ns


def _ledger(state: pb.RuntimeState, image: RingImage, history: History | None, scheduler: SchedulerState) -> None:
    if history is None:
        note = "no recorded state to start them from: no step was taken yet, damage, or keyframes that did not fit"
        for path in ("steps", "scheduler", "kv.free_blocks", "kv.tables"):
            record(state, path, pb.ABSENT, note)
    else:
        note = "moved from the recorded start by the recorded steps"
        if not scheduler.consistent:
            note += "; a step did not fit the state before it"
        for path in ("scheduler.waiting", "scheduler.running", "kv.free_blocks", "kv.tables", "kv.ref_counts"):
            record(state, path, pb.INFERRED, note)
        if state.engine.prefix_cache:
            hidden = "" if image.header.level != "shape" else "; keyed with a secret, as level shape keeps no text"
            record(state, "kv.prefix_hashes", pb.INFERRED, note + hidden)
        if not history.newest:
            record(state, "scheduler.next_step", pb.INFERRED, "later steps are damaged; this history ends before them")
    if image.damaged_failures:
        record(state, "failures", pb.ABSENT, f"{image.damaged_failures} of them could not be read")
    record(state, "kv.contents_blocks", pb.ABSENT, "a ring has none; a live server adds them if --record-kv says so")
    for path in ("threads", "exceptions"):
        record(state, path, pb.ABSENT, "a ring holds no stacks; a dump written by a live server does")
    for name, text in _COUNTED.items():
        count = image.counters[name]
        if count != 0:
            record(
                state,
                f"requests[].{'sampling' if name == 'headers_cut' else 'prompt_token_ids'}",
                pb.ABSENT,
                text.format("an unknown number of" if count is None else count),
            )
