"""Failures that were met on the way and are not the wanted one: kept aside, one file for each identity."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path

from replay.minimise.order import cost
from replay.scenario.scenario import Scenario
from replay.signature import Identity


def others_folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.others")


class Others:
    """Files of ``folder``, which is made with the first of them. Of each identity the smallest scenario stays."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[Identity, tuple[Scenario, Path]] = {}

    @property
    def files(self) -> dict[Identity, Path]:
        return {identity: path for identity, (_, path) in self._kept.items()}

    def keep(self, identity: Identity, scenario: Scenario, target: str) -> None:
        before = self._kept.get(identity)
        if before is not None and cost(before[0]) <= cost(scenario):
            return
        document = {"identity": asdict(identity), "target": target, "scenario": scenario.to_json()}
        key = hashlib.blake2b(json.dumps(document["identity"], sort_keys=True).encode(), digest_size=4).hexdigest()
        path = self._folder / f"{identity.kind}-{key}.json"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            json.dump(document, file, allow_nan=False)
        os.replace(part, path)
        self._kept[identity] = scenario, path
