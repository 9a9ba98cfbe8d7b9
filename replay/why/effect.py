"""What a change did to the failure, told from the report of its replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from replay.isolate.result import Result
from replay.verdict import Reason, Verdict
from replay.why.change import INCLUDED, KV, SCHEDULE, Change, named


class Effect(StrEnum):
    VANISHES = "vanishes"
    STAYS = "stays"
    ANOTHER = "another failure"
    DIVERGES = "diverges"
    CANNOT_TELL = "cannot tell"


_EFFECTS = {
    Verdict.NOT_REPRODUCED: Effect.VANISHES,
    Verdict.REPRODUCED: Effect.STAYS,
    Verdict.DIFFERENT_FAILURE: Effect.ANOTHER,
    Verdict.DIVERGED: Effect.DIVERGES,
    Verdict.INCONCLUSIVE: Effect.CANNOT_TELL,
}

_TOLD = frozenset({"refused-at-the-door", "record-ends", "beyond-the-record", "ended-early", "kv-contents-unused"})
"""Findings that say why a changed run came out as it did."""

_LAID_OVER = frozenset({"kv-agrees", "kv-differs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One replay with ``changes``. ``seen`` names the failure that it showed, "" for none. ``notes`` are sentences.

    ``answers_differ`` is None where answers were not compared. ``read_contents``: the recorded contents of the KV cache
    came into the run. ``error`` is the class of what ended it without a report.
    """

    changes: tuple[Change, ...]
    effect: Effect
    verdict: str = ""
    reason: str = ""
    seen: str = ""
    notes: tuple[str, ...] = ()
    answers_differ: bool | None = None
    read_contents: bool = False
    error: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return named(self.changes)

    @property
    def changed_something(self) -> bool:
        """Whether it went otherwise than the recorded run, as far as a pair might go further."""
        return self.effect in (Effect.ANOTHER, Effect.DIVERGES) or bool(self.answers_differ)

    def to_json(self) -> dict[str, Any]:
        return {
            "changes": [{"settings": dict(one.settings), "options": one.all_options} for one in self.changes],
            "name": self.name,
            "arguments": " ".join(one.arguments for one in self.changes),
            "effect": self.effect.value,
            "verdict": self.verdict,
            "reason_code": self.reason,
            "seen": self.seen,
            "answers_differ": self.answers_differ,
            "notes": list(self.notes),
            "error": self.error,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The report of the replay without a change, which reproduced each time."""

    report: Mapping[str, Any]
    seconds: float = 0.0

    @property
    def place(self) -> dict[str, Any]:
        """Where the failure showed."""
        return dict(self.report["signature"]["location"])


def trial_of(changes: tuple[Change, ...], result: Result, baseline: Baseline, *, seconds: float = 0.0) -> Trial:
    """What the replay of ``changes`` says."""
    if result.report is None:
        assert result.error is not None
        error = result.error
        notes = tuple(part for part in (error.message, error.remedy) if part)
        return Trial(changes=changes, effect=Effect.CANNOT_TELL, notes=notes, error=error.kind, seconds=seconds)
    report = result.report
    verdict = Verdict(report["verdict"])
    effect, reason = _EFFECTS[verdict], str(report["reason_code"])
    if verdict is Verdict.DIFFERENT_FAILURE and reason == Reason.SAME_KIND_ELSEWHERE:
        effect = Effect.STAYS
    answers = report.get("answers")
    differ = None if not answers or not answers["compared"] else answers["as_recorded"] < answers["compared"]
    codes = {one["code"] for one in report["findings"]}
    return Trial(
        changes=changes,
        effect=effect,
        verdict=verdict.value,
        reason=reason,
        seen=failure_in_words(report),
        notes=tuple(_notes(report, baseline, effect)),
        answers_differ=differ,
        read_contents=not codes.isdisjoint(_LAID_OVER),
        seconds=seconds,
    )


def attributed(trials: Sequence[Trial]) -> list[Trial]:
    """``trials``, where none counts as vanished for what it only had to change along with it.

    Where leaving out the recorded KV contents, or deriving the schedule again, is all it takes, a run that did so says
    nothing of what else was changed in it.
    """
    alone = {
        trial.changes[0].subject: trial
        for trial in trials
        if len(trial.changes) == 1 and trial.changes[0].subject in INCLUDED and trial.effect is Effect.VANISHES
    }
    return [_attributed(trial, alone) for trial in trials]


def _attributed(trial: Trial, alone: Mapping[str, Trial]) -> Trial:
    if trial.effect is not Effect.VANISHES or trial in alone.values():
        return trial
    if KV in alone and not trial.read_contents:
        note = "the recorded KV contents do not come into this run, and without them the failure is gone anyway"
    elif any(SCHEDULE in (*change.includes, change.subject) for change in trial.changes) and SCHEDULE in alone:
        note = "it takes a schedule that is derived again, and with that the failure is gone anyway"
    else:
        return trial
    return replace(trial, effect=Effect.CANNOT_TELL, notes=(*trial.notes, note))


def failure_in_words(report: Mapping[str, Any]) -> str:
    """What a replay showed, as in "silent-truncation (max-model-len) at request r2, step 7"; "" for no failure."""
    signature = report["signature"]
    if not signature:
        return ""
    identity = signature["identity"]
    words = [identity["kind"], f"({identity['invariant']})" if identity["invariant"] else ""]
    words.append(identity["exception_type"].rsplit(".", 1)[-1])
    words.append(f"in {identity['frame']}" if identity.get("frame") else "")
    place = _place(report)
    return " ".join(word for word in words if word) + (f" at {place}" if place else "")


def _place(report: Mapping[str, Any]) -> str:
    location = report["signature"]["location"]
    step = "call" if "world" in report else "step"  # a program has no steps
    parts = {"request": location.get("request_id"), step: location.get("step")}
    return ", ".join(f"{name} {value}" for name, value in parts.items() if value is not None)


def _notes(report: Mapping[str, Any], baseline: Baseline, effect: Effect) -> list[str]:
    notes = []
    if effect is Effect.STAYS:
        here = report["signature"]["location"]
        if any(here.get(name) != baseline.place.get(name) for name in ("request_id", "step")):
            notes.append(f"in another place: {_place(report)}")
    if (answers := report.get("answers")) and (first := answers["first_difference"]):
        step = "" if first["step"] is None else f", step {first['step']}"
        notes.append(
            f"{answers['compared'] - answers['as_recorded']} of {answers['compared']} answers differ, first that of "
            f"request {first['request_id']} at output token {first['output_index']}{step}: recorded "
            f"{first['recorded']}, replayed {first['replayed']}"
        )
    if d := report["divergence"]:
        margin = "" if d["margin"] is None else f"; the top two logits are {d['margin']:.4g} apart"
        where = "" if d["output_index"] is None else f" at output token {d['output_index']}"
        step = "" if d["step"] is None else f", step {d['step']}"
        notes.append(
            f"{d['kind']} of request {d['request_id']} parts from the record{where}{step}: recorded {d['recorded']}, "
            f"replayed {d['replayed']} ({d['cause']}{margin})"
        )
    if report["mode"] == "forced" != baseline.report["mode"]:
        notes.append("forced: recorded tokens were fed, and bits not compared")
    notes += [str(one["message"]) for one in report["findings"] if one["code"] in _TOLD]
    return notes
