"""What tests look for in the report of a replay."""

from __future__ import annotations

from typing import Any

Report = dict[str, Any]


def without_times(report: Report) -> Report:
    """All that two runs of one replay have in common."""
    return {key: value for key, value in report.items() if key != "timings"}


def findings(report: Report, code: str) -> list[Report]:
    return [finding for finding in report["findings"] if finding["code"] == code]
