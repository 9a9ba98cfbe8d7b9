"""The table that the benchmarks fill: a row for each thing measured, with its target and what was found."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pytest

Run = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``measured`` and ``target`` are texts with their units. ``values`` are the numbers behind them, for JSON."""

    what: str
    target: str
    measured: str
    values: Mapping[str, float]


ROWS = pytest.StashKey[list[Row]]()
"""Where a session of pytest keeps the rows."""


def fastest(runs: Mapping[str, Run], *, rounds: int) -> dict[str, float]:
    """Seconds of the fastest of `rounds` runs of each, all in turns: so each meets the machine's quiet moments."""
    times: dict[str, float] = {}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            took = time.perf_counter() - began
            times[name] = min(times.get(name, took), took)
    return times


def table(rows: list[Row]) -> str:
    """All rows under a line that says when and on what they were measured."""
    widths = [max(len(text) for text in column) for column in zip(*map(_cells, rows), HEADER, strict=True)]
    lines = [" | ".join(text.ljust(width) for text, width in zip(cells, widths, strict=True)) for cells in _all(rows)]
    return "\n".join([", ".join(f"{name} {value}" for name, value in machine().items()), "", *lines])


def document(rows: list[Row]) -> dict[str, Any]:
    return {"machine": machine(), "rows": [asdict(row) for row in rows]}


def machine() -> dict[str, str]:
    import torch

    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


HEADER = ("what", "target", "measured")


def _cells(row: Row) -> tuple[str, str, str]:
    return row.what, row.target, row.measured


def _all(rows: list[Row]) -> list[tuple[str, str, str]]:
    return [HEADER, *map(_cells, rows)]


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
