"""A small scheduler that draws its decisions, so that the states made from it are consistent by construction.

It is not the engine's scheduler: it takes decisions that one would not, such as chunks of any size, because a validator
must accept every state that obeys the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dumps.prefix_hash import NO_PARENT, CachedBlock, chain_of
from dumps.schema import state_pb2 as pb
from dumps.tensors import le32

Draw = Callable[[int, int], int]
"""An integer between two bounds, both included; the lower one is the simplest."""

STEP_NS = 1000


@dataclass(slots=True, kw_only=True)
class SimRequest:
    """A request of the simulation. ``tokens`` holds prompt and output."""

    index: int
    num_prompt: int
    max_tokens: int
    tokens: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    status: str = ""
    reason: str = ""
    cause: str = ""
    arrival_step: int | None = None
    finish_step: int | None = None

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt


@dataclass(slots=True, kw_only=True)
class Simulation:
    """The scheduler's state, and the steps it has taken. `step` appends one.

    With ``prefix_cache`` an admitted request may share cached blocks, all there are or fewer. ``cached`` is what the
    cache knows, in order of registration.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    policy: str
    coming: list[SimRequest]
    prefix_cache: bool = False
    cached: dict[int, CachedBlock] = field(default_factory=dict)
    references: dict[int, int] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    waiting: list[SimRequest] = field(default_factory=list)
    running: list[SimRequest] = field(default_factory=list)
    steps: list[pb.Step] = field(default_factory=list)
    keyframes: list[pb.Keyframe] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = list(range(self.num_blocks))

    def step(self, draw: Draw, *, completed: bool = True) -> None:
        """Plan one step, and unless it is the one that dies, draw its tokens."""
        index = len(self.steps)
        self.keyframes.append(self._keyframe(index))
        step = pb.Step(index=index, start_ns=STEP_NS * (index + 1), completed=completed)
        self._arrive(step, draw)
        self._abort(step, draw)
        for request in list(self.running):
            if request.status == "running":
                self._schedule(step, request, draw)
        while self.waiting and self._admit(step, draw):
            pass
        if completed:
            self._commit(step, draw)
        self.steps.append(step)

    def _arrive(self, step: pb.Step, draw: Draw) -> None:
        most = 1 if self.prefix_cache else 2  # one after the other, so that a later one finds something
        for _ in range(min(len(self.coming), draw(0, most))):
            request = self.coming.pop(0)
            request.status, request.arrival_step = "waiting", step.index
            self.waiting.append(request)
            step.arrived.append(request.index)

    def _abort(self, step: pb.Step, draw: Draw) -> None:
        live = self.running + self.waiting
        if live and draw(0, 29) == 17:  # not a bound, which Hypothesis draws far more often
            request = live[draw(0, len(live) - 1)]
            self._end(request, step.aborted.add(), step.index, "abort", "client-gone")

    def _admit(self, step: pb.Step, draw: Draw) -> bool:
        request = self.waiting[0]
        given = self._given(request, draw)
        size = self._size(len(request.tokens) - given, draw)
        whole, copies = given // self.block_size, given % self.block_size > 0
        shared = self._found(request)[:whole]
        needed = -(-(given + size) // self.block_size) - whole + sum(block in self.free for block in shared)
        if needed > len(self.free):
            return False
        self.waiting.pop(0)
        request.status = "running"
        self.running.append(request)
        step.admitted.append(request.index)
        if given:
            source = self._found(request)[whole] if copies else None
            for block in shared:
                self.references[block] = self.references.get(block, 0) + 1
            self.free = [block for block in self.free if block not in shared]
            request.blocks, request.computed = shared + self._take(int(copies)), given
            hit = step.prefix_hits.add(request=request.index, num_tokens=given, blocks=le32(request.blocks))
            if source is not None:
                hit.copied_from = source
        self._plan(step, request, size)
        return draw(0, 1) == 0

    def _size(self, left: int, draw: Draw) -> int:
        """How many of the tokens left a chunk has: mostly all, or records would hold little else than prefills."""
        return draw(1, left) if left > 1 and draw(0, 2) == 2 else left

    def _found(self, request: SimRequest) -> list[int]:
        """Cached blocks that hold the request's first tokens."""
        blocks = {entry.hash: block for block, entry in self.cached.items()}
        found: list[int] = []
        for value in chain_of(request.tokens, self.block_size):
            if value not in blocks:
                break
            found.append(blocks[value])
        return found

    def _given(self, request: SimRequest, draw: Draw) -> int:
        """How many of its tokens an admitted request is given: of some cached blocks, but never its last one."""
        found = self._found(request) if self.prefix_cache else []
        count = len(found) - draw(0, len(found)) if found and draw(0, 2) == 2 else len(found)
        given = min(count * self.block_size, len(request.tokens) - 1)
        return given if self.block_size > 1 or given == count else 0

    def _register(self, request: SimRequest) -> None:
        """Make known the full blocks of a running request. The first block with a hash keeps it."""
        known = {entry.hash for entry in self.cached.values()}
        chain = chain_of(request.tokens[: request.computed], self.block_size)
        for index, (block, value) in enumerate(zip(request.blocks, chain, strict=False)):
            if value not in known and block not in self.cached:
                self.cached[block] = CachedBlock(block, value, chain[index - 1] if index else NO_PARENT)

    def _schedule(self, step: pb.Step, request: SimRequest, draw: Draw) -> None:
        size = self._size(len(request.tokens) - request.computed, draw)
        while (missing := self._missing(request, size)) > len(self.free):
            victim = self.running[-1]
            event = step.exhausted.add(
                request=request.index,
                blocks_needed=missing,
                blocks_free=len(self.free),
                before_scheduled=len(step.scheduled),
            )
            if self.policy == "truncate":
                event.outcome = "truncate"
                self._end(request, step.finished.add(), step.index, "length", "kv-pool-exhausted")
                return
            event.outcome = "preempt-self" if victim is request else "preempt-other"
            if victim is not request:
                event.victim = victim.index
            self._preempt(victim)
            if victim is request:
                return
        self._plan(step, request, size)

    def _plan(self, step: pb.Step, request: SimRequest, size: int) -> None:
        missing = max(self._missing(request, size), 0)
        new = self._take(missing)
        request.blocks += new
        step.scheduled.add(request=request.index, start=request.computed, num_tokens=size, new_blocks=le32(new))

    def _take(self, count: int) -> list[int]:
        new, self.free = self.free[:count], self.free[count:]
        for block in new:
            self.cached.pop(block, None)
            self.references[block] = 1
        return new

    def _commit(self, step: pb.Step, draw: Draw) -> None:
        requests = {request.index: request for request in self.running}
        for chunk in step.scheduled:
            request = requests[chunk.request]
            request.computed = chunk.start + chunk.num_tokens
            if self.prefix_cache:
                self._register(request)
            if request.computed < len(request.tokens):
                continue
            token = draw(0, self.vocab_size - 1)
            request.tokens.append(token)
            chunk.sampled, chunk.sampled_token = True, token
            if token == self.vocab_size - 1:
                self._end(request, step.finished.add(), step.index, "stop", "eos")
            elif request.num_output == request.max_tokens:
                self._end(request, step.finished.add(), step.index, "length", "max-tokens")
            elif len(request.tokens) == self.max_model_len:
                self._end(request, step.finished.add(), step.index, "length", "max-model-len")

    def _missing(self, request: SimRequest, size: int) -> int:
        return -(-(request.computed + size) // self.block_size) - len(request.blocks)

    def _preempt(self, request: SimRequest) -> None:
        self._release(request)
        request.status = "preempted"
        self.running.remove(request)
        self.waiting.insert(0, request)

    def _end(self, request: SimRequest, entry: pb.Finished, step: int, reason: str, cause: str) -> None:
        self._release(request)
        (self.running if request in self.running else self.waiting).remove(request)
        request.status, request.reason, request.cause, request.finish_step = "finished", reason, cause, step
        entry.request, entry.reason, entry.cause = request.index, reason, cause

    def _release(self, request: SimRequest) -> None:
        for block in request.blocks:
            self.references[block] -= 1
            if not self.references[block]:
                self.free.append(block)
        request.blocks, request.computed = [], 0

    def _keyframe(self, before_step: int) -> pb.Keyframe:
        frame = pb.Keyframe(before_step=before_step, free_blocks=le32(self.free))
        for request in self.running:
            frame.running.add(
                request=request.index,
                num_computed_tokens=request.computed,
                num_output_tokens=request.num_output,
                block_table=le32(request.blocks),
            )
        frame.waiting.extend(request.index for request in self.waiting)
        frame.prefix_hashes.extend(self.prefix_hashes())
        return frame

    def prefix_hashes(self) -> list[pb.PrefixHash]:
        """What the cache knows, as a dump has it."""
        return [pb.PrefixHash(block=e.block, hash=e.hash, parent=e.parent) for e in self.cached.values()]
