"""The serving side with everything real except the model: an executor that a test holds up, or makes fail."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dumps.record.recorder import FlightRecorder, RecordLevel
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from replay.engine.detokenize import Vocabulary
from replay.engine.kv_store import KVStore
from replay.engine.request import Request, SamplingParams
from replay.engine.schedule import EngineConfig, Sample, StepPlan
from replay.engine.stop_strings import StopStrings
from replay.serving.contents import RecordKv
from replay.serving.dumping import Dumper
from replay.serving.engine_thread import EngineThread
from replay.serving.jobs import Job, Update
from replay.serving.metrics import Metrics
from replay.serving.session import Parts, Sessions
from tests.tiny import tiny_tokenizer

CONFIG = EngineConfig(num_blocks=32, max_model_len=64, block_size=4, max_num_seqs=2)


@dataclass(slots=True)
class ScriptedExecutor:
    """Draws token 10 everywhere. ``before`` runs first in each step and may wait or raise."""

    before: Callable[[StepPlan], None] = field(default=lambda plan: None)

    def execute(self, plan: StepPlan) -> dict[str, Sample]:
        self.before(plan)
        return {chunk.request.id: Sample(token=10) for chunk in plan.chunks if chunk.samples}


@dataclass(slots=True, kw_only=True)
class Scripted:
    """An engine's thread with its parts. ``dumps`` is where dumps and rings are."""

    engine: EngineThread
    executor: ScriptedExecutor
    metrics: Metrics
    vocabulary: Vocabulary
    dumps: Path

    async def dump_state(self) -> pb.RuntimeState:
        """The content of a dump on demand."""
        dump_id = await asyncio.wrap_future(self.engine.dump("demand"))
        with open_dump(self.dumps / f"{dump_id}.pplx") as dump:
            return dump.state

    def job(self, name: str, *, max_tokens: int = 5, sink: asyncio.Queue[Update] | None = None) -> Job:
        request = Request(id=name, tokens=[4, 5, 6], num_prompt=3, sampling=SamplingParams(max_tokens=max_tokens))
        return Job(
            request=request,
            choice=0,
            sink=sink or asyncio.Queue(),
            endpoint="/v1/completions",
            stream=False,
            arrival_ns=time.monotonic_ns(),
        )

    async def held(self, *jobs: Job) -> Gate:
        """Submit these jobs. The executor is in its first step with them until the gate is opened."""
        gate = self.executor.before = Gate()
        self.engine.submit(list(jobs))
        await asyncio.to_thread(gate.reached.wait, 30)
        return gate


@contextmanager
def scripted(
    folder: Path, *, per_minute: int = 100, ring_bytes: int = 1 << 16, config: EngineConfig = CONFIG
) -> Iterator[Scripted]:
    """A started engine on the running loop. It is stopped in the end; an executor that waits must be let go first."""
    metrics, executor, vocabulary = Metrics(), ScriptedExecutor(), Vocabulary(tiny_tokenizer())
    kv = KVStore(num_blocks=config.num_blocks, block_size=4, num_layers=1, num_kv_heads=1, head_dim=2, dtype="float32")
    facts = {
        "engine": {"engine": "pplx", "num_blocks": config.num_blocks, "block_size": 4, "max_model_len": 64,
                   "max_num_seqs": 2, "max_num_batched_tokens": 256, "on_kv_exhausted": "preempt"},
        "model": {"vocab_size": 320, "num_layers": 1, "num_kv_heads": 1, "head_dim": 2},
        "kv": {"num_layers": 1, "num_kv_heads": 1, "head_dim": 2, "dtype": "float32", "bytes_per_block": 64},
    }  # fmt: skip

    def open_recorder(path: Path) -> FlightRecorder:
        return FlightRecorder(
            path, facts, level=RecordLevel.TOKENS, slots=8, slot_tokens=64, ring_bytes=ring_bytes, slot_blocks=16
        )

    parts = Parts(
        config=config,
        executor=executor,
        kv=kv,
        eos_token_ids=(2,),
        stop_strings=StopStrings(vocabulary),
        open_recorder=open_recorder,
        dumper=Dumper(folder, metrics=metrics, per_minute=per_minute),
        record_kv=RecordKv.FAULTY,
        keep_text=False,
    )
    engine = EngineThread(open_session=Sessions(parts, folder).open, metrics=metrics, loop=asyncio.get_running_loop())
    engine.start()
    try:
        yield Scripted(engine=engine, executor=executor, metrics=metrics, vocabulary=vocabulary, dumps=folder)
    finally:
        executor.before = lambda plan: None
        engine.stop("the test is over")
        assert engine.join(30)


class Gate:
    """Holds an executor in its step until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, plan: StepPlan) -> None:
        self.reached.set()
        self.open.wait(30)
