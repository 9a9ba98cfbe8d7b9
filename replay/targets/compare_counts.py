"""How much of a record a replay compared. Torch-free, since the target without a model reports it as well."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Tokens and logits rows compared, differences that rounding explains, and tokens that could only be fed."""

    tokens: int = 0
    digests: int = 0
    noise: int = 0
    not_compared: int = 0
