"""The job function of a worker that is kept: a replay, with the model that an earlier one may have left in memory."""

from __future__ import annotations

from typing import Any

from replay.isolate.worker import Emit
from replay.targets.host import Host
from replay.targets.job import run_job
from replay.targets.kept_model import KeptModel

WARM_FUNCTION = f"{__name__}:run"

_kept = KeptModel()


def run(job: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """See `run_job`. An event "loaded" names the model that is kept now."""
    try:
        return run_job(job, emit, Host(load=_kept.load))
    finally:
        emit({"event": "loaded", "key": _kept.name})
