"""Loads whose prompts share prefixes, run through a scheduler on a model that is no more than a memory of its slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from replay.engine.engine import Engine, StepOutcome
from replay.engine.live import LiveScheduler
from replay.engine.recorded import RecordedStep
from replay.engine.request import FinishCause, Request, SamplingParams
from replay.engine.schedule import Chunk, EngineConfig, Exhausted, Finish, OnExhausted, Sample, StepPlan

VOCAB = 3


class Memory:
    """An executor whose slots hold the tokens up to their position: what a computation there would have depended on.

    It asserts of every token it computes that the slots before it hold that request's own tokens, and nobody else's.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.block_size = config.block_size
        self.slots: dict[int, tuple[int, ...]] = {}

    def execute(self, plan: StepPlan) -> dict[str, Sample]:
        for source, target in plan.copies:
            for place in range(self.block_size):
                self.slots[target * self.block_size + place] = self.slots[source * self.block_size + place]
        for chunk in plan.chunks:
            self.read(chunk.request, chunk.start)
            for position in range(chunk.start, chunk.start + chunk.num_tokens):
                self.slots[chunk.request.slot(position, self.block_size)] = tuple(chunk.request.tokens[: position + 1])
        return {c.request.id: Sample(self.draw(c.request)) for c in plan.chunks if c.samples}

    def read(self, request: Request, stop: int) -> None:
        for position in range(stop):
            slot = request.slot(position, self.block_size)
            held, wanted = self.slots.get(slot), tuple(request.tokens[: position + 1])
            assert held == wanted, f"slot {slot} holds {held}, position {position} of {request.id} needs {wanted}"

    def draw(self, request: Request) -> int:
        """Depends on all tokens so far, so that equal prefixes go on equally."""
        return sum((place + 1) * token for place, token in enumerate(request.tokens)) % VOCAB


@dataclass
class Taken:
    """An engine hook that keeps each step as a dump would, with fresh copies of the requests that hold prompts only."""

    copies: dict[str, Request] = field(default_factory=dict)
    steps: list[RecordedStep] = field(default_factory=list)

    def copy(self, r: Request) -> Request:
        if r.id not in self.copies:
            tokens = r.tokens[: r.num_prompt]
            self.copies[r.id] = Request(id=r.id, tokens=tokens, num_prompt=r.num_prompt, sampling=r.sampling)
        return self.copies[r.id]

    def planned(self, plan: StepPlan) -> None:
        def attempt(e: Exhausted) -> Exhausted:
            return replace(e, request=self.copy(e.request), victim=self.copy(e.victim) if e.victim else None)

        self.steps.append(
            RecordedStep(
                index=plan.index,
                chunks=tuple(Chunk(self.copy(c.request), c.start, c.num_tokens, c.new_blocks) for c in plan.chunks),
                arrived=tuple(map(self.copy, plan.arrived)),
                aborted=tuple(Finish(self.copy(f.request), f.reason, f.cause) for f in plan.aborted),
                admitted=tuple(map(self.copy, plan.admitted)),
                exhausted=tuple(map(attempt, plan.exhausted)),
                prefix_hits=tuple(replace(hit, request=self.copy(hit.request)) for hit in plan.prefix_hits),
            )
        )

    def stepped(self, outcome: StepOutcome) -> None:
        ends = tuple(Finish(self.copy(f.request), f.reason, f.cause) for f in outcome.finished)
        self.steps[-1] = replace(self.steps[-1], finished=ends)


def request(name: str, tokens: list[int], max_tokens: int = 1) -> Request:
    return Request(id=name, tokens=list(tokens), num_prompt=len(tokens), sampling=SamplingParams(max_tokens=max_tokens))


def config_of(**changes: object) -> EngineConfig:
    """16 blocks of 4 tokens and the prefix cache, with ``changes``."""
    values = {"num_blocks": 16, "block_size": 4, "max_model_len": 64, "max_num_batched_tokens": 64}
    return EngineConfig(**(values | {"prefix_cache": True} | changes))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Guest:
    """One request of a load: it comes after so many steps, and its client leaves after so many more."""

    arrives: int
    prompt: tuple[int, ...]
    max_tokens: int
    stays: int


@st.composite
def loads(draw: st.DrawFn) -> tuple[EngineConfig, list[Guest]]:
    block_size = draw(st.integers(1, 4))
    config = EngineConfig(
        num_blocks=draw(st.integers(-(-24 // block_size), 2 * -(-24 // block_size))),
        block_size=block_size,
        max_model_len=24,
        max_num_seqs=draw(st.integers(1, 5)),
        max_num_batched_tokens=draw(st.integers(1, 16)),
        on_kv_exhausted=draw(st.sampled_from([OnExhausted.PREEMPT, OnExhausted.TRUNCATE])),
        prefix_cache=True,
    )
    stem = tuple(draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)))
    guest = st.builds(
        Guest,
        arrives=st.integers(0, 12),
        prompt=st.builds(
            lambda cut, tail: stem[:cut] + tuple(tail),
            st.integers(1, len(stem)),
            st.lists(st.integers(0, VOCAB - 1), max_size=5),
        ),
        max_tokens=st.integers(1, 12),
        stays=st.integers(0, 40),
    )
    return config, draw(st.lists(guest, min_size=1, max_size=8))


def play(engine: Engine, guests: Sequence[Guest], limit: int = 2_000) -> dict[str, Request]:
    """Run a load to its end and check every invariant after each step."""
    requests = {
        f"r{i}": Request(
            id=f"r{i}",
            tokens=list(guest.prompt),
            num_prompt=len(guest.prompt),
            sampling=SamplingParams(max_tokens=guest.max_tokens),
        )
        for i, guest in enumerate(guests)
    }
    for step in range(limit):
        for request, guest in zip(requests.values(), guests, strict=True):
            if step == guest.arrives:
                engine.add(request)
            if step == guest.arrives + guest.stays + 1:
                engine.abort(request, FinishCause.CLIENT_GONE)
        engine.step()
        engine.scheduler.check_integrity()
        if all(request.finished for request in requests.values()) and engine.step() is None:
            return requests
    raise AssertionError("requests are left over")


def engine_on(config: EngineConfig, taken: Taken | None = None) -> tuple[Engine, Memory]:
    memory = Memory(config)
    hooks = [] if taken is None else [taken]
    return Engine(scheduler=LiveScheduler(config), executor=memory, hooks=hooks), memory
