"""What the server counts, as Prometheus text. Written by the engine's thread and the loop, read by the loop.

Source of the format: Prometheus text exposition, version 0.0.4.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_HELP: dict[str, tuple[str, str]] = {
    "pplx_requests_running": ("gauge", "Sequences in the batch."),
    "pplx_requests_waiting": ("gauge", "Sequences queued or preempted."),
    "pplx_kv_blocks_used": ("gauge", "KV blocks with a reference."),
    "pplx_kv_blocks_total": ("gauge", "KV blocks in the pool."),
    "pplx_kv_usage_ratio": ("gauge", "Used share of the KV pool, 0 to 1."),
    "pplx_steps_total": ("counter", "Engine steps run."),
    "pplx_prompt_tokens_total": ("counter", "Prompt tokens taken."),
    "pplx_output_tokens_total": ("counter", "Output tokens drawn."),
    "pplx_preemptions_total": ("counter", "Sequences whose blocks were taken."),
    "pplx_requests_finished_total": ("counter", "Sequences ended, by what the client was told and why really."),
    "pplx_failures_total": ("counter", "Failures seen, by kind."),
    "pplx_dumps_written_total": ("counter", "Dumps written, by reason."),
    "pplx_dumps_dropped_total": ("counter", "Dumps not written, by why not."),
}

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters and gauges by name and labels."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, Labels]] = Counter()
        self._gauges: dict[str, float] = {}

    def add(self, name: str, amount: int = 1, **labels: str) -> None:
        with self._lock:
            self._counts[name, tuple(sorted(labels.items()))] += amount

    def set(self, gauges: Mapping[str, float]) -> None:
        """Set gauges; all of one call are seen together."""
        with self._lock:
            self._gauges.update(gauges)

    def value(self, name: str) -> float:
        """A gauge, or a counter summed over its labels."""
        with self._lock:
            if name in self._gauges:
                return self._gauges[name]
            return sum(count for (counter, _), count in self._counts.items() if counter == name)

    def text(self) -> str:
        """All families in a fixed order; a family nobody touched shows zero unless it has labels."""
        with self._lock:
            gauges, counts = dict(self._gauges), dict(self._counts)
        lines: list[str] = []
        for name, (kind, description) in _HELP.items():
            lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
            if kind == "gauge":
                lines.append(f"{name} {gauges.get(name, 0):g}")
            else:
                lines += _samples(name, ((labels, n) for (counter, labels), n in counts.items() if counter == name))
        return "\n".join(lines) + "\n"


def _samples(name: str, values: Iterable[tuple[Labels, int]]) -> list[str]:
    """One line for each set of labels. Label values are our own closed words, so nothing in them needs escaping."""
    lines = []
    for labels, count in sorted(values):
        inside = ",".join(f'{key}="{value}"' for key, value in labels)
        lines.append(f"{name}{{{inside}}} {count}" if inside else f"{name} {count}")
    return lines
