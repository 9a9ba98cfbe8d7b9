"""From a dump as it was met to a small one: checked by a replay, then minimised."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dumps.errors import DumpError
from replay.errors import ReplayError
from replay.fuzz.found import Folder, Found
from replay.fuzz.violation import Violation
from replay.fuzz.workers import Workers
from replay.isolate.limits import Limits
from replay.isolate.program import run_program
from replay.isolate.result import Result
from replay.isolate.warm_job import WARM_FUNCTION
from replay.minimise.minimise import OnStage, minimise
from replay.minimise.options import NotReproduced, ResultNotReproduced
from replay.minimise.options import Options as MinimiseOptions
from replay.minimise.others import others_folder
from replay.minimise.outcome import how_it_went
from replay.signature import Identity
from replay.targets.app.options import ANSWERS, is_app
from replay.verdict import Verdict

Others = Mapping[Identity, Any]
"""Failures that were met on the way, each with the document that `replay.minimise.others` wrote."""


class Shrinker:
    """Replays and minimises what was found, in target ``job["target"]``. Has a worker until it is closed."""

    def __init__(
        self, job: Mapping[str, Any], folder: Folder, *, seconds: float, load_s: float, on_stage: OnStage
    ) -> None:
        self._job, self._folder, self._seconds, self._load_s = dict(job), folder, seconds, load_s
        self._on_stage = on_stage
        self._replays = Workers(WARM_FUNCTION, seconds=seconds, load_s=load_s)
        self._limits = Limits(timeout_s=seconds, load_timeout_s=load_s)

    def close(self) -> None:
        self._replays.close()

    def check(self, found: Found, model: Path | None, settings: Mapping[str, str]) -> Violation | None:
        """Replay the dump as it was met, with ``settings`` where it takes them. What does not come back is our bug."""
        plain: Mapping[str, str] = {}
        for given in (plain, settings) if settings else (plain,):
            result = self._replay(found.met, model, given)
            found.report = result.report
            if result.report is not None and result.report["verdict"] == Verdict.REPRODUCED:
                found.settings = dict(given)
                return None
        return Violation(rule="replay", message=f"a failure was recorded, and its replay is {how_it_went(result)}")

    def _replay(self, dump: Path, model: Path | None, settings: Mapping[str, str]) -> Result:
        job = {**self._job, "dump": str(dump.absolute())} | ({} if model is None else {"model": str(model)})
        job |= {"set": dict(settings)} if settings else {}
        return run_program(job, limits=self._limits) if is_app(job["target"]) else self._replays.run(job)

    def shrink(self, found: Found, model: Path | None, *, time_s: float) -> tuple[Violation | None, Others, bool]:
        """Minimise it within ``time_s``. Returns what of ours was broken, what else was met, and whether somebody
        interrupted it."""
        if found.settings:
            words = " ".join(f"--set {key}={shlex.quote(value)}" for key, value in found.settings.items())
            found.note = f"not shrunk; its replay needs {words}, since the tool runs again in a replay"
            return None, {}, False
        options = MinimiseOptions(
            dump=found.met,
            out=found.path,
            target=self._job["target"],
            model=model,
            device=self._job.get("device", "auto"),
            app_path=tuple(self._job.get("app_path", ())),
            answers=self._job.get("answers", ANSWERS[0]),
            repeat=1,
            time_s=time_s,
            trial_s=self._seconds,
            load_s=self._load_s,
            force=True,
            resume=False,
        )
        try:
            outcome = minimise(options, on_stage=self._on_stage)
        except (NotReproduced, ResultNotReproduced) as error:
            found.note = f"not shrunk: {error}"
            return Violation(rule="replay", message=f"shrinking: {error}"), {}, False
        except (DumpError, ReplayError) as error:
            found.note = f"not shrunk: {error}"
            return None, {}, False
        found.shrunk, found.left, found.needs, found.report = True, outcome.left, outcome.needs, outcome.report
        found.note = "" if outcome.complete else "not as small as it gets: the time was used up"
        others = {identity: _document(path) for identity, path in outcome.others.items()}
        for path in outcome.others.values():
            path.unlink(missing_ok=True)
        if outcome.others:
            others_folder(found.path).rmdir()
        return None, others, outcome.interrupted


def keep_smaller(folder: Folder, found: Found, *, seed: int) -> None:
    """Write the report of what was shrunk, and let go of the larger dump."""
    folder.describe(found, seed=seed)
    if found.shrunk:
        found.met.unlink(missing_ok=True)


def _document(path: Path) -> Any:
    return json.loads(path.read_bytes())
