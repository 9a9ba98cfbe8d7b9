"""What a reader should know of a model before trusting a replay on it."""

from __future__ import annotations

from typing import Any

from dumps.schema.reader import Dump
from replay.engine.loaded import LoadedModel
from replay.report import finding


def model_findings(dump: Dump, model: LoadedModel) -> list[dict[str, Any]]:
    """Findings about the model itself, and about how `dump` served it."""
    found = []
    if model.untested:
        found.append(
            finding(
                "architecture-untested",
                f"{model.untested}: it runs on stock kernels, so tokens are forced and no bits are promised",
                architecture=model.architecture,
            )
        )
    served, limit = dump.state.engine.max_model_len, model.max_position_embeddings
    if served > limit:
        beyond = (
            f"a token at position {limit} or later has no learned position and fails"
            if model.learned_positions
            else f"from position {limit} on its output is finite and not what it was trained for, without any error"
        )
        message = f"served with max_model_len {served}, and the model has {limit} positions: {beyond}"
        found.append(finding("position-overflow", message, max_model_len=served, limit=limit))
    return found
