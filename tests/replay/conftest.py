"""Small programs, in one folder for each test file."""

from __future__ import annotations

import pytest

from tests.small_programs import SmallPrograms


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> SmallPrograms:
    return SmallPrograms(tmp_path_factory.mktemp("programs"))
