"""Ways to a file that lead past `open` and `os`: sqlite3 and mmap read it in C.

No recording saw what they read, so a replay would give the program whatever lies there now. They are refused for the
program's files; a database in memory and memory without a file are its own affair.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dumps.record.seams.late import when_imported
from dumps.record.seams.rebind import StandIn, rebind
from replay.runtime.errors import RuntimeReplayError

Refuse = Callable[[RuntimeReplayError], RuntimeReplayError]


class ReadsPastTheRecord(RuntimeReplayError):
    """The program reads a file through C code that no recording sees: sqlite3, or mmap."""

    exit_code = 20
    remedy = (
        'Read the file with open(); or keep the database behind a @tool(replay="answer"), whose results are recorded.'
    )


def install(refuse: Refuse, is_played: Callable[[int], bool]) -> Callable[[], None]:
    """Refuse them from here on; returns the way back. ``refuse`` notes each error, ``is_played`` knows the descriptors
    of the replay."""
    undo: list[Callable[[], None]] = [_refuse_maps(refuse, is_played)]
    forget = when_imported("sqlite3", lambda module: undo.append(_refuse_databases(module, refuse)))

    def uninstall() -> None:
        forget()
        while undo:
            undo.pop()()

    return uninstall


def _refuse_maps(refuse: Refuse, is_played: Callable[[int], bool]) -> Callable[[], None]:
    class Map(mmap.mmap):
        """``mmap.mmap`` for all but the files of the replay."""

        def __new__(cls, fileno: int, *args: Any, **kwargs: Any) -> Map:
            if is_played(fileno):
                raise refuse(ReadsPastTheRecord("the program maps a recorded file into memory: mmap.mmap(...)"))
            return super().__new__(cls, fileno, *args, **kwargs)

    return rebind({mmap.mmap: Map})


def _refuse_databases(module: ModuleType, refuse: Refuse) -> Callable[[], None]:
    real = module.connect

    def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_in_memory(database, uri=bool(kwargs.get("uri"))):
            name = os.fsdecode(database) if isinstance(database, str | bytes | os.PathLike) else database
            raise refuse(ReadsPastTheRecord(f"the program opens a database file: sqlite3.connect({name!r})"))
        return real(database, *args, **kwargs)

    return rebind({real: StandIn(real, connect)})


def _is_in_memory(database: Any, *, uri: bool) -> bool:
    if database in (":memory:", b":memory:", "", b""):
        return True
    return uri and isinstance(database, str) and (database.startswith("file::memory:") or "mode=memory" in database)
