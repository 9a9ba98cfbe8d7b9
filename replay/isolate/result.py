"""What a supervised job came to: a report, or an error that says how it ended and how far it got."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from dumps.text import printable
from replay.errors import ReplayError

MAX_TEXT = 4000
MAX_EVIDENCE_LINES = 60
MAX_EVIDENCE_LINE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class RunError:
    """Why there is no report. All text is safe to print.

    ``kind`` is the name of an error class: one of DumpError's or ReplayError's, or "InternalError". ``offset`` is the
    byte of the dump that is damaged. ``evidence`` is the end of the worker's stderr or a traceback, many lines.
    """

    kind: str
    message: str
    remedy: str = ""
    exit_code: int
    offset: int | None = None
    evidence: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "class": self.kind,
            "message": self.message,
            "remedy": self.remedy,
            "exit_code": self.exit_code,
            "offset": self.offset,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Exactly one of ``report`` and ``error`` is set.

    ``progress`` is the last progress event, None when there was none. ``guard`` says what kept the worker from network
    and processes, and what it tried; empty when the worker died before it could tell.
    """

    report: dict[str, Any] | None = None
    error: RunError | None = None
    guard: dict[str, Any] = field(default_factory=dict)
    progress: dict[str, Any] | None = None
    step_started: bool = False


def from_exception(error: ReplayError, *, evidence: str = "") -> RunError:
    """The supervisor's own findings (BudgetSpent, WorkerDied, ProtocolError) as a RunError."""
    return RunError(
        kind=type(error).__name__,
        message=str(error),
        remedy=error.remedy,
        exit_code=error.exit_code,
        evidence=evidence,
    )


def from_error_event(event: Mapping[str, Any]) -> RunError:
    """A worker's error frame. Fields of the wrong type are replaced: a worker's word is not trusted."""
    offset = event.get("offset")
    code = event.get("exit_code")
    kind = event.get("class")
    return RunError(
        kind=kind if isinstance(kind, str) and kind.isidentifier() and len(kind) <= 80 else "InternalError",
        message=printable(_text(event.get("message")), MAX_TEXT),
        remedy=printable(_text(event.get("remedy")), MAX_TEXT),
        exit_code=code if _is_int(code) and 0 < code < 126 else ReplayError.exit_code,
        offset=offset if _is_int(offset) and offset >= 0 else None,
        evidence=printable_lines(_text(event.get("evidence"))),
    )


def progress_event(event: Mapping[str, Any]) -> dict[str, Any] | None:
    """A worker's progress frame with only the known fields, or None when they are not usable."""
    stage, done, total = event.get("stage"), event.get("done", 0), event.get("total")
    if not isinstance(stage, str) or not _is_int(done) or not (total is None or _is_int(total)):
        return None
    return {"event": "progress", "stage": printable(stage, 80), "done": done, "total": total}


def state_isolation(report: dict[str, Any], guard: Mapping[str, Any]) -> None:
    """Make a report state the grade of isolation it was made under."""
    if isinstance(report.get("environment"), dict):
        report["environment"]["isolation"] = guard


def describe_progress(progress: Mapping[str, Any] | None) -> str:
    """A few words on how far a job got."""
    if progress is None:
        return "before it reported any progress"
    total = "" if progress["total"] is None else f" of {progress['total']}"
    return f"at {progress['stage']} {progress['done']}{total}"


def printable_lines(text: str) -> str:
    """The last lines of ``text``, each made safe for a terminal."""
    lines = text.splitlines()[-MAX_EVIDENCE_LINES:]
    return "\n".join(printable(line, MAX_EVIDENCE_LINE) for line in lines)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
