"""What a recorded program does that no replay can follow: said once for each kind, while it is recorded.

The dump is made all the same: it holds the stacks, and everything else. Seen is what can be seen cheaply: processes,
database files, and blocking HTTP clients in threads (`WorldLog.add_exchange`). What is done within a
``@tool(replay="answer")`` is not done in a replay, and is not told.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from dumps.record.seams.log import WorldLog
from dumps.record.seams.patches import Method, Patches
from dumps.record.seams.rebind import StandIn, rebind

PROBES = frozenset({"platform", "uuid", "ctypes.util", "distro.distro"})
"""Libraries that ask the system who it is, by processes of their own. They do without an answer."""

_KEEP_BEHIND = 'keep it behind a @tool(replay="answer"), whose results are recorded'


def install(log: WorldLog) -> Callable[[], None]:
    """Look out for them from here on. Returns the function that ends it."""
    patches = Patches()

    def telling(kind: str, what: Callable[..., str], remedy: str) -> Callable[[Method], Method]:
        def make(original: Method) -> Method:
            def function(*args: Any, **kwargs: Any) -> Any:
                if not is_probe(sys._getframe(1)):
                    log.cannot_follow(kind, what(*args, **kwargs), remedy)
                return original(*args, **kwargs)

            return function

        return make

    def command(_process: Any, args: Any = "", *_: Any, **__: Any) -> str:
        first = args[0] if isinstance(args, list | tuple) and args else args
        name = os.fsdecode(first) if isinstance(first, str | bytes | os.PathLike) else ""
        return f"it starts a process: subprocess, {os.path.basename(name.partition(' ')[0])!r}"

    def of_multiprocessing(module: ModuleType) -> None:
        make = telling("process", lambda *_: "it starts a process: multiprocessing", "replay an entry in one process")
        patches.wrap(module.BaseProcess, "start", make)

    def of_databases(module: ModuleType) -> None:
        real = module.connect

        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            if not _is_in_memory(database):
                log.cannot_follow("database", "it opens a database file: sqlite3.connect(...)", _KEEP_BEHIND)
            return real(database, *args, **kwargs)

        undo.append(rebind({real: StandIn(real, connect)}))

    patches.wrap(subprocess.Popen, "__init__", telling("process", command, _KEEP_BEHIND))
    undo = [
        rebind(
            {
                os.system: StandIn(
                    os.system,
                    telling("process", lambda *_: "it starts a process: os.system(...)", _KEEP_BEHIND)(os.system),
                )
            }
        )
    ]
    patches.when_imported("multiprocessing.process", of_multiprocessing)
    patches.when_imported("sqlite3", of_databases)

    def uninstall() -> None:
        patches.undo()
        while undo:
            undo.pop()()

    return uninstall


def is_probe(frame: FrameType | None) -> bool:
    """Whether ``frame`` or one of its callers is a library that only asks what system this is."""
    while frame is not None:
        if frame.f_globals.get("__name__") in PROBES:
            return True
        frame = frame.f_back
    return False


def _is_in_memory(database: Any) -> bool:
    try:
        name = os.fsdecode(database)
    except TypeError:
        return True
    return name in ("", ":memory:") or (name.startswith("file:") and "memory" in name)
