"""Replays by the job alone, in this process, and the verdict that is due on a dump as it was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dumps.schema import state_pb2 as pb
from replay.targets.job import run_job


def replayed(dump: Path, model: Path | None, **options: Any) -> dict[str, Any]:
    """The report."""
    return run_job({"dump": str(dump), "model": str(model) if model else None, **options}, lambda event: None)


def verdict_due(state: pb.RuntimeState) -> tuple[str, str]:
    """Verdict and reason for a replay that meets no difference."""
    if not state.failures:
        return "inconclusive", "no-failure-recorded" if state.steps else "steps-absent"
    failure = state.failures[-1]
    if failure.kind == "stall" and not failure.HasField("step"):  # it came before the first step
        return ("inconclusive", "steps-absent") if state.scheduler.HasField("start") else ("reproduced", "")
    if not state.steps or failure.step < state.steps[0].index:
        return "inconclusive", "steps-absent"
    return "reproduced", ""
