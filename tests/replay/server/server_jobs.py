"""Stand-ins for replays that go wrong, and a server that runs them: `python server_jobs.py DUMPS TIMEOUT [QUEUE]`.

The first word of the uploaded bytes says what the replay does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replay.server.app import ServerConfig
from replay.server.process import serve
from replay.server.replays import Settings

TOKEN = "a-token-for-these-tests-only"
Emit = Callable[[dict[str, Any]], None]


def run(job: dict[str, Any], emit: Emit) -> dict[str, Any]:
    path = Path(job["dump"])
    word, _, argument = path.read_text().partition(" ")
    emit({"event": "progress", "stage": "load", "done": 1, "total": 1})
    if word == "wait":
        # Before the first step, where the server's second does not count: the test decides, by removing the file.
        while Path(argument).exists():
            threading.Event().wait(0.01)
    emit({"event": "step-started"})
    emit({"event": "progress", "stage": "pid", "done": os.getpid(), "total": None})
    match word:
        case "hang":
            threading.Event().wait()
        case "abort":
            os.abort()
        case "stat":
            status, folder = path.stat(), path.parent.stat()
            return {"verdict": "reproduced", "path": str(path), "modes": [oct(status.st_mode), oct(folder.st_mode)]}
        case "message":
            raise RuntimeError(f"something about {path}")
    return {"verdict": "not-reproduced", "text": argument, "job": {k: v for k, v in job.items() if k != "dump"}}


if __name__ == "__main__":
    settings = Settings(
        timeout_s=float(sys.argv[2]),
        load_timeout_s=60,
        queue=int(sys.argv[3]) if len(sys.argv) > 3 else 8,
        job_function="tests.replay.server.server_jobs:run",
    )
    config = ServerConfig(dumps=Path(sys.argv[1]), token=TOKEN, settings=settings, max_upload_bytes=1 << 20)
    asyncio.run(
        serve(config, host="127.0.0.1", port=0, allow_remote=False, on_ready=lambda url: print(url, flush=True))  # noqa: T201
    )
