"""What a search came to: for people in words, for programs as a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from replay.errors import ReplayError
from replay.fuzz.found import Broken, Found
from replay.report import SCHEMA_VERSION, tool_version
from replay.signature import Identity

EXIT_FOUND = 1
EXIT_BROKEN = ReplayError.exit_code


@dataclass(kw_only=True, slots=True)
class Outcome:
    """``known`` are failures that the dumps record themselves, with the dump of each. ``complete`` says that the search
    came to its end by itself. ``examples`` are those that differ, of all that were ``drawn``. ``lost`` examples gave no
    answer, the last one for the reason ``last_lost``."""

    dumps: tuple[Path, ...]
    out: Path
    target: str
    quirks: tuple[str, ...]
    seed: int
    known: Mapping[Identity, Path]
    found: list[Found] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    examples: int = 0
    drawn: int = 0
    lost: int = 0
    last_lost: str = ""
    complete: bool = False
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """Without what ended it early: 70 for a broken property of ours, 1 for a failure that no dump shows, else 0."""
        return EXIT_BROKEN if self.broken else EXIT_FOUND if self.found else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "tool_version": tool_version(),
            "dumps": [str(path) for path in self.dumps],
            "out": str(self.out),
            "target": self.target,
            "quirks": list(self.quirks),
            "seed": self.seed,
            "examples": self.examples,
            "drawn": self.drawn,
            "lost": self.lost,
            "last_lost": self.last_lost,
            "complete": self.complete,
            "interrupted": self.interrupted,
            "known": [{"identity": asdict(one), "dump": str(path)} for one, path in self.known.items()],
            "found": [one.to_json() for one in self.found],
            "broken": [one.to_json() for one in self.broken],
            "notes": self.notes,
            "seconds": round(self.seconds, 3),
        }
