"""One table of everything that a session measured, printed at its end.

    python -m pytest -m benchmark tests/benchmarks

``PPLX_BENCH_JSON=FILE`` writes it to a file as JSON too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.benchmarks.rows import ROWS, Row, document, table


@pytest.fixture(scope="session")
def measured(request: pytest.FixtureRequest) -> Callable[[Row], None]:
    """Takes a row for the table."""
    return request.config.stash.setdefault(ROWS, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(ROWS, [])
    if not rows:
        return
    terminalreporter.section("benchmarks")
    terminalreporter.write_line(table(rows))
    if file := os.environ.get("PPLX_BENCH_JSON"):
        Path(file).write_text(json.dumps(document(rows), indent=1) + "\n", encoding="utf-8")
