"""The job function of a worker that replays many dumps."""

from __future__ import annotations

from typing import Any

from replay.isolate.worker import Emit, error_event
from replay.targets.batch import run_batch

JOB_FUNCTION = f"{__name__}:run"


def run(job: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """See `run_batch`."""
    return run_batch(job, emit, error_event=error_event)
