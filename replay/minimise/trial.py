"""The job function of a trial: plays one scenario in a worker that is kept, and tells what it showed.

Free of torch until a model plays. The dump that scenarios are taken from is opened once for each worker, and so is its
model loaded.
"""

from __future__ import annotations

import base64
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dumps.errors import DumpError
from replay.errors import ReplayError
from replay.isolate.worker import Emit
from replay.scenario.bench import Bench, bench
from replay.scenario.play import Ended, play
from replay.scenario.record import record
from replay.scenario.scenario import Scenario
from replay.signature import Identity, Signature

TRIAL_FUNCTION = f"{__name__}:run"


def run(job: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Play ``job["scenario"]`` until ``job["wanted"]`` shows, or, with ``job["record"]``, give the dump of that.

    What a scenario cannot do is told as ``refused``, so that the worker is kept.
    """
    emit({"event": "progress", "stage": "load", "done": 0, "total": None})
    made_with = bench(job)
    emit({"event": "step-started"})
    scenario, wanted = Scenario.from_json(job["scenario"]), Identity(**job["wanted"])
    try:
        if job.get("record"):
            return _record(scenario, made_with, wanted, job["max_steps"])
        return _play(scenario, made_with, wanted, job)
    except (DumpError, ReplayError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}


def _play(scenario: Scenario, made_with: Bench, wanted: Identity, job: dict[str, Any]) -> dict[str, Any]:
    played = play(scenario, made_with.player, wanted=wanted, max_steps=job["max_steps"], seconds=job["seconds"])
    seen = dict.fromkeys(Signature.of(failure).identity for failure in played.failures)
    return {
        "shows": played.ended is Ended.WANTED,
        "seen": [asdict(identity) for identity in seen],
        "steps": played.steps,
        "peak": played.peak_used_blocks,
        "ended": played.ended.value,
    }


def _record(scenario: Scenario, made_with: Bench, wanted: Identity, max_steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "played.pplx"
        record(scenario, path, made_with.like, made_with.player, wanted=wanted, max_steps=max_steps)
        return {"dump": base64.b64encode(path.read_bytes()).decode("ascii")}
