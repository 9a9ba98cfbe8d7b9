"""Job functions of a batch's worker that die or fail on the way, and of the worker that replays one dump alone.

Dumps are names here; one that says "deadly" kills the process that has it in hands.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

Job = dict[str, Any]
Emit = Callable[[dict[str, Any]], None]

SIDE_BY_SIDE = 2


def begun(index: int) -> dict[str, Any]:
    return {"event": "item", "index": index, "state": "begun"}


def report(index: int, dump: str) -> dict[str, Any]:
    return {"event": "item", "index": index, "state": "report", "report": told("batch", dump)}


def told(by: str, dump: str) -> dict[str, Any]:
    return {"verdict": "reproduced", "by": by, "dump": dump, "environment": {}}


def batch(job: Job, emit: Emit) -> dict[str, Any]:
    """Takes two dumps at a time: both are begun before either ends."""
    emit({"event": "step-started"})
    dumps = job["dumps"]
    for first in range(0, len(dumps), SIDE_BY_SIDE):
        both = list(enumerate(dumps))[first : first + SIDE_BY_SIDE]
        for index, _ in both:
            emit(begun(index))
        for index, dump in both:
            if "deadly" in dump:
                os.kill(os.getpid(), signal.SIGKILL)
            if "hangs" in dump:
                threading.Event().wait()
            if "memory" in dump:
                raised = {"class": "InternalError", "message": "RuntimeError: can't allocate memory", "exit_code": 70}
                emit({"event": "item", "index": index, "state": "error", **raised})
                continue
            if "bad" in dump:
                raised = {"class": "TornDump", "message": "torn \x1b[31m", "exit_code": 4, "offset": 7}
                emit({"event": "item", "index": index, "state": "error", **raised})
                continue
            emit(report(index, dump))
    return {"dumps": len(dumps)}


def dies_at_once(job: Job, emit: Emit) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


def nonsense(job: Job, emit: Emit) -> dict[str, Any]:
    """Speaks of a dump that it was not given."""
    emit({"event": "item", "index": len(job["dumps"]), "state": "begun"})
    threading.Event().wait()
    raise AssertionError("not reached")


def buys_time(job: Job, emit: Emit) -> dict[str, Any]:
    """Ends the same dump again and again, so that its clock would not run out."""
    emit({"event": "step-started"})
    for _ in range(1_000_000):
        emit(report(0, job["dumps"][0]))
    return {}


def alone(job: Job, emit: Emit) -> dict[str, Any]:
    emit({"event": "step-started"})
    if "deadly" in job["dump"]:
        os.kill(os.getpid(), signal.SIGKILL)
    if "hangs" in job["dump"]:
        threading.Event().wait()
    return told("alone", job["dump"])
