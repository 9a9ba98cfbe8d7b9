"""Recorded ASGI applications."""

from __future__ import annotations

from typing import Any

import pytest

from dumps.record.asgi import record_asgi
from tests.dumps.record.asgi_requests import App


@pytest.fixture
def served(tmp_path):
    """``served(app, ...)`` is ``app`` recorded into ``tmp_path / "dumps"``; every recording ends with the test."""
    made: list[Any] = []

    def serve(app: App, level: str = "full", **options: Any) -> Any:
        made.append(record_asgi(app, tmp_path / "dumps", level=level, **options))
        return made[-1]

    yield serve
    for app in made:
        app._served.stop()
