from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _jobs_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker finds the job functions of these tests, installed or not."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
