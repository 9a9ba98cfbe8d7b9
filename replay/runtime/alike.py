"""Findings that differ in nothing but the task that they are about, as a server's are, told once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replay.runtime.env import Finding

_TASK = re.compile(r"task '[^']*'")
MAX_NAMED = 5


def told_once(findings: Iterable[Finding]) -> list[Finding]:
    """``findings`` in their order; of unrecorded requests that were asked at one place the first, which says how often
    the others came, and from whom."""
    groups: dict[object, list[Finding]] = {}
    for number, one in enumerate(findings):
        groups.setdefault(_place(one) or number, []).append(one)
    return [_with_the_others(group) for group in groups.values()]


def _place(finding: Finding) -> str:
    """What was asked, and at which line; "" for other findings."""
    if finding.code != "unrecorded":
        return ""
    asked = next((line for line in finding.message.splitlines() if line.startswith("  replayed (your code):")), "")
    return _TASK.sub("", asked)


def _with_the_others(group: Sequence[Finding]) -> Finding:
    first, others = group[0], group[1:]
    if not others:
        return first
    tasks = list(dict.fromkeys(match[0] for one in others if (match := _TASK.search(one.message))))
    named = ", ".join(tasks[:MAX_NAMED]) + (", ..." if len(tasks) > MAX_NAMED else "")
    times = "once" if len(others) == 1 else f"{len(others)} times"
    return replace(first, message=f"{first.message}\n  and {times} more at this line{named and f': {named}'}")
