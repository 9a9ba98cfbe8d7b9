"""Trials that do not come to an end: their job functions run in workers."""

from __future__ import annotations

import os
import threading
from typing import Any

from replay.isolate.worker import Emit
from replay.minimise.trial import run


def hangs_without_r98(job: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Hangs for ever where r98 is not among the requests, and dies where r0 is not but r98 is."""
    names = {visit["id"] for visit in job["scenario"]["visits"]}
    if "r98" not in names:
        emit({"event": "step-started"})
        threading.Event().wait()
    if "r0" not in names and "r1" in names:
        os.abort()
    return run(job, emit)


def slowly(job: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Takes its time, so that a test can come in between."""
    told = run(job, emit)
    threading.Event().wait(0.03)
    return told
