"""The fixture folders: where they are, and how to read what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((FIXTURES / name / "fixture.json").read_text())
    return document


def names() -> list[str]:
    return sorted(path.parent.name for path in FIXTURES.glob("*/fixture.json"))


def shown(report: dict[str, Any], path: str) -> Any:
    """A value of a report by dotted path."""
    value: Any = report
    for key in path.split("."):
        value = value[key]
    return value
