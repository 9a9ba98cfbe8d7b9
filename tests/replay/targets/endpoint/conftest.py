"""Replays of a small dump against an endpoint, as the command runs them.

It holds two requests of four tokens each and a silent truncation of the second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from dumps.schema import state_pb2 as pb
from dumps.schema.writer import write_dump
from replay.isolate.endpoint import run_endpoint
from tests.small_dump import small_sections, small_state

Replay = Callable[..., dict[str, Any]]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[pb.RuntimeState], Path]:
    def written(state: pb.RuntimeState, sections: Sequence[Any] = ()) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pplx"
        write_dump(path, state, sections or small_sections())
        return path

    return written


@pytest.fixture
def replay(write: Callable[[pb.RuntimeState], Path]) -> Replay:
    """Replays a state, the small one by default, against a URL, and gives the report."""

    def run(url: str, state: pb.RuntimeState | None = None, **options: Any) -> dict[str, Any]:
        dump = write(state or small_state())
        result = run_endpoint({"dump": str(dump), "target": f"endpoint={url}", **options})
        assert result.report is not None, result.error
        return result.report

    return run
