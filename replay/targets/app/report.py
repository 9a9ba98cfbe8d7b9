"""The report of a replayed program: the fixed keys of every report, and what its world was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dumps.schema.reader import Dump
from replay.engine.failure import Failure
from replay.report import build_report
from replay.signature import Signature
from replay.targets.summary import of_dump
from replay.verdict import Decision, Verdict


def app_report(
    dump: Dump,
    decision: Decision,
    *,
    expected: Signature | None,
    failure: Failure | None,
    divergence: Mapping[str, Any] | None,
    world: Mapping[str, Any],
    output: str,
    around: Mapping[str, Any],
    settings: Mapping[str, Any],
    findings: list[dict[str, Any]],
    timings: Mapping[str, float],
    environment: Mapping[str, Any],
    mode: str,
    target: str,
) -> dict[str, Any]:
    """The JSON report of one run.

    ``world`` counts what was recorded, asked for, and left over; ``output`` is the end of what the program printed.
    ``around`` is what `replay.targets.app.around` knows of the failure.
    """
    return build_report(
        decision,
        **of_dump(dump),
        mode=mode,
        target=target,
        settings=settings,
        expected=expected,
        divergence=divergence,
        failure=failure,
        own={"world": world, "output": output, **around},
        findings=findings,
        repeat={"n": 1, "reproduced": int(decision.verdict is Verdict.REPRODUCED)},
        timings=timings,
        environment=environment,
    )
