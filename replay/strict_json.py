"""Strict JSON (`dumps.strict_json`) with the errors of this package, and its counterpart that writes."""

from __future__ import annotations

import json
from typing import Any

from dumps import strict_json
from dumps.strict_json import MAX_DEPTH
from replay.errors import ReplayError


class InvalidJson(ReplayError):
    """Bytes that are not strict JSON. Usually a client that writes NaN, or a cut message."""

    remedy = "send RFC 8259 JSON in UTF-8: finite numbers, each key once"


def loads(data: bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """Decode one JSON document. Raises InvalidJson for what `dumps.strict_json.loads` refuses."""
    try:
        return strict_json.loads(data, max_depth=max_depth)
    except strict_json.InvalidJson as error:
        raise InvalidJson(str(error)) from error


def dumps(value: Any) -> bytes:
    """Encode to ASCII JSON. Raises InvalidJson for NaN, infinity and types that JSON does not have."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidJson(f"cannot be written as JSON: {error}") from error
