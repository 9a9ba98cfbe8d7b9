"""The fixture folders of this repository."""

from __future__ import annotations

from pathlib import Path

from replay.fixtures.check import shown
from replay.fixtures.document import Fixture, load_fixture
from replay.fixtures.folder import fixtures_in

__all__ = ["FIXTURES", "load", "names", "shown"]

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


def load(name: str) -> Fixture:
    return load_fixture(FIXTURES / name)


def names() -> list[str]:
    return [folder.name for folder in fixtures_in(FIXTURES)]
