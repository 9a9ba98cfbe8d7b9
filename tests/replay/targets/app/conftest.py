"""The agent's four failures, recorded once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replay.isolate.limits import Limits
from replay.isolate.program import run_program
from replay.isolate.result import Result
from tests.agent.recording_session import HERE, Recorded, record_all
from tests.tiny import make_tiny_model

Replay = Callable[..., Result]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def recorded(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    return record_all(tiny, tmp_path_factory.mktemp("agent"))


@pytest.fixture
def replay(recorded: dict[str, Recorded], tiny: Path) -> Replay:
    """Replays one of the recordings; the services that were there are gone."""

    def run(failure: str, entry: str = "agent:answer", **job: Any) -> Result:
        dump = str(recorded[failure].dump)
        model = {} if job.get("answers") == "recorded" else {"model": str(tiny)}
        return run_program(
            {"dump": dump, "target": f"app={entry}", "app_path": [str(HERE)], **model, **job},
            limits=Limits(timeout_s=job.get("timeout_s")),
        )

    return run
