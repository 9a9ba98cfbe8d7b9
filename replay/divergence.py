"""The first point at which a replay and the recorded run part."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# How far below the largest logit a recorded token may lie and still be explained by rounding, per computation dtype.
# Measured between stock prefill and stock decode of one model (bfloat16: up to 2.5, nine of 320 argmax flips); used
# only when bits cannot be expected to agree, that is in forced mode.
NOISE = {"float32": 0.01, "float16": 0.25, "bfloat16": 2.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """``kind`` is "token", "logits" (same token, other bits), "schedule" or "finish".

    ``position`` counts tokens of the request from 0; ``output_index`` counts those of its answer. ``margin`` is the
    replayed top-1 minus top-2 logit, ``gap`` how far the recorded token lies below the top. ``cause`` is "noise" when
    rounding explains it and "corruption" when it cannot.
    """

    kind: str
    request_id: str
    step: int | None = None
    position: int | None = None
    output_index: int | None = None
    recorded: str = ""
    replayed: str = ""
    margin: float | None = None
    gap: float | None = None
    cause: str = "corruption"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def sentence(self) -> str:
        where = f"request {self.request_id}"
        if self.output_index is not None:
            where += f", output token {self.output_index}"
        if self.position is not None:
            where += f" (position {self.position})"
        if self.step is not None:
            where += f", step {self.step}"
        text = f"{self.kind} differs at {where}: recorded {self.recorded}, replayed {self.replayed}"
        if self.margin is not None:
            text += f"; the replay's top two logits are {self.margin:.4g} apart"
        return text


def token_cause(*, strict: bool, gap: float | None, dtype: str) -> str:
    """Whether rounding can explain that another token was drawn. In strict mode bits agree, so nothing is rounding."""
    return "noise" if not strict and gap is not None and gap <= NOISE[dtype] else "corruption"
