"""Rules of the schedule: the recorded steps, walked once from the keyframe (or an untouched pool) to the last one.

The walk keeps what follows from the record alone: how far each request is computed, how many tokens it has drawn, and
which blocks it holds. A preemption takes a request back to zero; the end of a request frees its blocks. With a prefix
cache a request begins with what it was given, and several hold one block.
"""

from __future__ import annotations

from collections import Counter, deque

from dumps.schema import state_pb2 as pb
from dumps.validate.finding import Finding, Findings, check_le32, check_range, whole_ids
from dumps.validate.prefix import PrefixWalk, check_hashes, check_hit
from dumps.validate.requests import DIGEST_BYTES

OUTCOMES = ("truncate", "preempt-self", "preempt-other", "raise")


def check_schedule(state: pb.RuntimeState) -> Findings:
    """All rules of ``state.scheduler`` and ``state.steps``."""
    yield from _queues(state)
    yield from _indices(state)
    walk = _Walk(state)
    yield from walk.start()
    for number, step in enumerate(state.steps):
        yield from walk.step(step, f"steps[{number}]")
    yield from walk.end()


def _queues(state: pb.RuntimeState) -> Findings:
    scheduler, total = state.scheduler, len(state.requests)
    for name in ("waiting", "running"):
        yield from _request_indices(list(getattr(scheduler, name)), total, f"scheduler.{name}")
    places = Counter([*scheduler.waiting, *scheduler.running])
    for request, count in places.items():
        if count > 1:
            yield Finding("schedule.queues", "scheduler", f"request {request} stands {count} times in its queues")
        if request < total and state.requests[request].status == "finished":
            yield Finding("schedule.queues", "scheduler", f"request {request} has finished and stands in a queue")
    most = state.engine.max_num_seqs
    if most and len(scheduler.running) > most:
        message = f"{len(scheduler.running)} requests run, max_num_seqs is {most}"
        yield Finding("schedule.queues", "scheduler.running", message)
    if scheduler.HasField("start"):
        start = scheduler.start
        yield from _request_indices(list(start.waiting), total, "scheduler.start.waiting")
        yield from _request_indices([one.request for one in start.running], total, "scheduler.start.running")


def _request_indices(indices: list[int], total: int, path: str) -> Findings:
    bad = [index for index in indices if index >= total]
    if bad:
        yield Finding("schedule.request-index", path, f"there is no request {bad[0]}")


def _indices(state: pb.RuntimeState) -> Findings:
    """Step indices ascend by one, from the keyframe or zero; only the last step may be unfinished."""
    steps = state.steps
    for number in range(1, len(steps)):
        path = f"steps[{number}]"
        if steps[number].index != steps[number - 1].index + 1:
            message = f"step {steps[number].index} after step {steps[number - 1].index}"
            yield Finding("schedule.step-index", f"{path}.index", message)
        if steps[number].start_ns < steps[number - 1].start_ns:
            yield Finding("schedule.time", f"{path}.start_ns", "before the step before it", "warning")
        if not steps[number - 1].completed:
            message = "not completed, and yet another step follows"
            yield Finding("schedule.completed", f"steps[{number - 1}].completed", message)
    if not steps:
        return
    if not state.HasField("scheduler"):
        yield Finding("schedule.scheduler", "scheduler", "there are steps and no scheduler state")
        return
    scheduler, first, last = state.scheduler, steps[0], steps[-1]
    if scheduler.HasField("start"):
        if scheduler.start.before_step != first.index:
            message = f"state before step {scheduler.start.before_step}, the first step is {first.index}"
            yield Finding("schedule.keyframe", "scheduler.start.before_step", message)
    elif first.index != 0:
        message = f"no state before the first step, which is {first.index} and not 0"
        yield Finding("schedule.keyframe", "scheduler.start", message)
    wanted = last.index + 1 if last.completed else last.index
    if scheduler.next_step != wanted:
        message = f"{scheduler.next_step}, after the recorded steps it is {wanted}"
        yield Finding("schedule.next-step", "scheduler.next_step", message)


class _Walk:
    """The state that the recorded steps lead to. An absent key of ``computed`` means that it is not known."""

    def __init__(self, state: pb.RuntimeState) -> None:
        self.state = state
        self.total = len(state.requests)
        self.vocab = state.model.vocab_size
        self.num_blocks = state.engine.num_blocks or state.kv.num_blocks
        self.block_size = state.engine.block_size or state.kv.block_size
        self.computed: dict[int, int] = {}
        self.outputs: dict[int, int] = {}
        self.tables: dict[int, list[int]] = {}
        self.holders: dict[int, set[int]] = {}
        self.output_ids: dict[int, list[int]] = {}
        self.knows_start = state.scheduler.HasField("start") or (bool(state.steps) and state.steps[0].index == 0)
        follows = state.engine.prefix_cache and self.block_size > 0 and self.knows_start
        self.prefix = PrefixWalk(state, self.block_size) if follows else None
        self.written: list[pb.Scheduled] = []

    def start(self) -> Findings:
        drawn = Counter(c.request for step in self.state.steps for c in step.scheduled if c.sampled)
        for index, request in enumerate(self.state.requests):
            # Those that wait in the keyframe may have drawn tokens before it: what the steps do not explain.
            self.outputs[index] = request.num_output_tokens - drawn[index]
            if self.knows_start:
                self.computed[index] = 0
                self.tables[index] = []
            if self.outputs[index] < 0:
                message = f"{request.num_output_tokens} output tokens, its steps drew {drawn[index]}"
                yield Finding("schedule.output-count", f"requests[{index}].num_output_tokens", message)
        if self.state.scheduler.HasField("start"):
            yield from self._keyframe(self.state.scheduler.start)
            path = "scheduler.start.prefix_hashes"
            yield from check_hashes(self.state.scheduler.start.prefix_hashes, self.num_blocks, path)
            if self.prefix is not None:
                yield from self.prefix.start(self.tables, self.computed)

    def _keyframe(self, start: pb.Keyframe) -> Findings:
        free = whole_ids(start.free_blocks)
        path = "scheduler.start"
        yield from check_le32("schedule.blocks", f"{path}.free_blocks", start.free_blocks)
        yield from check_range("schedule.blocks", f"{path}.free_blocks", free, self.num_blocks, "block")
        for number, one in enumerate(start.running):
            where = f"{path}.running[{number}]"
            blocks = whole_ids(one.block_table)
            yield from check_le32("schedule.blocks", f"{where}.block_table", one.block_table)
            yield from check_range("schedule.blocks", f"{where}.block_table", blocks, self.num_blocks, "block")
            if self.block_size and one.num_computed_tokens > len(blocks) * self.block_size:
                message = f"{one.num_computed_tokens} tokens in {len(blocks)} blocks of {self.block_size}"
                yield Finding("schedule.no-slot", f"{where}.num_computed_tokens", message)
            if one.request >= self.total:
                continue
            if self.outputs[one.request] != one.num_output_tokens:
                message = (
                    f"{one.num_output_tokens} tokens drawn before the first step; "
                    f"the request's count less its steps gives {self.outputs[one.request]}"
                )
                yield Finding("schedule.output-count", f"{where}.num_output_tokens", message)
            self.computed[one.request] = one.num_computed_tokens
            self.tables[one.request] = blocks
            for block in blocks:
                self.holders.setdefault(block, set()).add(one.request)
        both = sorted(set(free) & set(self.holders))
        if both:
            yield Finding("schedule.blocks", f"{path}.free_blocks", f"block {both[0]} is free and in a block table")
        if self.num_blocks and len(set(free)) + len(self.holders) != self.num_blocks:
            message = f"{len(free)} free and {len(self.holders)} used blocks do not make {self.num_blocks}"
            yield Finding("schedule.blocks", f"{path}.free_blocks", message)

    def step(self, step: pb.Step, path: str) -> Findings:
        for name in ("admitted", "arrived"):
            yield from _request_indices(list(getattr(step, name)), self.total, f"{path}.{name}")
        for name in ("aborted", "finished"):
            yield from _request_indices([end.request for end in getattr(step, name)], self.total, f"{path}.{name}")
        for end in step.aborted:
            self._free(end.request)
        pending = deque(enumerate(step.exhausted))
        hits = {hit.request: (number, hit) for number, hit in enumerate(step.prefix_hits)}
        if len(hits) < len(step.prefix_hits):
            yield Finding("prefix.hit", f"{path}.prefix_hits", "a request is given a prefix twice in one step")
        for number, chunk in enumerate(step.scheduled):
            while pending and pending[0][1].before_scheduled <= number:
                yield from self._exhausted(step, pending.popleft(), path)
            if hits and chunk.request in hits:
                place, hit = hits.pop(chunk.request)
                yield from self._hit(step, hit, f"{path}.prefix_hits[{place}]")
            yield from self._chunk(step, chunk, f"{path}.scheduled[{number}]")
        while pending:
            yield from self._exhausted(step, pending.popleft(), path)
        requests = Counter(chunk.request for chunk in step.scheduled)
        if any(count > 1 for count in requests.values()):
            twice = requests.most_common(1)[0][0]
            yield Finding("schedule.twice", f"{path}.scheduled", f"request {twice} is scheduled twice in one step")
        tokens, most = sum(chunk.num_tokens for chunk in step.scheduled), self.state.engine.max_num_batched_tokens
        if most and tokens > most:
            yield Finding("schedule.budget", f"{path}.scheduled", f"{tokens} tokens, max_num_batched_tokens is {most}")
        for place, hit in hits.values():
            message = f"request {hit.request} computes nothing in this step"
            yield Finding("prefix.hit", f"{path}.prefix_hits[{place}].request", message)
        self._commit(step)
        for end in step.finished:
            if end.cause == "non-finite" and self.prefix is not None:
                self.prefix.spoilt(self.tables.get(end.request, ()))
            self._free(end.request)

    def _hit(self, step: pb.Step, hit: pb.PrefixHit, path: str) -> Findings:
        """An admitted request begins with blocks from the prefix cache; a copy among them is handed out as new."""
        yield from check_hit(self.state, step, hit, self.block_size, path)
        blocks = whole_ids(hit.blocks)
        if self.tables.get(hit.request):
            yield Finding("prefix.hit", f"{path}.request", f"request {hit.request} holds blocks already")
        if self.prefix is not None:
            yield from self.prefix.hit(hit, blocks, f"{path}.blocks")
        if hit.HasField("copied_from") and self.holders.get(blocks[-1] if blocks else -1):
            message = f"block {blocks[-1]} is given to request {hit.request} as a copy, and others hold it"
            yield Finding("schedule.block-held", f"{path}.blocks", message)
        for block in blocks:
            self.holders.setdefault(block, set()).add(hit.request)
        if self.knows_start:
            self.tables[hit.request], self.computed[hit.request] = blocks, hit.num_tokens

    def _commit(self, step: pb.Step) -> None:
        """What a step has computed can be given out from the next one on."""
        if self.prefix is not None and step.completed:
            for chunk in self.written:
                table = self.tables.get(chunk.request, ())
                self.prefix.wrote(chunk.request, table, chunk.start, chunk.start + chunk.num_tokens)
        self.written.clear()

    def _exhausted(self, step: pb.Step, numbered: tuple[int, pb.Exhausted], path: str) -> Findings:
        number, event = numbered
        where = f"{path}.exhausted[{number}]"
        yield from _request_indices([event.request], self.total, f"{where}.request")
        if event.outcome not in OUTCOMES:
            yield Finding("schedule.exhausted", f"{where}.outcome", f"not one of {', '.join(OUTCOMES)}")
        if event.blocks_free >= event.blocks_needed:
            message = f"{event.blocks_needed} blocks needed and {event.blocks_free} free: nothing is exhausted"
            yield Finding("schedule.exhausted", f"{where}.blocks_free", message)
        if event.before_scheduled > len(step.scheduled):
            message = f"{event.before_scheduled} entries planned before it, the step has {len(step.scheduled)}"
            yield Finding("schedule.exhausted", f"{where}.before_scheduled", message)
        if event.HasField("victim") != (event.outcome == "preempt-other"):
            yield Finding("schedule.exhausted", f"{where}.victim", "a victim goes with preempt-other, and only with it")
        elif event.HasField("victim"):
            yield from _request_indices([event.victim], self.total, f"{where}.victim")
        if event.outcome == "preempt-other":
            self._free(event.victim)
        elif event.outcome in ("preempt-self", "truncate"):
            self._free(event.request)

    def _chunk(self, step: pb.Step, chunk: pb.Scheduled, path: str) -> Findings:
        if chunk.request >= self.total:
            yield Finding("schedule.request-index", f"{path}.request", f"there is no request {chunk.request}")
            return
        if chunk.num_tokens < 1:
            yield Finding("schedule.num-tokens", f"{path}.num_tokens", "a chunk has at least one token")
        done = self.computed.get(chunk.request)
        if done is not None and chunk.start != done:
            message = f"starts at {chunk.start}, request {chunk.request} is computed up to {done}"
            yield Finding("schedule.contiguous", f"{path}.start", message)
        yield from self._new_blocks(chunk, path)
        if self.prefix is not None:
            self.written.append(chunk)
        end = chunk.start + chunk.num_tokens
        self.computed[chunk.request] = end
        request = self.state.requests[chunk.request]
        known = request.num_prompt_tokens + max(self.outputs[chunk.request], 0)
        if end > known:
            yield Finding("schedule.beyond-end", path, f"computes token {end}, request {chunk.request} has {known}")
        if chunk.HasField("sampled_token"):
            yield from check_range(
                "schedule.token-id", f"{path}.sampled_token", [chunk.sampled_token], self.vocab, "id"
            )
            if not chunk.sampled:
                yield Finding("schedule.sampled", f"{path}.sampled", "false, and yet there is a sampled_token")
        if chunk.sampled:
            yield from self._sampled(step, chunk, path, at_end=end == known)

    def _new_blocks(self, chunk: pb.Scheduled, path: str) -> Findings:
        blocks: list[int] = []
        if chunk.new_blocks:  # most decode steps take none, and there can be a million of them
            blocks = whole_ids(chunk.new_blocks)
            yield from check_le32("schedule.blocks", f"{path}.new_blocks", chunk.new_blocks)
            yield from check_range("schedule.blocks", f"{path}.new_blocks", blocks, self.num_blocks, "block")
        for block in blocks:
            if holders := self.holders.get(block):
                message = f"block {block} is given to request {chunk.request}, request {min(holders)} holds it"
                yield Finding("schedule.block-held", f"{path}.new_blocks", message)
            self.holders[block] = {chunk.request}
            if self.prefix is not None:
                self.prefix.taken(block)
        table = self.tables.get(chunk.request)
        if table is None:
            return
        table.extend(blocks)
        if not self.block_size:
            return
        end, room = chunk.start + chunk.num_tokens, len(table) * self.block_size
        if end > room:
            message = f"computes up to {end} tokens in {len(table)} blocks, room for {room}"
            yield Finding("schedule.no-slot", f"{path}.new_blocks", message)

    def _sampled(self, step: pb.Step, chunk: pb.Scheduled, path: str, *, at_end: bool) -> Findings:
        if not at_end:
            message = f"a token is drawn before the end of request {chunk.request} is computed"
            yield Finding("schedule.sampled", f"{path}.sampled", message)
        if not step.completed:
            yield Finding("schedule.sampled", f"{path}.sampled", "a token is drawn in a step that did not complete")
        request = self.state.requests[chunk.request]
        place = self.outputs[chunk.request]
        self.outputs[chunk.request] = place + 1
        if chunk.HasField("sampled_token") and request.HasField("output_token_ids"):
            output = self._output(chunk.request)
            if 0 <= place < len(output) and output[place] != chunk.sampled_token:
                message = f"token {chunk.sampled_token}, output token {place} of its request is {output[place]}"
                yield Finding("schedule.token-mismatch", f"{path}.sampled_token", message)
        if chunk.HasField("logits_digest") and place >= 0:
            whole = request.output_digests[DIGEST_BYTES * place : DIGEST_BYTES * (place + 1)]
            if len(whole) == DIGEST_BYTES and int.from_bytes(whole, "little") != chunk.logits_digest:
                message = f"output token {place} of its request has another digest"
                yield Finding("schedule.digest-mismatch", f"{path}.logits_digest", message)

    def _output(self, request: int) -> list[int]:
        # Decoded once per request, not once per step.
        if request not in self.output_ids:
            self.output_ids[request] = whole_ids(self.state.requests[request].output_token_ids)
        return self.output_ids[request]

    def _free(self, request: int) -> None:
        for block in self.tables.get(request, ()):
            holders = self.holders.get(block, set())
            holders.discard(request)
            if not holders:
                self.holders.pop(block, None)
        self.tables[request] = []
        self.computed[request] = 0

    def end(self) -> Findings:
        """Block tables and prefix cache in ``state.kv`` are those that the steps lead to, where both are known."""
        yield from check_hashes(self.state.kv.prefix_hashes, self.num_blocks, "kv.prefix_hashes")
        if self.prefix is not None and self.state.steps:
            yield from self.prefix.end()
        if not (self.knows_start and self.state.steps and self.state.kv.tables):
            return
        for number, table in enumerate(self.state.kv.tables):
            derived = self.tables.get(table.request)
            if derived is not None and derived != whole_ids(table.blocks):
                message = (
                    f"the steps lead to {len(derived)} blocks for request {table.request}, in another way than here"
                )
                yield Finding("schedule.tables", f"kv.tables[{number}].blocks", message)
