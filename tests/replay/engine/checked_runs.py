"""Engines with checks of what their steps read and write, on a cache that is no more than a memory of its slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from replay.engine.block_checks import BlockChecks
from replay.engine.engine import Engine, StepOutcome
from replay.engine.failure import Failure, FailureKind
from replay.engine.live import LiveScheduler
from replay.engine.request import Request, SamplingParams
from replay.engine.schedule import Chunk, EngineConfig, Sample, StepPlan

BLOCK = 4


@dataclass
class Memory:
    """An executor and its cache: each slot holds the tokens up to its position, or nothing it was ever given."""

    num_blocks: int
    slots: list[tuple[int, ...] | None] = field(default_factory=list)
    spoilt: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = [None] * (self.num_blocks * BLOCK)
        self.position = np.full(len(self.slots), -1)

    def fill_blocks(self, blocks: Sequence[int], value: float) -> None:
        assert value != value
        for block in blocks:
            self.slots[block * BLOCK : (block + 1) * BLOCK] = [None] * BLOCK
            self.position[block * BLOCK : (block + 1) * BLOCK] = -1
        self.spoilt += blocks

    def execute(self, plan: StepPlan) -> dict[str, Sample]:
        for source, target in plan.copies:
            old, new = (slice(block * BLOCK, (block + 1) * BLOCK) for block in (source, target))
            self.slots[new], self.position[new] = self.slots[old], self.position[old]
        for chunk in plan.chunks:
            for position in range(chunk.start, chunk.start + chunk.num_tokens):
                slot = chunk.request.slot(position, BLOCK)
                self.slots[slot] = tuple(chunk.request.tokens[: position + 1])
                self.position[slot] = position
        # The next token follows from all that is read: contamination would show in it.
        return {chunk.request.id: Sample(hash(self._read(chunk)) % 2) for chunk in plan.chunks if chunk.samples}

    def _read(self, chunk: Chunk) -> tuple[tuple[int, ...] | None, ...]:
        stop = chunk.start + chunk.num_tokens
        return tuple(self.slots[chunk.request.slot(position, BLOCK)] for position in range(stop))


def request(name: str, tokens: Sequence[int], limit: int = 40) -> Request:
    return Request(
        id=name, tokens=list(tokens), num_prompt=len(tokens), sampling=SamplingParams(temperature=0.0, max_tokens=limit)
    )


def config(**changes) -> EngineConfig:
    return EngineConfig(**{"num_blocks": 24, "block_size": BLOCK, "max_model_len": 60, **changes})


class Run:
    """An engine on `Memory` with checks."""

    def __init__(self, *requests: Request, poison: bool = True, **changes) -> None:
        self.scheduler = LiveScheduler(config(**changes))
        self.memory = Memory(self.scheduler.config.num_blocks)
        self.checks = BlockChecks(self.scheduler, self.memory, poison=poison)
        self.engine = Engine(scheduler=self.scheduler, executor=self.memory, hooks=[self.checks])
        for one in requests:
            self.engine.add(one)

    def steps(self, count: int) -> list[StepOutcome]:
        outcomes = [self.engine.step() for _ in range(count)]
        return [outcome for outcome in outcomes if outcome is not None]

    def failures(self, count: int = 1) -> list[Failure]:
        found = [failure for outcome in self.steps(count) for failure in outcome.failures]
        assert all(failure.kind is FailureKind.CONTAMINATION for failure in found)
        assert found == self.checks.found[-len(found) :] or not found
        return found
