"""The flight recorder on a play: the server's hook, and what it would have been told of the requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dumps.record.recorder import FlightRecorder, RecordLevel
from dumps.schema import state_pb2 as pb
from replay.engine.engine import StepOutcome
from replay.engine.failure import Failure
from replay.engine.live import LiveScheduler
from replay.engine.request import Request
from replay.engine.schedule import StepPlan
from replay.scenario.scenario import Scenario, Visit, answer_tokens
from replay.serving.hooks import RecorderHook
from replay.serving.jobs import Job

ENDPOINT = "/v1/completions"


class Tape:
    """A `Recorder` that writes a ring of its own. `broken` says that it gave up, and `close` ends it."""

    def __init__(self, recorder: FlightRecorder, scheduler: LiveScheduler, like: pb.RuntimeState) -> None:
        self._hook = RecorderHook(recorder, scheduler, keep_text=False)
        self._known = {request.id: request for request in like.requests}

    @property
    def broken(self) -> bool:
        return self._hook.broken

    def planned(self, plan: StepPlan) -> None:
        self._hook.planned(plan)

    def stepped(self, outcome: StepOutcome) -> None:
        self._hook.stepped(outcome)

    def failed(self, failure: Failure) -> None:
        self._hook.failed(failure)

    def came(self, visit: Visit, request: Request) -> None:
        """Take it on record. Endpoint and stream are those of the request with the same id in the dump it is like."""
        known = self._known.get(visit.id)
        self._hook.arrived(
            Job(
                request=request,
                choice=0,
                sink=asyncio.Queue(),  # nobody reads it
                endpoint=known.endpoint if known is not None else ENDPOINT,
                stream=known.stream if known is not None else False,
                arrival_ns=0,
            )
        )

    def close(self) -> None:
        self._hook.close(clean=True)


class _Recorder(FlightRecorder):
    """A ring has no negative ids: one that is not known is written as 0, and taken out of the dump again."""

    def add_request(self, header: Mapping[str, Any], prompt: Sequence[int]) -> int:
        return super().add_request(header, [max(token, 0) for token in prompt])


def open_recorder(
    path: Path, scenario: Scenario, *, level: RecordLevel, ring_bytes: int, bytes_per_block: int
) -> FlightRecorder:
    """A recorder with a slot for each visit, and room for all of its tokens. Raises OSError."""
    config = scenario.config
    longest = max((len(visit.prompt) + answer_tokens(visit, config) for visit in scenario.visits), default=1)
    engine = {
        "block_size": config.block_size,
        "num_blocks": config.num_blocks,
        "max_num_seqs": config.max_num_seqs,
        "prefix_cache": config.prefix_cache,
    }
    return _Recorder(
        path,
        {"engine": engine, "kv": {"bytes_per_block": bytes_per_block}},
        level=level,
        slots=max(len(scenario.visits), 1),
        slot_tokens=longest + 1,
        ring_bytes=ring_bytes,
        slot_blocks=-(-(longest + 1) // config.block_size),
    )
