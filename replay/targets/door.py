"""Requests that a server without a recorded defect would have refused, so that they do not come in its replay."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from dumps.schema import state_pb2 as pb
from replay.engine.quirks import KINDS
from replay.engine.request import Request
from replay.engine.schedule import EngineConfig
from replay.report import finding


def checked_config(config: EngineConfig, state: pb.RuntimeState, off: Collection[str]) -> EngineConfig:
    """``config`` as a server without the defects ``off`` would have had it."""
    limit = state.model.max_position_embeddings
    if "positions-unchecked" not in off or not limit:
        return config
    return replace(config, max_model_len=min(config.max_model_len, limit))


def turned_away(
    requests: Iterable[Request], config: EngineConfig, state: pb.RuntimeState, off: Collection[str]
) -> dict[str, str]:
    """Why each request that fails a check of those which the defects ``off`` had left out was refused, by its id."""
    if not any(KINDS[name].at_the_door for name in off):
        return {}
    reasons = ((request.id, _reason(request, config, state, off)) for request in requests)
    return {name: reason for name, reason in reasons if reason}


def _reason(request: Request, config: EngineConfig, state: pb.RuntimeState, off: Collection[str]) -> str:
    if "prompt-unchecked" in off:
        needed = -(-request.num_prompt // config.block_size)
        if needed > config.num_blocks:
            return f"its prompt needs {needed} KV blocks of {config.num_blocks}"
    if "positions-unchecked" in off and request.num_prompt >= config.max_model_len:
        return (
            f"its prompt has {request.num_prompt} tokens, at most {config.max_model_len - 1} leave room for an answer"
        )
    if "token-ids-unchecked" in off and (problem := request.sampling.problem(state.model.vocab_size or 2**31)):
        return f"{problem[0]}: {problem[1]}"
    return ""


def door_findings(turned: Mapping[str, str]) -> list[dict[str, Any]]:
    """A finding for each request that was turned away."""
    return [
        finding(
            "refused-at-the-door",
            f"without the defect the server refuses request {name}, so it does not come: {reason}",
            request=name,
        )
        for name, reason in turned.items()
    ]
