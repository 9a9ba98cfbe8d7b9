"""The job function of an example on an engine: plays it in a worker that is kept, and tells what it showed.

Free of torch until a model plays. The dump that examples start from is opened once for each worker, and so is its model
loaded.
"""

from __future__ import annotations

import base64
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from replay.fuzz.properties import CANNOT, broken_by, broken_by_a_recording, checked_play
from replay.fuzz.recorded import recorded
from replay.isolate.worker import Emit
from replay.scenario.bench import Bench, bench
from replay.scenario.scenario import Scenario
from replay.signature import Identity
from replay.targets.host import Host
from replay.targets.job import run_job
from replay.targets.kept_model import KeptModel

ENGINE_FUNCTION = f"{__name__}:run"


_model = KeptModel()


def run(job: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Play ``job["scenario"]`` and check its properties, or, with ``job["wanted"]``, give the dump of that failure.

    Recordings of a first failure that is in ``job["enough"]`` were looked at often enough; None stands for no failure.
    What cannot be played is told as ``refused``, so that the worker is kept.
    """
    emit({"event": "progress", "stage": "load", "done": 0, "total": None})
    made_with = bench(job)
    emit({"event": "step-started"})
    scenario = Scenario.from_json(job["scenario"])
    try:
        if job.get("wanted"):
            return _record(scenario, made_with, Identity(**job["wanted"]), job["change"])
        return _check(scenario, made_with, job)
    except CANNOT as error:
        return {"refused": f"{type(error).__name__}: {error}"}


def _check(scenario: Scenario, made_with: Bench, job: dict[str, Any]) -> dict[str, Any]:
    first = checked_play(scenario, made_with.player, seconds=job["seconds"])
    broken = [*broken_by(scenario, first, player=made_with.player, seconds=job["seconds"])]
    identities = first.identities
    wanted = identities[0] if identities else None
    looked_at = False
    if not broken and (asdict(wanted) if wanted is not None else None) not in job["enough"]:
        looked_at = True

        def replay(path: Path, target: str) -> dict[str, Any]:
            replayed = {"dump": str(path), "target": target}
            if target == "inference":
                replayed |= {"model": job["model"], "device": job["device"]}
            return run_job(replayed, lambda event: None, Host(load=_model.load))

        broken += broken_by_a_recording(scenario, made_with.like, wanted, player=made_with.player, replay=replay)
    return {
        "failures": [asdict(identity) for identity in identities],
        "violations": [one.to_json() for one in broken],
        "recorded": looked_at,
        "ended": first.played.ended.value,
        "steps": first.played.steps,
    }


def _record(scenario: Scenario, made_with: Bench, wanted: Identity, change: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="pplx-fuzz-") as folder:
        path = Path(folder) / "played.pplx"
        recorded(scenario, path, made_with.like, made_with.player, wanted=wanted, change=change)
        return {"dump": base64.b64encode(path.read_bytes()).decode("ascii")}
