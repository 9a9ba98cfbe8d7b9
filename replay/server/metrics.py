"""The server's counters as Prometheus text, exposition format 0.0.4."""

from __future__ import annotations

from replay.server.replays import Counts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def text(counts: Counts, uploads: int) -> str:
    """Outcome labels are our own closed words (verdicts, "error-" and an exit code), so nothing in them is escaped."""
    budget = counts.outcomes["error-21"]
    lines = [
        *_family("pplx_replay_running", "gauge", "Replays in a worker process now."),
        f"pplx_replay_running {counts.running}",
        *_family("pplx_replay_admitted", "gauge", "Replays that run, wait, or are being uploaded."),
        f"pplx_replay_admitted {counts.admitted}",
        *_family("pplx_replay_finished_total", "counter", "Replays ended, by verdict or error."),
        *(f'pplx_replay_finished_total{{outcome="{name}"}} {n}' for name, n in sorted(counts.outcomes.items())),
        *_family("pplx_replay_timeouts_total", "counter", "Replays ended by their timeout."),
        f"pplx_replay_timeouts_total {budget}",
        *_family("pplx_replay_abandoned_total", "counter", "Replays whose client went away."),
        f"pplx_replay_abandoned_total {counts.abandoned}",
        *_family("pplx_replay_rejected_total", "counter", "Requests refused because the queue was full."),
        f"pplx_replay_rejected_total {counts.rejected}",
        *_family("pplx_replay_uploads_total", "counter", "Dumps uploaded."),
        f"pplx_replay_uploads_total {uploads}",
    ]
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, help_text: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"
