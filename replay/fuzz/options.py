"""What a search is asked for, and where it keeps what it finds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from replay.engine.quirks import Quirk
from replay.errors import UsageError
from replay.isolate.limits import LOAD_TIMEOUT_S
from replay.targets.app.options import ANSWERS, app_options, is_app

TARGETS = ("schedule", "load", "inference")
FOLDER = Path(".pplx") / "fuzz"
EXAMPLES_FOLDER = FOLDER / "examples"
"""Hypothesis' example database, in the folder of the project."""

FOUND_FOLDER = FOLDER / "found"
EXAMPLES = 500
EXAMPLE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``target`` is one of `TARGETS` or "app=MODULE:CALLABLE". The search ends after ``examples``, or ``time_s`` with
    shrinking counted. ``example_s`` is the budget of one example once what it needs is loaded, ``shrink_s`` that of
    shrinking one failure. ``quirks`` are in force in every example beside those of the dump."""

    dumps: tuple[Path, ...]
    out: Path = FOUND_FOLDER
    database: Path = EXAMPLES_FOLDER
    target: str = TARGETS[0]
    quirks: tuple[Quirk, ...] = ()
    examples: int = EXAMPLES
    time_s: float | None = None
    example_s: float = EXAMPLE_S
    shrink_s: float = 60.0
    load_s: float = LOAD_TIMEOUT_S
    seed: int = 0
    model: Path | None = None
    device: str = "auto"
    app_path: tuple[str, ...] = ()
    answers: str = ANSWERS[0]

    def check(self) -> None:
        """Raises `UsageError`: an option that changes nothing, or no target."""
        if is_app(self.target):
            app_options({"target": self.target, "app_path": list(self.app_path), "answers": self.answers})
        elif self.target not in TARGETS:
            raise UsageError(f"target: wants {', '.join(TARGETS)} or app=MODULE:CALLABLE, got {self.target!r}")
        elif self.app_path or self.answers != ANSWERS[0]:
            raise UsageError("--app-path and --answers are for --target app=MODULE:CALLABLE", remedy="leave them out")
        if self.target in ("load", "schedule") and (self.model is not None or self.device != "auto"):
            raise UsageError(f"--model and --device change nothing in --target {self.target}", remedy="leave them out")
        if self.quirks and self.target not in ("schedule", "inference"):
            raise UsageError(
                f"--quirk changes nothing in --target {self.target}", remedy="it is for --target schedule|inference"
            )
        if idle := [quirk.name for quirk in self.quirks if quirk.kind.damages_data]:
            raise UsageError(
                f"quirk {idle[0]} spoils the cache of one run, and no replay does that again",
                remedy="take one that is a defect of code: pplx-server --help lists them",
            )
