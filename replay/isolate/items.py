"""What a job says of each of its items while it still runs, checked: a worker's word is not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replay.isolate.result import Result, from_error_event, state_isolation

BEGUN, REPORT, ERROR = "begun", "report", "error"


def item_event(event: Mapping[str, Any], items: int) -> dict[str, Any] | None:
    """An item frame: ``index`` below ``items``, ``state``, and a ``result`` unless that is "begun". None: unusable."""
    index, state, guard = event.get("index"), event.get("state"), event.get("guard")
    if type(index) is not int or not 0 <= index < items:
        return None
    checked: dict[str, Any] = {"event": "item", "index": index, "state": state}
    guard = guard if isinstance(guard, dict) else {}
    if state == REPORT and isinstance(report := event.get("report"), dict):
        state_isolation(report, guard)
        return checked | {"result": Result(report=report, guard=guard, step_started=True)}
    if state == ERROR:
        return checked | {"result": Result(error=from_error_event(event), guard=guard)}
    return checked if state == BEGUN else None
