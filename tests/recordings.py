"""Dumps made by the server's own parts in this process: scheduler, model, flight recorder, dumper; only HTTP is left
out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from replay.engine.request import NO_FLAGS, InternalFlags, Request, SamplingParams
from replay.serving.jobs import Job
from replay.serving.main import Server
from replay.serving.options import ServerOptions
from replay.serving.session import Session


@dataclass(slots=True)
class Recording:
    """A session that was run. ``dumps`` are those written at its failures, in order; the ring is still open."""

    session: Session
    folder: Path
    dumps: list[Path] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    error: Exception | None = None


def record(
    model: Path,
    folder: Path,
    prompts: Sequence[Sequence[int]],
    *,
    arrivals: Sequence[int] = (),
    limits: Sequence[int] = (),
    sampling: SamplingParams = SamplingParams(temperature=0.0),  # noqa: B008 - frozen
    flags: InternalFlags = NO_FLAGS,
    steps: int = 400,
    stop_at_failure: bool = True,
    server: Server | None = None,
    **options: Any,
) -> Recording:
    """Run ``prompts`` until the first failure, or to their end. ``arrivals`` holds the step before which each comes.

    ``limits`` replaces ``max_tokens`` for each. A ``server`` serves one more session, with its own ``options``.
    """
    server = server or make_server(model, folder, **options)
    session = server.sessions().open()
    recording = Recording(session, folder)
    for index, prompt in enumerate(prompts):
        own = replace(sampling, max_tokens=limits[index]) if limits else sampling
        request = Request(id=f"r{index}", tokens=list(prompt), num_prompt=len(prompt), sampling=own, flags=flags)
        recording.requests.append(request)
    for step in range(steps):
        for index, request in enumerate(recording.requests):
            if step == (arrivals[index] if arrivals else 0):
                session.add(_job(request))
        try:
            outcome = session.engine.step()
        except Exception as error:
            recording.error = error
            session.failed(session.engine.failure_of(error))
            recording.dumps.append(_written(session.dump("exception", exception=error), folder))
            return recording
        if outcome is not None and outcome.failures:
            recording.dumps.append(_written(session.dump(outcome.failures[-1].kind.value), folder))
            if stop_at_failure:
                return recording
        if outcome is None and step > max(arrivals, default=0):
            break
    return recording


def make_server(model: Path, folder: Path, **options: Any) -> Server:
    settings = {"record": "tokens", "threads": 1, "device": "cpu", "max_num_batched_tokens": 32, **options}
    return Server(ServerOptions(model=str(model), dump_dir=folder, **settings))


def dump_now(recording: Recording) -> Path:
    """A dump on demand, of what the ring holds."""
    return _written(recording.session.dump("demand"), recording.folder)


def _job(request: Request) -> Job:
    return Job(
        request=request,
        choice=0,
        sink=asyncio.Queue(),
        endpoint="/v1/completions",
        stream=False,
        arrival_ns=time.monotonic_ns(),
    )


def _written(dump_id: str | None, folder: Path) -> Path:
    assert dump_id is not None, "the dump was not written"
    return folder / f"{dump_id}.pplx"
