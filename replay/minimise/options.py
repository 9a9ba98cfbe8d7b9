"""What a minimisation is asked for, and where it may write."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay.errors import ReplayError, UsageError
from replay.isolate.limits import LOAD_TIMEOUT_S
from replay.minimise.pytest_file import is_ours, path_of_test
from replay.report import EXIT_CODES, tool_version
from replay.targets.app.options import ANSWERS, app_options, is_app
from replay.verdict import Verdict

TARGETS = ("auto", "inference", "schedule")
TIME_S = 600.0
TRIAL_S = 60.0


class NotReproduced(ReplayError):
    """The dump does not show its failure each time, so nothing could be compared with it. Usually another platform, or
    a failure that timing has a part in."""

    remedy = "see what pplx-replay run says of it"

    def __init__(self, message: str, verdict: str) -> None:
        super().__init__(message)
        known = verdict in {one.value for one in Verdict}
        self.exit_code = EXIT_CODES[Verdict(verdict)] or EXIT_CODES[Verdict.NOT_REPRODUCED] if known else 21


class ResultNotReproduced(ReplayError):
    """The minimised dump was written, and its replay does not show the failure. This is our bug, or a machine that
    does not compute the same twice."""

    remedy = "report this with the dump that was left in the work folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``target`` is one of `TARGETS` or "app=MODULE:CALLABLE"; "auto" runs the model where that can be done. ``time_s``
    is that of the search, ``trial_s`` that of a trial once what it needs is loaded. ``repeat`` is how often the dump
    and the result must reproduce. ``resume`` is that of `Work`."""

    dump: Path
    out: Path
    target: str = "auto"
    model: Path | None = None
    device: str = "auto"
    app_path: tuple[str, ...] = ()
    answers: str = ANSWERS[0]
    repeat: int = 2
    time_s: float | None = TIME_S
    trial_s: float = TRIAL_S
    load_s: float = LOAD_TIMEOUT_S
    resume: bool | None = None
    force: bool = False

    def check(self) -> None:
        """Raises `UsageError`: an option that changes nothing, or no target."""
        if is_app(self.target):
            app_options({"target": self.target, "app_path": list(self.app_path), "answers": self.answers})
        elif self.target not in TARGETS:
            raise UsageError(f"target: wants {', '.join(TARGETS)} or app=MODULE:CALLABLE, got {self.target!r}")
        elif self.app_path or self.answers != ANSWERS[0]:
            raise UsageError("--app-path and --answers are for --target app=MODULE:CALLABLE", remedy="leave them out")
        if self.target == "schedule" and (self.model is not None or self.device != "auto"):
            raise UsageError("--model and --device change nothing in --target schedule", remedy="leave them out")
        if self.out.name in ("", "..") or self.out.suffix in ("", ".py"):
            raise UsageError(
                f"-o {self.out}: wants a file name such as small.pplx; test_small.py is written beside it",
                remedy="Choose another -o.",
            )
        if not self.out.parent.is_dir():
            raise UsageError(f"{self.out.parent} is no folder", remedy="Make it, or choose another -o.")

    def header(self, sha256: str, identity: Mapping[str, str]) -> dict[str, Any]:
        """What a checkpoint belongs to."""
        return {
            "tool_version": tool_version(),
            "dump": sha256,
            "identity": dict(identity),
            "target": self.target,
            "model": str(self.model) if self.model is not None else "",
            "device": self.device,
            "app_path": list(self.app_path),
            "answers": self.answers,
            "trial_s": self.trial_s,
        }


def check_places(options: Options, *, ours: str = "") -> None:
    """Raises `UsageError` where the result cannot be put. ``ours`` is the sha256 of an output that may be replaced."""
    out, test = options.out, path_of_test(options.out)
    for path in (out, test):
        if path.is_dir():
            raise UsageError(f"{path} is a folder, and a file is written there", remedy="Choose another -o.")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise UsageError(f"nothing can be written into {out.absolute().parent}", remedy="Choose another -o.")
    if out.exists() and out.samefile(options.dump):
        raise UsageError("-o names the dump itself", remedy="Choose another name.")
    if options.force:
        return
    if out.exists() and not (ours and _sha256(out) == ours):
        raise UsageError(f"{out} exists", remedy="Choose another -o, or replace it with --force.")
    if test.exists() and not is_ours(test):
        raise UsageError(f"{test} exists, and the test is written there", remedy="Choose another -o, or use --force.")


def _sha256(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()
