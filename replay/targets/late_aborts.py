"""The order of two events that an engine takes for impossible: a request's end, and then its abort."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay.engine.request import FinishReason
from replay.engine.schedule import StepPlan
from replay.report import finding


def late_aborts(plan: StepPlan, ends: Mapping[str, tuple[int, str]]) -> list[dict[str, Any]]:
    """A finding for each abort in a plan whose request had ended by itself. ``ends``: step and cause by request id."""
    found = []
    for abort in plan.aborted:
        request = abort.request
        if request.finish_reason in (None, FinishReason.ABORT):
            continue
        step, cause = ends.get(request.id, (None, request.finish_cause.value if request.finish_cause else ""))
        where = f"in step {step}" if step is not None else "before the first replayed step"
        found.append(
            finding(
                "abort-after-finish",
                f"request {request.id} finished {where} ({cause}); its abort ({abort.cause.value}) came after that, "
                f"before step {plan.index}",
                request=request.id,
                events=[
                    {"event": "finish", "step": step, "cause": cause},
                    {"event": "abort", "step": plan.index, "cause": abort.cause.value},
                ],
            )
        )
    return found
