"""The report of a replay: one JSON-able dict with fixed keys, and the exit code that a verdict has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from replay.verdict import Verdict

SCHEMA_VERSION = 1

EXIT_EXPECTATION = 13

EXIT_CODES: Mapping[Verdict, int] = {
    Verdict.REPRODUCED: 0,
    Verdict.NOT_REPRODUCED: 10,
    Verdict.DIFFERENT_FAILURE: 11,
    Verdict.DIVERGED: 12,
    Verdict.INCONCLUSIVE: 20,
}


def exit_code(verdict: Verdict, *, expected: Verdict | None = None) -> int:
    """0 for what was expected, by default `reproduced`; else the code of the verdict, or 13 for an unexpected 0."""
    if expected is not None:
        if verdict is expected:
            return 0
        return EXIT_EXPECTATION if verdict is Verdict.REPRODUCED else EXIT_CODES[verdict]
    return EXIT_CODES[verdict]


def bisect_code(verdict: Verdict) -> int:
    """What ``git bisect run`` understands: 0 good, 1 bad, 125 cannot tell."""
    return {Verdict.NOT_REPRODUCED: 0, Verdict.REPRODUCED: 1}.get(verdict, 125)


def tool_version() -> str:
    try:
        return version("pplx-replay")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+unknown"


def finding(code: str, message: str, **facts: Any) -> dict[str, Any]:
    """One thing a reader should know, with a stable code, a sentence, and the facts behind it."""
    return {"code": code, "message": message, **facts}


def finite(value: Any, path: str = "", flags: list[str] | None = None) -> Any:
    """A copy in which NaN and infinities are null. Their paths are appended to ``flags``."""
    if isinstance(value, float) and not math.isfinite(value):
        if flags is not None:
            flags.append(path)
        return None
    if isinstance(value, Mapping):
        return {key: finite(item, f"{path}.{key}" if path else str(key), flags) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [finite(item, f"{path}[{index}]", flags) for index, item in enumerate(value)]
    return value
