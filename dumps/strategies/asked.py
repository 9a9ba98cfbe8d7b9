"""What the requests of a recorded run asked for, apart from what an engine made of them: a run taken back to its start.

It is read from a dump, changed, and put into another dump: one in which everybody comes and leaves when they did, and
nothing has been computed yet. A run of it shows what follows.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from dumps import ledger
from dumps.errors import InvalidState
from dumps.schema import state_pb2 as pb
from dumps.tensors import from_le32, le32

DEPARTURES = ("client-gone", "timeout")
_OWN_ENDS = ("eos", "stop-token", "stop-string", "early-exit")
_STEP_NS = 1000
_RECORDED = ("output_digests", "output_text", "finish_reason", "finish_cause", "finish_step", "num_output_tokens")


@dataclass(slots=True, kw_only=True)
class Asked:
    """One request with nothing drawn. It comes before step ``arrives`` and leaves before those in ``leaves``, each with
    its cause, the first one first; steps count from the first of the record.

    ``rank`` is its place among those that leave. What it had drawn before the record belongs to its prompt, and an
    answer that had an end of its own has that length as its limit.
    """

    request: pb.Request
    arrives: int
    leaves: list[tuple[int, str]] = field(default_factory=list)
    rank: int = 0

    @property
    def length(self) -> int:
        """Tokens of the prompt."""
        return self.request.num_prompt_tokens

    @property
    def tokens(self) -> list[int] | None:
        """Ids of the prompt, None where only their number is known."""
        known = self.request.HasField("prompt_token_ids")
        return from_le32(self.request.prompt_token_ids) if known else None

    def say(self, tokens: Sequence[int]) -> None:
        """Ask with these token ids."""
        self.request.prompt_token_ids, self.request.num_prompt_tokens = le32(tokens), len(tokens)
        self.request.ClearField("prompt_text")

    def resize(self, length: int) -> None:
        """Cut the prompt, or let it go on as it began."""
        tokens = self.tokens
        if tokens:
            self.say([tokens[place % len(tokens)] for place in range(length)])
        else:
            self.request.num_prompt_tokens = length

    def copy(self, request_id: str) -> Asked:
        request = pb.Request()
        request.CopyFrom(self.request)
        request.id = request_id
        return Asked(request=request, arrives=self.arrives, leaves=list(self.leaves), rank=self.rank)


@dataclass(slots=True, kw_only=True)
class Run:
    """``asked`` in order of arrival. ``base`` holds all the rest of the dump, and ``engine`` of it may be changed.

    ``first`` is the index of the record's first step, and ``begun`` says that it does not begin with the run.
    ``free_blocks`` is the order of an untouched pool, None for that of its ids.
    """

    base: pb.RuntimeState
    asked: list[Asked]
    first: int
    begun: bool
    free_blocks: list[int] | None = None

    @property
    def engine(self) -> pb.EngineConfig:
        return self.base.engine

    @classmethod
    def of(cls, state: pb.RuntimeState) -> Run:
        """Raises `InvalidState` for a dump without requests whose arrival is known."""
        base = pb.RuntimeState()
        base.CopyFrom(state)
        first = state.steps[0].index if state.steps else state.scheduler.next_step
        run = cls(base=base, asked=[], first=first, begun=state.scheduler.HasField("start"))
        run.asked = _asked(state, first)
        if not run.asked:
            raise InvalidState("no request of this dump has a known arrival", remedy="Record with a larger ring.")
        if state.manifest.record_level == "shape" and state.engine.prefix_cache:
            run._make_up_tokens()
        return run

    def state(self, note: str = "") -> pb.RuntimeState:
        """The dump, with steps in which people come and leave and nothing runs. ``note`` says what is changed."""
        state = pb.RuntimeState()
        state.CopyFrom(self.base)
        for name in ("requests", "steps", "scheduler", "trace_events"):
            state.ClearField(name)
        self.asked.sort(key=lambda one: one.arrives)
        for one in self.asked:
            self._put(state, one)
        self._put_steps(state)
        self._put_pool(state)
        self._put_references(state)
        told = "who comes and leaves, as in another dump; what an engine makes of them follows from a run"
        ledger.record(state, "steps", pb.SYNTHESISED, told)
        if note:
            ledger.record(state, "requests", pb.SYNTHESISED, f"those of another dump, changed: {note}")
        digest = hashlib.sha256(state.SerializeToString(deterministic=True))
        state.manifest.id = digest.hexdigest()[:16]
        return state

    def _make_up_tokens(self) -> None:
        """Ids for a record of lengths, without which nobody could share a prefix. No two requests begin alike, unless
        there are more of them than ids."""
        vocab = max(self.base.model.vocab_size, 1)
        for number, one in enumerate(self.asked):
            one.say([(number + place * 7) % vocab for place in range(one.length)])
            one.request.output_token_ids = b""
        self.base.manifest.record_level = "tokens"
        ledger.record(self.base, "requests[].prompt_token_ids", pb.SYNTHESISED, "the dump has lengths only")

    def _put(self, state: pb.RuntimeState, one: Asked) -> None:
        request = state.requests.add()
        request.CopyFrom(one.request)
        request.arrival_step, request.status = self.first + one.arrives, "waiting"
        if one.leaves:
            request.status, request.finish_reason, request.finish_cause = "finished", "abort", one.leaves[0][1]
            request.finish_step = self.first + one.leaves[0][0]

    def _put_steps(self, state: pb.RuntimeState) -> None:
        began = self.base.steps[0].start_ns if self.base.steps else 0
        last = max(step for one in self.asked for step in (one.arrives, *(step for step, _ in one.leaves)))
        for number in range(last + 1):
            state.steps.add(index=self.first + number, start_ns=began + number * _STEP_NS, completed=True)
        there = [index for index, one in enumerate(self.asked) if self.begun and not one.arrives]
        for index, one in enumerate(self.asked):
            if index not in there:
                state.steps[one.arrives].arrived.append(index)
        for index, one in sorted(enumerate(self.asked), key=lambda numbered: numbered[1].rank):
            for step, cause in one.leaves:
                state.steps[step].aborted.add(request=index, reason="abort", cause=cause)
        scheduler = state.scheduler
        scheduler.next_step = self.first + last + 1
        scheduler.waiting.extend(index for index, one in enumerate(self.asked) if not one.leaves)
        if self.begun or self.free_blocks is not None:
            free = range(self.engine.num_blocks) if self.free_blocks is None else self.free_blocks
            scheduler.start.MergeFrom(pb.Keyframe(before_step=self.first, free_blocks=le32(free), waiting=there))

    def _put_pool(self, state: pb.RuntimeState) -> None:
        """An untouched pool of the engine's size."""
        if not state.HasField("kv"):
            return
        old, kv = self.base.kv, state.kv
        for name in ("free_blocks", "tables", "ref_counts", "prefix_hashes", "block_history", "contents_blocks"):
            kv.ClearField(name)
        kv.ClearField("seq_len_exceeded_at")
        kv.used_bytes, kv.contents_selection = 0, "none"
        kv.num_blocks, kv.block_size = self.engine.num_blocks, self.engine.block_size
        if old.num_blocks and old.block_size:
            kv.max_bytes = old.max_bytes // old.num_blocks * kv.block_size // old.block_size * kv.num_blocks

    def _put_references(self, state: pb.RuntimeState) -> None:
        """Failures and tool calls name the requests by their new places; what lies at a step or a block is open."""
        places = {request.id: index for index, request in enumerate(state.requests)}
        named: list[pb.Failure | pb.ToolCall] = [*state.failures, *state.tool_calls]
        for one in named:
            if one.HasField("request"):
                place = places.get(self.base.requests[one.request].id)
                one.ClearField("request") if place is None else setattr(one, "request", place)
        for failure in state.failures:
            failure.ClearField("step")
            failure.ClearField("read")
            if failure.HasField("non_finite"):
                failure.non_finite.ClearField("block")
                failure.non_finite.ClearField("slot")


def _asked(state: pb.RuntimeState, first: int) -> list[Asked]:
    arrivals: dict[int, int] = {}
    for index in (*(one.request for one in state.scheduler.start.running), *state.scheduler.start.waiting):
        arrivals[index] = 0
    for step in state.steps:
        for index in step.arrived:
            arrivals.setdefault(index, step.index - first)
    end = len(state.steps)
    if state.steps or state.scheduler.HasField("start"):
        for index in state.scheduler.waiting:
            arrivals.setdefault(index, end)
    elif not any(request.num_output_tokens for request in state.requests):
        arrivals = dict.fromkeys(range(len(state.requests)), 0)
    leaves = _departures(state, first)
    return [Asked(request=_begun(state, index), arrives=step, leaves=leaves[index]) for index, step in arrivals.items()]


def _departures(state: pb.RuntimeState, first: int) -> dict[int, list[tuple[int, str]]]:
    found: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for step in state.steps:
        for end in step.aborted:
            if end.cause in DEPARTURES:
                found[end.request].append((step.index - first, end.cause))
    for failure in state.failures:  # the dump of a deadline is written before its request is ended
        index = failure.request
        timed_out = failure.kind == "timeout" and failure.HasField("request")
        if timed_out and index not in found and not state.requests[index].finish_cause:
            found[index].append((len(state.steps), "timeout"))
    return found


def _begun(state: pb.RuntimeState, index: int) -> pb.Request:
    """The request as it stood before the first step of the record."""
    recorded = state.requests[index]
    chunks = [chunk for step in state.steps for chunk in step.scheduled if chunk.request == index]
    drawn = sum(chunk.sampled for chunk in chunks)
    before = max(recorded.num_output_tokens - drawn, 0)
    length = recorded.num_prompt_tokens + before
    if not recorded.num_prompt_tokens:  # its slot was taken again; what it computed tells how long it was
        ends = [(chunk.start + chunk.num_tokens, chunk.sampled) for chunk in chunks]
        length = next((end for end, sampled in ends if sampled), max((end for end, _ in ends), default=0) + 1)
    request = pb.Request()
    request.CopyFrom(recorded)
    one = Asked(request=request, arrives=0)
    if recorded.HasField("prompt_token_ids") and recorded.HasField("output_token_ids"):
        prompt = from_le32(recorded.prompt_token_ids)
        if before:
            one.say([*prompt, *from_le32(recorded.output_token_ids)[:before]])
        request.output_token_ids = b""
    else:
        request.ClearField("prompt_token_ids")
        request.ClearField("output_token_ids")
        request.num_prompt_tokens = length
    for name in _RECORDED:
        request.ClearField(name)
    causes = [end.cause for step in state.steps for end in step.finished if end.request == index]
    _limit(request.sampling, (causes or [recorded.finish_cause])[0], before=before, drawn=drawn)
    return request


def _limit(sampling: pb.SamplingParams, cause: str, *, before: int, drawn: int) -> None:
    """Count what was drawn before against the limits, and make an end of its own one."""
    if not sampling.top_p:  # not on record
        sampling.CopyFrom(pb.SamplingParams(temperature=1.0, top_p=1.0, repetition_penalty=1.0, seed=sampling.seed))
    if sampling.max_tokens:
        sampling.max_tokens = max(sampling.max_tokens - before, 1)
    sampling.min_tokens = max(sampling.min_tokens - before, 0)
    ended = drawn + 1 if cause == "non-finite" else drawn if cause in _OWN_ENDS else 0
    if ended:
        sampling.max_tokens = min(sampling.max_tokens or ended, ended)
