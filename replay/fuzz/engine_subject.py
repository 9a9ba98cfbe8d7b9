"""Targets schedule and inference: loads on an engine, without a model and with one."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from replay.engine.quirks import Quirk
from replay.errors import ReplayError
from replay.fuzz.engine_job import ENGINE_FUNCTION
from replay.fuzz.neighbours import Example, Start, admitted, examples
from replay.fuzz.subject import Told
from replay.fuzz.violation import Violation
from replay.fuzz.workers import Workers
from replay.isolate.result import Result
from replay.scenario.scenario import Scenario
from replay.signature import Identity

ENOUGH = 5
"""How many recordings of a failure are looked at. Each costs as much as ten plays."""


class NotRecorded(ReplayError):
    """A failure was seen, and its run could not be recorded. Usually a worker that was ended from outside."""

    remedy = "run it again with the same --seed"


class EngineSubject:
    """A `Subject` whose examples are scenarios. ``models`` has the weights for each dump in target inference."""

    shrinks = False

    def __init__(
        self,
        starts: Sequence[Start],
        quirks: Sequence[Quirk],
        *,
        target: str,
        seconds: float,
        load_s: float,
        models: Mapping[Path, Path] | None = None,
        device: str = "auto",
        job_function: str = ENGINE_FUNCTION,
    ) -> None:
        self._starts, self._quirks, self._target = starts, quirks, target
        self._seconds, self._models, self._device = seconds, models or {}, device
        self._workers = Workers(job_function, seconds=seconds, load_s=load_s)
        self._recorded = Counter[Identity | None]()

    def strategy(self) -> st.SearchStrategy[Example]:
        return examples(self._starts, self._quirks)

    def key(self, example: Example) -> str:
        return example.key

    def change(self, example: Example) -> str:
        return example.change

    def start(self, example: Example) -> Path:
        return example.start.path

    def run(self, example: Example) -> Told:
        if example.scenario is None:
            return Told()
        enough = [one and asdict(one) for one, count in self._recorded.items() if count >= ENOUGH]
        if self._target == "schedule":
            enough.append(None)  # without a failure there is no verdict, and the plays have been compared
        result = self._send(example, example.scenario, {"seconds": self._seconds, "enough": enough})
        told = _told(result, with_model=self._target == "inference")
        self._recorded[told.failures[0] if told.failures else None] += not told.lost
        return told

    def dump(self, example: Example, identity: Identity) -> bytes:
        """Raises `NotRecorded`."""
        assert example.scenario is not None
        result = self._send(example, example.scenario, {"wanted": asdict(identity), "change": example.change})
        told = (result.report or {}).get("dump")
        if not isinstance(told, str):
            raise NotRecorded(
                f"the run could not be recorded: {_told(result, with_model=False).lost or 'the worker said nothing'}"
            )
        return base64.b64decode(told)

    def evidence(self, example: Example) -> tuple[str, bytes]:
        document = example.scenario.to_json() if example.scenario is not None else {}
        return "scenario.json", json.dumps(document, allow_nan=False).encode()

    def other(self, example: Example, document: Any) -> Example:
        """The example of a scenario that shrinking of ``example`` met. Raises `UsageError`."""
        scenario = Scenario.from_json(document["scenario"])
        return Example(
            start=example.start, scenario=admitted(scenario, ()), change=f"{example.change}, on the way to less of it"
        )

    def job(self) -> dict[str, Any]:
        if self._target == "schedule":
            return {"target": "schedule"}
        return {"target": "inference", "device": self._device}

    def model(self, example: Example) -> Path | None:
        return self._models.get(example.start.path)

    def settings(self, example: Example) -> Mapping[str, str]:
        return {}

    def close(self) -> None:
        self._workers.close()

    def _send(self, example: Example, scenario: Scenario, more: Mapping[str, Any]) -> Result:
        model = self.model(example)
        return self._workers.run(
            {
                "dump": str(example.start.path),
                "target": self._target,
                "model": str(model) if model is not None else None,
                "device": self._device,
                "scenario": scenario.to_json(),
                **more,
            }
        )


def _told(result: Result, *, with_model: bool) -> Told:
    """A worker's word, which is not trusted: what has another form than ours is lost.

    Libraries that a model needs probe what they may not have, and do without; nothing else here tries to.
    """
    if result.error is not None:
        return Told(lost=f"{result.error.kind}: {result.error.message}")
    report = result.report or {}
    try:
        if "refused" in report:
            return Told(lost=str(report["refused"]))
        violations = [Violation.from_json(one) for one in report["violations"]]
        if not with_model and (tried := result.guard.get("refused")):
            violations.append(Violation(rule="isolation", message=f"a replay tried: {str(tried)[:200]}"))
        return Told(
            failures=tuple(Identity(**identity) for identity in report["failures"]),
            violations=tuple(violations),
        )
    except (KeyError, TypeError, ValueError) as error:
        return Told(lost=f"the worker told something else than an example: {error!r:.200}")
