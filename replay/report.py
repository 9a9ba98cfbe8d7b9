"""The report of a replay: one JSON-able dict with fixed keys, and the exit code that a verdict has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from replay.engine.failure import Failure
from replay.signature import Signature
from replay.verdict import Decision, Verdict

SCHEMA_VERSION = 1

KV_FACTS = ("kv_cache_used_bytes", "max_kv_cache_bytes", "seq_len_exceeded_at")
NO_KV: Mapping[str, int | None] = dict.fromkeys(KV_FACTS)

EXIT_EXPECTATION = 13

EXIT_CODES: Mapping[Verdict, int] = {
    Verdict.REPRODUCED: 0,
    Verdict.NOT_REPRODUCED: 10,
    Verdict.DIFFERENT_FAILURE: 11,
    Verdict.DIVERGED: 12,
    Verdict.INCONCLUSIVE: 20,
}


def build_report(
    decision: Decision,
    *,
    dump: Mapping[str, str],
    mode: str,
    target: str,
    settings: Mapping[str, Any],
    expected: Signature | None,
    failure: Failure | None,
    own: Mapping[str, Any],
    findings: Sequence[Mapping[str, Any]],
    fidelity: Mapping[str, str],
    repeat: Mapping[str, int],
    timings: Mapping[str, float],
    environment: Mapping[str, Any],
    kernels: str = "none",
    scope: str = "engine",
    divergence: Mapping[str, Any] | None = None,
    requests: Sequence[Mapping[str, Any]] = (),
    answers: Mapping[str, Any] | None = None,
    perplexity: float | None = None,
    fallbacks: Mapping[str, Any] | None = None,
    kv: Mapping[str, int | None] = NO_KV,
    quirks: Sequence[Any] = (),
) -> dict[str, Any]:
    """The JSON report of any target. Non-finite floats are null, and ``non_finite`` lists their paths.

    ``own`` holds the keys that this target alone has. ``timings`` are seconds.
    """
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": tool_version(),
        "dump": dump,
        "verdict": decision.verdict.value,
        "reason_code": decision.reason.value,
        "mode": mode,
        "kernels": kernels,
        "target": target,
        "scope": scope,
        "settings": settings,
        "signature": decision.seen.to_json() if decision.seen else None,
        "expected_signature": expected.to_json() if expected else None,
        "match": decision.match,
        "divergence": divergence,
        "requests": requests,
        "answers": answers,
        "perplexity": perplexity,
        "fallbacks": fallbacks,
        "kv": kv,
        "failure": _facts_of(failure),
        **own,
        "findings": findings,
        "fidelity": fidelity,
        "quirks": quirks,
        "repeat": repeat,
        "timings": {name: round(seconds, 4) for name, seconds in timings.items()},
        "environment": environment,
    }
    flags: list[str] = []
    cleaned: dict[str, Any] = finite(report, "", flags)
    return cleaned | {"non_finite": flags}


def _facts_of(failure: Failure | None) -> dict[str, Any] | None:
    """What is known of a failure, without what is not."""
    return None if failure is None else {key: value for key, value in asdict(failure).items() if value is not None}


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
