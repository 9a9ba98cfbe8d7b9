"""What a search looks for beside failures of the service: properties of ours that do not hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from replay.signature import normalise

PROPERTIES = {
    "invariants": "scheduler, block pool and prefix cache tell the same story after every step: no block is in two "
    "tables by mistake, none is lost, reference counts equal references",
    "every-request-ends": "every request that came in has ended, and every block is free again",
    "deterministic": "two plays of one load are equal",
    "replay": "the replay of a recording shows what was recorded, and parts from it nowhere",
    "redaction": "a redacted dump gives the verdict that it claims to keep",
    "reader": "a reader gives a valid state or an error of its own",
    "round-trip": "what was read and written again is read as the same state",
    "salvage": "what is salvaged of a damaged file is a part of what was written",
    "isolation": "a replay does not leave its process",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """``rule`` is a key of `PROPERTIES`, ``message`` what was seen instead."""

    rule: str
    message: str

    @property
    def identity(self) -> tuple[str, str]:
        """Equal ones are the same bug."""
        return self.rule, normalise(self.message)

    def to_json(self) -> dict[str, Any]:
        return {"rule": self.rule, "property": PROPERTIES[self.rule], "message": self.message}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Violation:
        """Raises KeyError, TypeError."""
        if data["rule"] not in PROPERTIES:
            raise KeyError(data["rule"])
        return cls(rule=str(data["rule"]), message=str(data["message"]))
