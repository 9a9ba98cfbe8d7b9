"""The job function of a trial: plays one scenario in a worker that is kept, and tells what it showed.

Free of torch until a model plays. The dump that scenarios are taken from is opened once for each worker, and so is its
model loaded.
"""

from __future__ import annotations

import base64
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dumps.errors import DumpError
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from replay.errors import ReplayError
from replay.isolate.worker import Emit
from replay.scenario.play import Ended, Player, play
from replay.scenario.record import record
from replay.scenario.scenario import Scenario
from replay.signature import Identity, Signature

TRIAL_FUNCTION = f"{__name__}:run"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    key: tuple[str, str | None]
    like: pb.RuntimeState
    player: Player | None


_kept: list[_Bench] = []


def run(job: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Play ``job["scenario"]`` until ``job["wanted"]`` shows, or, with ``job["record"]``, give the dump of that.

    What a scenario cannot do is told as ``refused``, so that the worker is kept.
    """
    emit({"event": "progress", "stage": "load", "done": 0, "total": None})
    bench = _bench(job)
    emit({"event": "step-started"})
    scenario, wanted = Scenario.from_json(job["scenario"]), Identity(**job["wanted"])
    try:
        if job.get("record"):
            return _record(scenario, bench, wanted, job["max_steps"])
        return _play(scenario, bench, wanted, job)
    except (DumpError, ReplayError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}


def _bench(job: dict[str, Any]) -> _Bench:
    key = (job["dump"], job.get("model") if job["target"] == "inference" else None)
    if not _kept or _kept[0].key != key:
        _kept.clear()
        with open_dump(Path(job["dump"])) as dump:
            like = pb.RuntimeState()
            like.CopyFrom(dump.state)
        player: Player | None = None
        if key[1] is not None:
            from replay.engine.device import resolve  # these bring torch
            from replay.scenario.model_player import ModelPlayer

            recorded = next((pair.value for pair in like.manifest.platform if pair.key == "device"), "")
            player = ModelPlayer.load(Path(key[1]), like, device=resolve(job["device"], recorded=recorded))
        _kept.append(_Bench(key=key, like=like, player=player))
    return _kept[0]


def _play(scenario: Scenario, bench: _Bench, wanted: Identity, job: dict[str, Any]) -> dict[str, Any]:
    played = play(scenario, bench.player, wanted=wanted, max_steps=job["max_steps"], seconds=job["seconds"])
    seen = dict.fromkeys(Signature.of(failure).identity for failure in played.failures)
    return {
        "shows": played.ended is Ended.WANTED,
        "seen": [asdict(identity) for identity in seen],
        "steps": played.steps,
        "peak": played.peak_used_blocks,
        "ended": played.ended.value,
    }


def _record(scenario: Scenario, bench: _Bench, wanted: Identity, max_steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "played.pplx"
        record(scenario, path, bench.like, bench.player, wanted=wanted, max_steps=max_steps)
        return {"dump": base64.b64encode(path.read_bytes()).decode("ascii")}
