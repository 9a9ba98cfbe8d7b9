"""Flies the real scheduler with a recorder aboard, and keeps every step in memory to compare with."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dumps.record.recorder import ExhaustedRecord, FlightRecorder, KeyframeRecord, RecordLevel, StepEnd, StepStart
from dumps.schema import state_pb2 as pb
from dumps.tensors import from_le32
from replay.engine.live import LiveScheduler
from replay.engine.request import FinishCause, Request, SamplingParams
from replay.engine.schedule import EngineConfig, OnExhausted, Sample, StepPlan

VOCAB = 50_000
EOS = 7


def identity(config: EngineConfig) -> dict[str, Any]:
    return {
        "active_model": "tiny",
        "manifest": {
            "tool_version": "0.1.0",
            "debug_level": 1,
            "versions": {"python": "3.11"},
            "platform": {"cpu.model": "x"},
            "platform_fingerprint": "0" * 64,
            "launch_arguments": ["--port", "1"],
        },
        "model": {"name": "tiny", "vocab_size": VOCAB, "num_layers": 1, "num_kv_heads": 1, "head_dim": 4},
        "engine": {
            "engine": "pplx",
            "block_size": config.block_size,
            "num_blocks": config.num_blocks,
            "max_model_len": config.max_model_len,
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "on_kv_exhausted": config.on_kv_exhausted.value,
        },
        "kv": {
            "num_layers": 1,
            "num_kv_heads": 1,
            "head_dim": 4,
            "dtype": "float32",
            "bytes_per_block": 2 * config.block_size * 4 * 4,
        },
        "quirks": [],
    }


def make_config(**changes: Any) -> EngineConfig:
    facts: dict[str, Any] = {
        "num_blocks": 12,
        "max_model_len": 40,
        "block_size": 4,
        "max_num_seqs": 5,
        "max_num_batched_tokens": 16,
        "on_kv_exhausted": OnExhausted.PREEMPT,
    }
    return EngineConfig(**(facts | changes))


def make_recorder(path: Path, config: EngineConfig, **changes: Any) -> FlightRecorder:
    facts: dict[str, Any] = {
        "level": RecordLevel.TOKENS,
        "slots": 16,
        "slot_tokens": 64,
        "ring_bytes": 16384,
        "slot_blocks": 10,
    }
    return FlightRecorder(path, identity(config), **(facts | changes))


@dataclass(frozen=True)
class Snapshot:
    """Serials and blocks as the real scheduler had them."""

    free: list[int]
    tables: dict[int, list[int]]
    waiting: list[int]


@dataclass
class Flight:
    """``begins`` and ``ends`` are what was recorded; requests by serial in ``requests``."""

    recorder: FlightRecorder
    config: EngineConfig
    seed: int = 0
    digests: bool = False
    begins: list[StepStart] = field(default_factory=list)
    ends: list[StepEnd] = field(default_factory=list)
    requests: dict[int, Request] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.scheduler = LiveScheduler(self.config, eos_token_ids=(EOS,))
        self.serials: dict[Request, int] = {}
        # By step: what pool and queues were after it was planned, and after it ended.
        self.planned: dict[int, Snapshot] = {}
        self.ended: dict[int, Snapshot] = {}

    def add(self, num_prompt: int, **sampling: Any) -> Request:
        number = len(self.requests) + 1
        prompt = [self.random.randrange(10, VOCAB) for _ in range(num_prompt)]
        params = SamplingParams(**({"temperature": 0.5, "seed": 2**64 - number} | sampling))
        request = Request(id=f"req-{number}", tokens=list(prompt), num_prompt=num_prompt, sampling=params)
        header = {
            "id": request.id,
            "arrival_ns": 1000 + number,
            "endpoint": "/v1/completions",
            "stream": True,
            "sample_index": number % 3,
            "sampling": asdict(params),
            "prompt_text": f"text of {number}",
        }
        serial = self.recorder.add_request(header, prompt)
        self.serials[request] = serial
        self.requests[serial] = request
        self.scheduler.add(request)
        return request

    def fly(self, steps: int) -> None:
        for _ in range(steps):
            self._maybe_arrive()
            if self.plan() is not None:
                self.commit()

    def _maybe_arrive(self) -> None:
        chance = self.random.random
        if len(self.scheduler.waiting) < 4 and chance() < 0.5:
            self.add(self.random.randrange(1, 20), max_tokens=self.random.randrange(1, 20))
        if self.scheduler.running and chance() < 0.05:
            victim = self.random.choice([*self.scheduler.running, *self.scheduler.waiting])
            self.scheduler.abort(victim, FinishCause.CLIENT_GONE)

    def plan(self) -> StepPlan | None:
        plan = self.current = self.scheduler.plan()
        if plan is None:
            return None
        s = self.serials
        begin = StepStart(
            index=plan.index,
            start_ns=10**9 + plan.index,
            serials=[s[c.request] for c in plan.chunks],
            starts=[c.start for c in plan.chunks],
            counts=[c.num_tokens for c in plan.chunks],
            new_blocks=[(row, block) for row, c in enumerate(plan.chunks) for block in c.new_blocks],
            arrived=[s[r] for r in plan.arrived],
            admitted=[s[r] for r in plan.admitted],
            aborted=self._ends(plan.aborted),
            exhausted=[
                ExhaustedRecord(
                    s[e.request],
                    e.blocks_needed,
                    e.blocks_free,
                    e.outcome.value,
                    s[e.victim] if e.victim else None,
                    e.before_chunk,
                )
                for e in plan.exhausted
            ],
            finished=self._ends(plan.finished),
        )
        self.planned[plan.index] = self.snapshot()
        self.begins.append(begin)
        self.recorder.begin_step(begin)
        return plan

    def commit(self) -> None:
        plan = self.current
        assert plan is not None
        samples = {c.request.id: self._draw() for c in plan.chunks if c.samples}
        finished = self.scheduler.commit(plan, samples)
        drawn = [samples.get(c.request.id) for c in plan.chunks]
        end = StepEnd(
            index=plan.index,
            tokens=[-1 if sample is None or not sample.finite else sample.token for sample in drawn],
            digests=[0 if sample is None else sample.digest or 0 for sample in drawn] if self.digests else None,
            finished=self._ends(finished),
        )
        self.ended[plan.index] = self.snapshot()
        self.ends.append(end)
        self.recorder.end_step(end)
        if self.recorder.keyframe_due():
            self.recorder.keyframe(self.keyframe())

    def snapshot(self) -> Snapshot:
        return Snapshot(
            free=list(self.scheduler.pool.free),
            tables={self.serials[r]: list(r.blocks) for r in self.scheduler.running},
            waiting=[self.serials[r] for r in self.scheduler.waiting],
        )

    def check(self, state: pb.RuntimeState) -> None:
        """Assert that ``state`` is true: a stretch of what happened, with nothing in it that did not."""
        serial = {f"unknown-{n}": n for n in self.requests} | {r.id: n for n, r in self.requests.items()}
        serials = [serial[request.id] for request in state.requests]
        begins = {begin.index: begin for begin in self.begins}
        ends = {end.index: end for end in self.ends}
        indices = [step.index for step in state.steps]
        assert indices == list(range(indices[0], indices[0] + len(indices))) if indices else True
        for step in state.steps:
            begin = begins[step.index]
            rows = [(serials[c.request], c.start, c.num_tokens) for c in step.scheduled]
            assert rows == list(zip(begin.serials, begin.starts, begin.counts, strict=True))
            blocks = [(row, block) for row, c in enumerate(step.scheduled) for block in from_le32(c.new_blocks)]
            assert blocks == begin.new_blocks
            assert [serials[index] for index in step.arrived] == begin.arrived
            assert [serials[index] for index in step.admitted] == begin.admitted
            assert self.finishes(step.aborted, serials) == begin.aborted
            finished = list(begin.finished)
            if step.completed:
                end = ends[step.index]
                finished += end.finished
                assert [c.sampled for c in step.scheduled] == [token >= 0 for token in end.tokens]
                if state.manifest.record_level != "shape":
                    assert [c.sampled_token for c in step.scheduled if c.sampled] == [t for t in end.tokens if t >= 0]
                if end.digests is not None:
                    assert [c.logits_digest for c in step.scheduled if c.sampled] == [
                        d for d, t in zip(end.digests, end.tokens, strict=True) if t >= 0
                    ]
            assert self.finishes(step.finished, serials) == finished
        if state.steps:
            last = state.steps[-1]
            known = (self.ended if last.completed else self.planned)[last.index]
            assert from_le32(state.kv.free_blocks) == known.free
            assert {serials[t.request]: from_le32(t.blocks) for t in state.kv.tables} == known.tables
            waiting = [serials[index] for index in state.scheduler.waiting]
            assert waiting[: len(known.waiting)] == known.waiting
        for request, number in zip(state.requests, serials, strict=True):
            real = self.requests[number]
            if request.HasField("prompt_token_ids"):
                assert from_le32(request.prompt_token_ids) == real.tokens[: real.num_prompt]
            if request.HasField("output_token_ids"):
                assert from_le32(request.output_token_ids) == real.output[: request.num_output_tokens]
            if not request.id.startswith("unknown-"):
                assert request.num_prompt_tokens == real.num_prompt
                assert request.num_output_tokens <= real.num_output
                assert request.sampling.seed == real.sampling.seed

    def finishes(self, entries: Iterable[pb.Finished], serials: list[int]) -> list[tuple[int, str, str]]:
        return [(serials[e.request], e.reason, e.cause) for e in entries]

    def keyframe(self) -> KeyframeRecord:
        scheduler = self.scheduler
        return KeyframeRecord(
            before_step=scheduler.next_step,
            free_blocks=list(scheduler.pool.free),
            running=[(self.serials[r], r.num_computed, r.num_output, list(r.blocks)) for r in scheduler.running],
            waiting=[self.serials[r] for r in scheduler.waiting],
            outputs=[(self.serials[r], r.num_output) for r in scheduler.waiting if r.num_output],
        )

    def _draw(self) -> Sample:
        chance = self.random.random()
        token = EOS if chance < 0.03 else self.random.randrange(10, VOCAB)
        return Sample(token, digest=self.random.getrandbits(64), finite=chance < 0.99)

    def _ends(self, finishes: list[Any]) -> list[tuple[int, str, str]]:
        return [(self.serials[f.request], f.reason.value, f.cause.value) for f in finishes]
