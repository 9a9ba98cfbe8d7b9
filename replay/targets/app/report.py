"""The report of a replayed program: the fixed keys of every report, and what its world was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dumps.schema.reader import Dump
from replay.engine.failure import Failure
from replay.report import SCHEMA_VERSION, finite, tool_version
from replay.signature import Signature
from replay.targets.summary import facts_of, fidelity
from replay.verdict import Decision


def app_report(
    dump: Dump,
    decision: Decision,
    *,
    expected: Signature | None,
    failure: Failure | None,
    divergence: Mapping[str, Any] | None,
    world: Mapping[str, Any],
    output: str,
    settings: Mapping[str, Any],
    findings: list[dict[str, Any]],
    timings: Mapping[str, float],
    environment: Mapping[str, Any],
    mode: str,
    target: str,
) -> dict[str, Any]:
    """The JSON report of one run.

    ``world`` counts what was recorded, asked for, and left over; ``output`` is the end of what the program printed.
    """
    report: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": tool_version(),
        "dump": {"id": dump.state.manifest.id, "sha256": dump.sha256},
        "verdict": decision.verdict.value,
        "reason_code": decision.reason.value,
        "mode": mode,
        "kernels": "none",
        "target": target,
        "scope": "engine",
        "settings": dict(settings),
        "signature": decision.seen.to_json() if decision.seen else None,
        "expected_signature": expected.to_json() if expected else None,
        "match": decision.match,
        "divergence": divergence,
        "requests": [],
        "answers": None,
        "perplexity": None,
        "fallbacks": None,
        "kv": {"kv_cache_used_bytes": None, "max_kv_cache_bytes": None, "seq_len_exceeded_at": None},
        "failure": facts_of(failure),
        "world": dict(world),
        "output": output,
        "findings": findings,
        "fidelity": fidelity(dump.state),
        "quirks": [],
        "repeat": {"n": 1, "reproduced": int(decision.verdict.value == "reproduced")},
        "timings": {name: round(seconds, 4) for name, seconds in timings.items()},
        "environment": dict(environment),
    }
    flags: list[str] = []
    cleaned: dict[str, Any] = finite(report, "", flags)
    return cleaned | {"non_finite": flags}
