"""From a ring's records to a history: a scheduler state to start from, and the steps that followed it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dumps.prefix_hash import CachedBlock
from dumps.record import ring
from dumps.record.image import RingImage
from dumps.record.prefixes import HitRecord
from dumps.record.records import DecodedEnd, Ended, KeyframeRecord, StepStart, decode_begin, decode_end, decode_json
from dumps.record.ring import Record

PREEMPTED = ("preempt-self", "preempt-other")
SPOILT = "non-finite"  # the end after which the prefix cache does not hand on a request's blocks


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """A step. ``end`` is None for one that never ended."""

    begin: StepStart
    end: DecodedEnd | None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """``start`` is None when the steps begin with the first one ever, on an untouched pool.

    ``newest`` is False if records newer than these were readable, but nothing to start them from.
    """

    start: KeyframeRecord | None
    steps: list[HistoryStep]
    newest: bool


def read_history(image: RingImage) -> History | None:
    """The longest history up to the newest step from which the scheduler's state can be told at every step.

    It starts with the ring's first record, if that is still there, or else at the oldest keyframe after which no record
    is missing. None when neither exists, because of damage or of keyframes that never fitted.
    """
    for age, run in enumerate(image.runs):
        first, last = run[0].sequence, run[-1].sequence
        starts: list[tuple[int, KeyframeRecord | None]] = [(0, None)] if first == 0 else []
        starts += [(sequence, keyframe) for keyframe, sequence in image.keyframes if first <= sequence <= last + 1]
        if starts:
            # A server that went on after a step it could not end has a state that no step explains.
            abandoned = _last_abandoned(run)
            sequence, keyframe = next((pair for pair in starts if pair[0] > abandoned), starts[-1])
            return History(start=keyframe, steps=_steps(run, sequence), newest=age == 0)
    for keyframe, sequence in reversed(image.keyframes):
        if not image.runs or sequence > image.runs[0][-1].sequence:
            return History(start=keyframe, steps=[], newest=True)
    return None


def request_headers(image: RingImage) -> dict[int, dict[str, object]]:
    """Headers of the requests whose arrival in the recorder the ring still holds, by serial."""
    records = (record for run in image.runs for record in run if record.kind == ring.REQUEST)
    return {int.from_bytes(record.payload[:4], "little"): decode_json(record.payload[4:]) for record in records}


def _last_abandoned(run: list[Record]) -> int:
    """Sequence of the last step that began, never ended, and was followed by another. -1 if there is none."""
    abandoned, open_since = -1, None
    for record in run:
        if record.kind == ring.BEGIN:
            if open_since is not None:
                abandoned = open_since
            open_since = record.sequence
        elif record.kind == ring.END:
            open_since = None
    return abandoned


def _steps(run: list[Record], sequence: int) -> list[HistoryStep]:
    steps: list[HistoryStep] = []
    for record in run:
        if record.sequence < sequence:
            continue
        if record.kind == ring.BEGIN:
            steps.append(HistoryStep(decode_begin(record.payload), None))
        elif record.kind == ring.END and steps and steps[-1].end is None:
            end = decode_end(record.payload)
            if end.index != steps[-1].begin.index or len(end.drew) != len(steps[-1].begin.serials):
                raise ValueError(f"the end of step {end.index} does not fit the beginning before it")
            steps[-1] = HistoryStep(steps[-1].begin, end)
    return steps


@dataclass(slots=True)
class RequestState:
    """A live request as the steps leave it."""

    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)


class SchedulerState:
    """Scheduler and pool, moved from step to step by what was recorded.

    It decides nothing. The order of the free list is that of the engine's pool: blocks are taken from the front and
    come back to the end, the last of a table first. ``consistent`` turns False when a step does what this state does
    not allow. A block is free when its last reference goes: with a prefix cache tables share blocks. ``cached`` is what
    that cache knows, in order of registration.

    ``free`` and ``waiting`` are ordered sets: a hostile ring takes blocks and requests from anywhere in them, a hundred
    thousand times.
    """

    def __init__(self, start: KeyframeRecord | None, num_blocks: int) -> None:
        self.free = OrderedDict.fromkeys(range(num_blocks) if start is None else start.free_blocks)
        self.running: dict[int, RequestState] = {}
        self.waiting = OrderedDict[int, None].fromkeys(() if start is None else start.waiting)
        self.preempted: set[int] = set()
        self.ended: dict[int, tuple[int, str, str]] = {}  # serial: step, reason, cause
        self.arrivals: dict[int, int] = {}
        self.cached = OrderedDict[int, CachedBlock]()
        for entry in () if start is None else start.cached:
            self.cached[entry.block] = entry
        self.consistent = True
        self._references: dict[int, int] = {}
        for serial, num_computed, _, blocks in () if start is None else start.running:
            self.running[serial] = RequestState(num_computed, list(blocks))
            for block in blocks:
                self._references[block] = self._references.get(block, 0) + 1

    def apply(self, step: HistoryStep) -> None:
        """Move on by one step; a step that never ended has taken its blocks and computed nothing."""
        begin = step.begin
        for serial in begin.arrived:
            self.arrivals[serial] = begin.index
            self.waiting[serial] = None
        self._end(begin.aborted, begin.index)
        self._plan(begin)
        if step.end is not None:
            for serial, start, count in zip(begin.serials, begin.starts, begin.counts, strict=True):
                if serial in self.running:
                    self.running[serial].num_computed = start + count
            self._end(step.end.finished, begin.index)
            for entry in step.end.cached:
                self.cached[entry.block] = entry
                self.cached.move_to_end(entry.block)

    def _plan(self, begin: StepStart) -> None:
        """Chunks and exhaustion interleaved as they were: a block that one gave up, the next may have taken."""
        finished = {entry[0]: entry for entry in begin.finished}
        admitted = set(begin.admitted)
        hits = {hit.serial: hit for hit in begin.hits}
        blocks: dict[int, list[int]] = {}
        for row, block in begin.new_blocks:
            blocks.setdefault(row, []).append(block)
        attempts = deque(begin.exhausted)
        for row in range(len(begin.serials) + 1):
            while attempts and attempts[0].before_chunk <= row:
                attempt = attempts.popleft()
                if attempt.serial in admitted:
                    self._admit(attempt.serial, hits)
                if attempt.outcome in PREEMPTED:
                    self._preempt(attempt.serial if attempt.victim is None else attempt.victim)
                elif attempt.serial in finished:
                    self._end([finished.pop(attempt.serial)], begin.index)
            if row < len(begin.serials):
                serial = begin.serials[row]
                if serial in admitted:
                    self._admit(serial, hits)
                if row in blocks:
                    self._take(serial, blocks[row])
                elif serial not in self.running:
                    self.consistent = False
        for serial in begin.admitted:
            self._admit(serial, hits)
        self._end(finished.values(), begin.index)

    def _admit(self, serial: int, hits: Mapping[int, HitRecord]) -> None:
        if serial not in self.waiting:
            return
        del self.waiting[serial]
        state = self.running[serial] = RequestState()
        if (hit := hits.get(serial)) is not None:
            state.num_computed = hit.num_tokens
            shared = hit.blocks if hit.copied_from is None else hit.blocks[:-1]
            for block in shared:
                if block not in self.free and not self._references.get(block):
                    self.consistent = False
                self.free.pop(block, None)
                self._references[block] = self._references.get(block, 0) + 1
            state.blocks.extend(shared)
            self._take(serial, list(hit.blocks[len(shared) :]))

    def _take(self, serial: int, blocks: list[int]) -> None:
        state = self.running.get(serial)
        if state is None:
            self.consistent = False
            return
        for block in blocks:
            if next(iter(self.free), None) != block:
                self.consistent = False
            self.free.pop(block, None)
            self.cached.pop(block, None)
            self._references[block] = self._references.get(block, 0) + 1
        state.blocks.extend(blocks)

    def _preempt(self, serial: int) -> None:
        state = self.running.pop(serial, None)
        if state is None:
            self.consistent = False
            return
        self._free(state.blocks)
        self.waiting[serial] = None
        self.waiting.move_to_end(serial, last=False)
        self.preempted.add(serial)

    def _end(self, entries: Iterable[Ended], step: int) -> None:
        for serial, reason, cause in entries:
            self.ended[serial] = (step, reason, cause)
            state = self.running.pop(serial, None)
            if state is not None:
                if cause == SPOILT:
                    for block in state.blocks:
                        self.cached.pop(block, None)
                self._free(state.blocks)
            else:
                self.waiting.pop(serial, None)

    def _free(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            if block in self.free:
                self.consistent = False
            left = self._references.get(block, 1) - 1
            self._references[block] = max(left, 0)
            if left <= 0:
                self.free[block] = None
