"""Questions that are answered in this process: the same jobs, without the seconds that a worker takes to start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dumps.errors import DumpError
from replay.errors import ReplayError
from replay.isolate.result import Result, from_error_event
from replay.isolate.worker import error_event
from replay.why.effect import Trial
from replay.why.options import Options
from replay.why.outcome import Outcome
from replay.why.trials import Trials
from replay.why.why import why
from replay.why.worker_job import run


class Here(Trials):
    """Trials of an engine in this process."""

    def replay(self, job: dict[str, Any], times: int = 1) -> Result:
        try:
            return Result(report=run(job, lambda event: None))
        except (DumpError, ReplayError) as error:
            return Result(error=from_error_event(error_event(error)))


def asked(dump: Path, **options: Any) -> Outcome:
    return why(Options(dump=dump, **options), trials=Here)


def effects(trials: Any) -> dict[str, str]:
    """What each change did, by its name."""
    found: dict[str, str] = {}
    for trial in trials:
        assert isinstance(trial, Trial)
        found[trial.name] = trial.effect.value
    return found
