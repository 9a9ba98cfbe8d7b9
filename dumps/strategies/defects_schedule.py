"""Defects of the schedule: steps that do not follow from one another, or do not fit requests and blocks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from dumps.schema import state_pb2 as pb
from dumps.strategies.defect import Change, Defect, both, clear, put, settle
from dumps.tensors import from_le32, le32


def _queues(state: pb.RuntimeState) -> Iterator[Change]:
    scheduler = state.scheduler
    for index, request in enumerate(state.requests):
        if request.status == "finished":
            yield partial(scheduler.waiting.append, index)
    for index in (*scheduler.running, *scheduler.waiting):
        yield partial(scheduler.waiting.append, index)
    if len(scheduler.running) > 1:
        yield put(state.engine, max_num_seqs=len(scheduler.running) - 1)


def _request_index(state: pb.RuntimeState) -> Iterator[Change]:
    nobody = len(state.requests)
    yield partial(state.scheduler.waiting.append, nobody)
    for step in state.steps:
        yield partial(step.arrived.append, nobody)
        yield partial(step.admitted.append, nobody)
        yield lambda step=step: step.aborted.add(request=nobody)  # type: ignore[misc]


def _step_index(state: pb.RuntimeState) -> Iterator[Change]:
    for number in range(1, len(state.steps)):
        later = [put(step, index=step.index + 1) for step in state.steps[number:]]
        counted = put(state.scheduler, next_step=state.scheduler.next_step + 1)
        yield both(clear(state, "trace_events"), counted, *later)


def _time(state: pb.RuntimeState) -> Iterator[Change]:
    for number in range(1, len(state.steps)):
        yield put(state.steps[number], start_ns=state.steps[number - 1].start_ns - 1)


def _completed(state: pb.RuntimeState) -> Iterator[Change]:
    for step in state.steps[:-1]:
        if not step.scheduled or not (state.engine.prefix_cache or any(chunk.sampled for chunk in step.scheduled)):
            yield put(step, completed=False)


def _no_scheduler(state: pb.RuntimeState) -> Iterator[Change]:
    if state.steps and _begins_clear(state):
        yield clear(state, "scheduler")


def _keyframe(state: pb.RuntimeState) -> Iterator[Change]:
    if not state.steps:
        return
    start = state.scheduler.start
    if state.scheduler.HasField("start"):
        yield put(start, before_step=start.before_step + 1)
        if _begins_clear(state):
            yield clear(state.scheduler, "start")
    else:
        yield put(start, before_step=state.steps[0].index + 1, free_blocks=le32(range(state.engine.num_blocks)))


def _next_step(state: pb.RuntimeState) -> Iterator[Change]:
    if state.steps:
        yield put(state.scheduler, next_step=state.scheduler.next_step + 1)


def _output_count(state: pb.RuntimeState) -> Iterator[Change]:
    for one in state.scheduler.start.running:
        yield put(one, num_output_tokens=one.num_output_tokens + 1)


def _blocks(state: pb.RuntimeState) -> Iterator[Change]:
    start = state.scheduler.start
    if state.scheduler.HasField("start"):
        free = from_le32(start.free_blocks)
        yield put(start, free_blocks=start.free_blocks + b"\0")
        if free:
            yield put(start, free_blocks=le32([*free[:-1], state.engine.num_blocks]))
            yield put(start, free_blocks=le32(free[:-1]))
    for _, chunk in _chunks(state):
        yield put(chunk, new_blocks=chunk.new_blocks + b"\0")


def _no_slot(state: pb.RuntimeState) -> Iterator[Change]:
    """Chunks without the blocks that their tokens need."""
    for _, chunk in _chunks(state) if not state.engine.prefix_cache else ():
        if chunk.new_blocks:
            yield _steps_alone(state, clear(chunk, "new_blocks"))


def _twice(state: pb.RuntimeState) -> Iterator[Change]:
    """One chunk planned as two."""
    for step, chunk in _chunks(state):
        if chunk.num_tokens > 1:
            yield partial(_cut, step, chunk)


def _cut(step: pb.Step, chunk: pb.Scheduled) -> None:
    entries = list(step.scheduled)
    place = next(number for number, one in enumerate(entries) if one is chunk or one == chunk)
    first, rest = pb.Scheduled(), pb.Scheduled()
    first.CopyFrom(chunk)
    rest.CopyFrom(chunk)
    first.num_tokens, first.sampled = 1, False
    first.ClearField("sampled_token")
    rest.start, rest.num_tokens, rest.new_blocks = chunk.start + 1, chunk.num_tokens - 1, b""
    planned = [*entries[:place], first, rest, *entries[place + 1 :]]
    planned = [pb.Scheduled.FromString(one.SerializeToString()) for one in planned]
    step.ClearField("scheduled")
    step.scheduled.extend(planned)
    for event in step.exhausted:
        event.before_scheduled += event.before_scheduled > place


def _budget(state: pb.RuntimeState) -> Iterator[Change]:
    most = max((sum(chunk.num_tokens for chunk in step.scheduled) for step in state.steps), default=0)
    if most > 1:
        yield put(state.engine, max_num_batched_tokens=most - 1)


def _exhausted(state: pb.RuntimeState) -> Iterator[Change]:
    for step in state.steps if state.requests else ():
        yield lambda step=step: step.exhausted.add(  # type: ignore[misc]
            blocks_needed=1, blocks_free=1, outcome="raise", before_scheduled=len(step.scheduled)
        )
        for event in step.exhausted:
            yield put(event, blocks_free=event.blocks_needed)


def _num_tokens(state: pb.RuntimeState) -> Iterator[Change]:
    """An empty chunk of a request that holds nothing in the last step."""
    if not state.steps:
        return
    last = state.steps[-1]
    for index, request in enumerate(state.requests):
        ended = request.status == "finished" and request.finish_step < last.index
        if ended or request.status == "waiting":
            yield partial(last.scheduled.append, pb.Scheduled(request=index))


def _contiguous(state: pb.RuntimeState) -> Iterator[Change]:
    """A token computed again."""
    for step, chunk in _chunks(state):
        if chunk.start and sum(one.num_tokens for one in step.scheduled) < state.engine.max_num_batched_tokens:
            yield put(chunk, start=chunk.start - 1, num_tokens=chunk.num_tokens + 1)


def _beyond_end(state: pb.RuntimeState) -> Iterator[Change]:
    """In a step that died, since one that did not draws at the end."""
    if not state.steps or state.steps[-1].completed:
        return
    step = state.steps[-1]
    rooms = {table.request: len(table.blocks) // 4 * state.engine.block_size for table in state.kv.tables}
    budget = state.engine.max_num_batched_tokens - sum(chunk.num_tokens for chunk in step.scheduled)
    for chunk in step.scheduled:
        request = state.requests[chunk.request]
        beyond = request.num_prompt_tokens + request.num_output_tokens + 1 - chunk.start
        if chunk.start + beyond <= rooms.get(chunk.request, 0) and beyond - chunk.num_tokens <= budget:
            yield put(chunk, num_tokens=beyond)


def _token_id(state: pb.RuntimeState) -> Iterator[Change]:
    """A drawn token that no list of its request tells."""
    for _, chunk in _chunks(state):
        if chunk.HasField("sampled_token") and state.model.vocab_size:
            untold = clear(state.requests[chunk.request], "output_token_ids")
            drawn = put(chunk, sampled_token=state.model.vocab_size)
            yield both(clear(state, "trace_events"), untold, drawn)


def _sampled(state: pb.RuntimeState) -> Iterator[Change]:
    """Tokens drawn in a step that died."""
    if not state.steps or state.engine.prefix_cache:
        return
    last = state.steps[-1]
    if last.completed and any(chunk.sampled for chunk in last.scheduled):
        yield both(put(last, completed=False), put(state.scheduler, next_step=last.index))


def _token_mismatch(state: pb.RuntimeState) -> Iterator[Change]:
    for _, chunk in _chunks(state):
        if chunk.HasField("sampled_token") and state.model.vocab_size > 1:
            other = (chunk.sampled_token + 1) % state.model.vocab_size
            yield both(clear(state, "trace_events"), put(chunk, sampled_token=other))


def _digest_mismatch(state: pb.RuntimeState) -> Iterator[Change]:
    for _, chunk in _chunks(state):
        if chunk.sampled:
            request = state.requests[chunk.request]
            yield both(put(request, output_digests=bytes(8 * request.num_output_tokens)), put(chunk, logits_digest=5))


def _block_held(state: pb.RuntimeState) -> Iterator[Change]:
    """A block that is handed out in a step, handed out again in it."""
    for step in state.steps if not state.engine.prefix_cache else ():
        taken: list[int] = []
        for chunk in step.scheduled if not step.exhausted else ():
            blocks = from_le32(chunk.new_blocks)
            if blocks and taken:
                yield _steps_alone(state, put(chunk, new_blocks=le32([taken[0], *blocks[1:]])))
            if len(blocks) > 1:
                yield _steps_alone(state, put(chunk, new_blocks=le32([*blocks[:-1], blocks[0]])))
            taken += blocks


def _tables(state: pb.RuntimeState) -> Iterator[Change]:
    """Another block than the steps lead to."""
    free = from_le32(state.kv.free_blocks)
    for table in state.kv.tables if free and state.steps else ():
        blocks = from_le32(table.blocks)
        if blocks:
            yield both(put(table, blocks=le32([*blocks[:-1], free[0]])), partial(settle, state))


def _chunks(state: pb.RuntimeState) -> Iterator[tuple[pb.Step, Any]]:
    return ((step, chunk) for step in state.steps for chunk in step.scheduled)


def _begins_clear(state: pb.RuntimeState) -> bool:
    """Whether the steps can be followed without the state before them: nobody gives blocks back that it held then."""
    return not (
        state.scheduler.HasField("start")
        and any(step.aborted or step.finished or step.exhausted for step in state.steps)
    )


def _steps_alone(state: pb.RuntimeState, change: Change) -> Change:
    """The change, with no pool that tells of other tables."""
    return both(clear(state, "kv"), change)


DEFECTS = (
    Defect(name="request in a queue where it cannot be", rule="schedule.queues", places=_queues),
    Defect(name="step of nobody", rule="schedule.request-index", places=_request_index),
    Defect(name="missing step", rule="schedule.step-index", places=_step_index),
    Defect(name="step before the one before it", rule="schedule.time", places=_time),
    Defect(name="step after one that died", rule="schedule.completed", places=_completed),
    Defect(name="steps without a scheduler", rule="schedule.scheduler", places=_no_scheduler),
    Defect(name="record that does not begin where it begins", rule="schedule.keyframe", places=_keyframe),
    Defect(name="wrong next step", rule="schedule.next-step", places=_next_step),
    Defect(name="other number of tokens than were drawn", rule="schedule.output-count", places=_output_count),
    Defect(name="blocks of the schedule that the pool has not", rule="schedule.blocks", places=_blocks),
    Defect(name="tokens without a slot", rule="schedule.no-slot", places=_no_slot),
    Defect(name="chunk without tokens", rule="schedule.num-tokens", places=_num_tokens),
    Defect(name="request twice in a step", rule="schedule.twice", places=_twice),
    Defect(name="step over the token budget", rule="schedule.budget", places=_budget),
    Defect(name="pool exhausted with blocks left", rule="schedule.exhausted", places=_exhausted),
    Defect(name="token computed twice", rule="schedule.contiguous", places=_contiguous),
    Defect(name="token computed that does not exist", rule="schedule.beyond-end", places=_beyond_end),
    Defect(name="drawn token outside the vocabulary", rule="schedule.token-id", places=_token_id),
    Defect(name="token drawn in a step that died", rule="schedule.sampled", places=_sampled),
    Defect(name="another token drawn than answered", rule="schedule.token-mismatch", places=_token_mismatch),
    Defect(name="another digest than the request's", rule="schedule.digest-mismatch", places=_digest_mismatch),
    Defect(name="block handed out twice", rule="schedule.block-held", places=_block_held),
    Defect(name="table that the steps do not lead to", rule="schedule.tables", places=_tables),
)
