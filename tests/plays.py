"""Whole loads played on the server's own engine loop, one step at a time in this process: arrivals and aborts at given
steps, failures with their dumps, restarts after exceptions. Only HTTP and the thread are left out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replay.engine.request import FinishCause, Request, SamplingParams
from replay.serving.engine_thread import EngineThread
from replay.serving.jobs import Job
from replay.serving.main import Server
from replay.serving.options import ServerOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request of a load: before which step it comes, and before which one its client leaves."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    sample_index: int = 0
    arrives: int = 0
    leaves: int | None = None


@dataclass(slots=True)
class Play:
    """A load that was played. ``dumps`` were written at its failures, in order; ``demand`` at its end."""

    demand: Path
    dumps: list[Path] = field(default_factory=list)


def play(model: Path, folder: Path, visits: Sequence[Visit], *, steps: int = 120, **options: Any) -> Play:
    """Serve ``visits`` for up to ``steps`` rounds and until all have ended, then dump on demand."""
    settings = {"record": "tokens", "threads": 1, "device": "cpu", "dumps_per_minute": 10_000, **options}
    server = Server(ServerOptions(model=str(model), dump_dir=folder, **settings))
    loop = asyncio.new_event_loop()
    engine = EngineThread(open_session=server.sessions().open, metrics=server.metrics, loop=loop)
    dumps: list[Path] = []
    jobs = [_job(index, visit) for index, visit in enumerate(visits)]
    last = max([visit.arrives for visit in visits] + [visit.leaves or 0 for visit in visits], default=0)
    for step in range(steps):
        arriving = [job for job, visit in zip(jobs, visits, strict=True) if visit.arrives == step]
        leaving = [job for job, visit in zip(jobs, visits, strict=True) if visit.leaves == step]
        if arriving:
            engine._add(arriving)
        if leaving:
            engine._abort(leaving, FinishCause.CLIENT_GONE)
        if not (engine.session.engine.has_work or engine._abort_unseen):
            if step > last:
                break
            continue
        engine._step()
        new = [path for path in folder.glob("*.pplx") if path not in dumps]
        assert len(new) <= 1
        dumps += new
    dump_id = engine.session.dump("demand")
    assert dump_id is not None, "the dump was not written"
    engine.session.close()
    loop.close()
    return Play(folder / f"{dump_id}.pplx", dumps)


def _job(index: int, visit: Visit) -> Job:
    return Job(
        request=Request(
            id=f"r{index}",
            tokens=list(visit.prompt),
            num_prompt=len(visit.prompt),
            sampling=visit.sampling,
            sample_index=visit.sample_index,
        ),
        choice=0,
        sink=asyncio.Queue(),
        endpoint="/v1/completions",
        stream=False,
        arrival_ns=time.monotonic_ns(),
    )
