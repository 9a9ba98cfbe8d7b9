"""What a worker that plays scenarios keeps from one to the next: the dump they are like, and its model.

Free of torch until a model plays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from replay.scenario.played import Player


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """``like`` is the dump's state; ``player`` is None where answers are those of the record."""

    key: tuple[str, str | None]
    like: pb.RuntimeState
    player: Player | None


_kept: list[Bench] = []


def bench(job: Mapping[str, Any]) -> Bench:
    """That of ``job``: its ``dump`` and, for the ``target`` "inference", its ``model`` (a folder) on its ``device``.

    Opened and loaded once in a process, and again where a job names others. Raises `DumpError` and `ReplayError`.
    """
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
        _kept.append(Bench(key=key, like=like, player=player))
    return _kept[0]
