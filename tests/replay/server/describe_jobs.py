"""Stand-ins for describing dumps: what a file's name says happens to the process that opens it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replay.server.describe import FACTS, STAGE

Emit = Callable[[dict[str, Any]], None]


def describe(job: dict[str, Any], emit: Emit) -> dict[str, Any]:
    described = []
    for index, path in enumerate(Path(name) for name in job["paths"]):
        emit({"event": "progress", "stage": STAGE, "done": index, "total": None})
        if path.name.startswith("deadly"):
            os.abort()
        if path.name.startswith("slow") and not path.with_name("ready").exists():
            threading.Event().wait()
        described.append({**dict.fromkeys(FACTS), "error": None})
    return {"dumps": described}


def describe_with_path_as_id(job: dict[str, Any], emit: Emit) -> dict[str, Any]:
    return {"dumps": [{**dict.fromkeys(FACTS), "id": "../../etc/passwd", "error": None} for _ in job["paths"]]}
