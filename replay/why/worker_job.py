"""The job function of the worker in which all replays of one dump run, so that its model is loaded once."""

from __future__ import annotations

from typing import Any

from replay.isolate.worker import Emit
from replay.targets.host import Host
from replay.targets.job import run_job
from replay.targets.kept_model import KeptModel

WORKER_FUNCTION = f"{__name__}:run"
NUMBERS = "numbers"
"""The job's key that asks for the computations of `replay.why.numbers_job` in place of a replay."""

_kept = KeptModel()


def run(job: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """A replay, see `run_job`, or what was asked for under `NUMBERS`."""
    try:
        if job.get(NUMBERS):
            from replay.why.numbers_job import run_numbers  # brings torch

            return run_numbers(job, emit, _kept.load)
        return run_job(job, emit, Host(load=_kept.load))
    finally:
        emit({"event": "loaded", "key": _kept.name})
