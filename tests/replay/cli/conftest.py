"""The small dump as a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.small_dump import write_small


@pytest.fixture
def small(tmp_path: Path) -> Path:
    write_small(tmp_path / "small.pplx")
    return tmp_path / "small.pplx"
