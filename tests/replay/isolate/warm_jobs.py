"""Job functions for workers that are kept. A count in the module shows whether two jobs met in one process."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Emit = Callable[[dict[str, Any]], None]

_jobs = 0
_ballast: list[bytes] = []


def run(job: Job, emit: Emit) -> dict[str, Any]:
    """Does what ``job["do"]`` says and tells its process and which job of it this is."""
    global _jobs
    _jobs += 1
    emit({"event": "progress", "stage": "load", "done": _jobs, "total": None})
    emit({"event": "step-started"})
    match job.get("do"):
        case "fail":
            raise ValueError("a case nobody thought of")
        case "hang":
            threading.Event().wait()
        case "crash":
            os.abort()
        case "die later":
            threading.Timer(0.1, os._exit, (3,)).start()
        case "go on":
            emit({"event": "loaded", "key": job["loads"]})
            threading.Timer(0.05, emit, ({"event": "step-started"},)).start()
        case "grow later":
            threading.Timer(0.1, lambda: _ballast.append(b"x" * (400 << 20))).start()
        case "try":
            with contextlib.suppress(PermissionError):
                os.kill(os.getppid(), 0)
        case "wait":
            while Path(job["held"]).exists():
                threading.Event().wait(0.01)
    emit({"event": "loaded", "key": job.get("loads", "")})
    return {"pid": os.getpid(), "job": _jobs, "text": Path(job["dump"]).read_text(), "environment": {}}
