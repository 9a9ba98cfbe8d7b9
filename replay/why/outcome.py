"""What the question why came to: a table of trials, and the document of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replay.report import SCHEMA_VERSION, finite, tool_version
from replay.why.change import Left
from replay.why.effect import Baseline, Effect, Trial
from replay.why.numbers import conclusion, in_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``singles`` and ``pairs`` are the trials with one change and with two. ``left`` was not tried, and why.

    ``numbers`` are those of `replay.why.numbers_job`; where there are none, ``no_numbers`` says why. ``complete``:
    everything that applies was tried, neither time nor a person ended it.
    """

    dump: Path
    target: str
    baseline: Baseline
    singles: Sequence[Trial]
    pairs: Sequence[Trial] = ()
    left: Sequence[Left] = ()
    numbers: Mapping[str, Any] | None = None
    no_numbers: str = ""
    notes: Sequence[str] = ()
    complete: bool = True
    interrupted: bool = False
    seconds: float = 0.0
    words: Sequence[str] = field(default_factory=tuple)

    @property
    def vanishing(self) -> list[Trial]:
        """Single changes with which the failure is gone, or else such pairs."""
        singles = [trial for trial in self.singles if trial.effect is Effect.VANISHES]
        return singles or [trial for trial in self.pairs if trial.effect is Effect.VANISHES]

    def to_json(self) -> dict[str, Any]:
        numbers = None
        if self.numbers is not None:
            numbers = {"conclusion": conclusion(self.numbers), "words": in_words(self.numbers), **finite(self.numbers)}
        report = self.baseline.report
        return {
            "schema_version": SCHEMA_VERSION,
            "tool_version": tool_version(),
            "dump": dict(report["dump"]),
            "target": self.target,
            "signature": report["signature"],
            "baseline": {
                "verdict": report["verdict"],
                "mode": report["mode"],
                "repeat": report["repeat"],
                "seconds": round(self.baseline.seconds, 3),
            },
            "singles": [trial.to_json() for trial in self.singles],
            "pairs": [trial.to_json() for trial in self.pairs],
            "not_tried": [{"change": one.what, "why": one.why, "applies": one.applies} for one in self.left],
            "vanishes_with": [trial.name for trial in self.vanishing],
            "words": list(self.words),
            "numbers": numbers,
            "no_numbers": self.no_numbers,
            "notes": list(self.notes),
            "complete": self.complete,
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 3),
        }
