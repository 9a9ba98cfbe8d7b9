"""What the question why is asked with."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replay.errors import ReplayError, UsageError
from replay.isolate.limits import LOAD_TIMEOUT_S
from replay.report import EXIT_CODES
from replay.targets.app.options import ANSWERS, app_options, is_app
from replay.targets.job import options_of
from replay.targets.settings import parse_assignments
from replay.verdict import Verdict

TARGETS = ("auto", "inference", "schedule")
TIME_S = 300.0
TRIAL_S = 60.0


class NotReproduced(ReplayError):
    """The dump does not show its failure each time, so that a change has nothing to be compared with. Usually another
    platform, missing weights, or a failure that timing has a part in."""

    remedy = "see what pplx-replay run says of it"

    def __init__(self, message: str, *, verdict: str = "", exit_code: int = 0, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        # It did come back, only not each time: that answers with "cannot say".
        flaky = verdict == Verdict.REPRODUCED
        self.exit_code = exit_code or EXIT_CODES[Verdict.INCONCLUSIVE if flaky or not verdict else Verdict(verdict)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``target`` is one of `TARGETS` or "app=MODULE:CALLABLE"; "auto" runs the model where that can be done.

    ``pairs`` None tries pairs only where no single change makes the failure vanish. ``extra`` are KEY=VALUE settings to
    be tried beside those that the dump suggests. ``repeat`` is how often the dump must reproduce as it is. ``time_s``
    is for all replays together, ``trial_s`` for the steps of one. ``numbers`` asks for noise or corruption, too.
    """

    dump: Path
    target: str = "auto"
    model: Path | None = None
    device: str = "auto"
    app_path: tuple[str, ...] = ()
    answers: str = ANSWERS[0]
    extra: tuple[str, ...] = ()
    pairs: bool | None = None
    numbers: bool = True
    repeat: int = 2
    time_s: float | None = TIME_S
    trial_s: float = TRIAL_S
    load_s: float = LOAD_TIMEOUT_S
    settings: dict[str, str] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Raises `UsageError`: an option that changes nothing, or no target."""
        self.settings.update(parse_assignments(self.extra))
        if self.target not in TARGETS and not is_app(self.target):
            raise UsageError(
                f"target: wants {', '.join(TARGETS)} or app=MODULE:CALLABLE, got {self.target!r}",
                remedy="a server is replayed k of N, which tells no cause: pplx-replay run --target endpoint=URL"
                if self.target.startswith("endpoint=")
                else "",
            )
        if is_app(self.target):
            app_options({**self.job(self.target), "set": self.settings})
            return
        if self.app_path or self.answers != ANSWERS[0]:
            raise UsageError("--app-path and --answers are for --target app=MODULE:CALLABLE", remedy="leave them out")
        options_of({**self.job("inference" if self.target == "auto" else self.target), "set": self.settings})

    def job(self, target: str) -> dict[str, Any]:
        """The job of a replay as recorded, as `run_job` and `run_program` take it."""
        model = None if self.model is None else str(self.model.absolute())
        job: dict[str, Any] = {"dump": str(self.dump.absolute()), "target": target, "model": model}
        if is_app(target):
            job |= {"app_path": [os.path.abspath(folder) for folder in self.app_path or (os.curdir,)]}
            job |= {"answers": self.answers}
        if not is_app(target) or self.answers == ANSWERS[0]:
            job |= {"device": self.device}
        return job
