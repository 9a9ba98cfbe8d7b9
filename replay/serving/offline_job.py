"""The model's worker of a replayed program: `replay.serving.offline`, where the engine is installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay.errors import ENGINE_PACKAGES, EngineNotInstalled


def answer_calls(job: Mapping[str, Any], channel: Any) -> dict[str, Any]:
    """See `replay.serving.offline.answer_calls`. Raises `EngineNotInstalled`."""
    try:
        from replay.serving.offline import answer_calls as answer
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ENGINE_PACKAGES:
            raise
        raise EngineNotInstalled(
            f"computing the model's answers needs {package}, which is not installed",
            remedy="Install the engine: python -m pip install 'pplx-replay[engine]'; --answers recorded needs none.",
        ) from error
    return answer(job, channel)
