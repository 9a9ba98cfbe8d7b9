"""The ``system_fingerprint`` of an answer: what decides its bits besides the request, short enough to travel with it.

A program that was recorded with our server's answers in it can so be replayed with the model: the weights are found by
their fingerprint, and the computation is set up as it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SHAPE = re.compile(r"pplx-([0-9a-f]{16})-(float32|bfloat16|float16)-(exact|stock)-kv(0|8)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemFingerprint:
    """``weights`` are the first 16 digits of the weights' fingerprint."""

    weights: str
    dtype: str
    kernels: str
    kv_quant_bits: int

    def __str__(self) -> str:
        return f"pplx-{self.weights}-{self.dtype}-{self.kernels}-kv{self.kv_quant_bits}"

    @classmethod
    def parse(cls, text: str) -> SystemFingerprint | None:
        """None for text that is not one of ours."""
        match = _SHAPE.fullmatch(text)
        if match is None:
            return None
        return cls(weights=match[1], dtype=match[2], kernels=match[3], kv_quant_bits=int(match[4]))
