"""What a minimisation came to: for people in words, for programs as a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from replay.isolate.result import Result
from replay.minimise.trials import Counts
from replay.minimise.words import needs_in_words
from replay.report import SCHEMA_VERSION, tool_version
from replay.signature import Identity, Signature


@dataclass(kw_only=True, slots=True)
class Outcome:
    """``before`` and ``after`` are counts by name; ``left`` says in words what is left and what of it is needed.

    ``complete`` says that the search came to its end: neither time nor a person ended it. ``already_minimal``: what was
    written is what was given. ``removed`` counts what was taken out of the dump without another run. ``confirmed`` is
    the target whose replay had the last word.
    """

    dump: Path
    out: Path
    test: Path
    sha256: str
    signature: Signature
    report: Mapping[str, Any]
    searched: tuple[str, ...]
    confirmed: str
    complete: bool
    interrupted: bool
    already_minimal: bool
    before: Mapping[str, int]
    after: Mapping[str, int]
    left: str
    needs: list[str] = field(default_factory=list)
    removed: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[Identity, Path] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    notes: list[str] = field(default_factory=list)
    resumed: bool = False
    work: Path | None = None
    seconds: float = 0.0

    @property
    def summary(self) -> str:
        """As in "2 requests, 33 tokens, 3 blocks; needs prefix cache and int8 KV together"."""
        return "; ".join(part for part in (self.left, needs_in_words(self.needs)) if part)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "tool_version": tool_version(),
            "dump": str(self.dump),
            "out": str(self.out),
            "test": str(self.test),
            "sha256": self.sha256,
            "verdict": self.report["verdict"],
            "repeat": self.report["repeat"],
            "signature": self.signature.to_json(),
            "searched": list(self.searched),
            "confirmed": self.confirmed,
            "complete": self.complete,
            "interrupted": self.interrupted,
            "already_minimal": self.already_minimal,
            "before": dict(self.before),
            "after": dict(self.after),
            "left": self.summary,
            "needs": self.needs,
            "removed": dict(self.removed),
            "others": [{"identity": asdict(one), "path": str(path)} for one, path in self.others.items()],
            "trials": asdict(self.counts),
            "notes": self.notes,
            "resumed": self.resumed,
            "work": str(self.work) if self.work is not None else None,
            "seconds": round(self.seconds, 3),
        }


def how_it_went(result: Result) -> str:
    """A replay's verdict in words."""
    if result.report is None:
        assert result.error is not None
        return f"{result.error.kind}: {result.error.message}"
    report = result.report
    reason = f" ({report['reason_code']})" if report["reason_code"] else ""
    repeat = report.get("repeat") or {"n": 1, "reproduced": 0}
    count = f", reproduced {repeat['reproduced']} of {repeat['n']}" if repeat["n"] > 1 else ""
    return f"{report['verdict']}{reason}{count}"
