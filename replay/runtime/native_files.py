"""Ways to a file that lead past `open` and `os`: a map into memory, or a second descriptor, which C code reads.

No recording saw what is read so, and behind a descriptor of the replay nothing lies. They are refused for the program's
files; memory without a file is its own affair. Databases are those of `replay.runtime.databases`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Any

from dumps.record.seams.rebind import StandIn, rebind
from replay.runtime.errors import RuntimeReplayError

Refuse = Callable[[RuntimeReplayError], RuntimeReplayError]


class ReadsPastTheRecord(RuntimeReplayError):
    """The program gets at a file through C code that no recording sees: sqlite3, mmap, a second descriptor of it."""

    exit_code = 20
    remedy = (
        'Read the file with open(); or keep the database behind a @tool(replay="answer"), whose results are recorded.'
    )


def install(refuse: Refuse, is_played: Callable[[int], bool], is_read: Callable[[int], bool]) -> Callable[[], None]:
    """Refuse them from here on; returns the way back. ``refuse`` notes each error, ``is_played`` knows the descriptors
    of the replay, ``is_read`` those among them that can be read from."""
    undo_maps = _refuse_maps(refuse, is_played)
    undo_copies = _refuse_copies(refuse, is_read)

    def uninstall() -> None:
        undo_copies()
        undo_maps()

    return uninstall


def _refuse_maps(refuse: Refuse, is_played: Callable[[int], bool]) -> Callable[[], None]:
    class Map(mmap.mmap):
        """``mmap.mmap`` for all but the files of the replay."""

        def __new__(cls, fileno: int, *args: Any, **kwargs: Any) -> Map:
            if is_played(fileno):
                raise refuse(ReadsPastTheRecord("the program maps a recorded file into memory: mmap.mmap(...)"))
            return super().__new__(cls, fileno, *args, **kwargs)

    return rebind({mmap.mmap: Map})


def _refuse_copies(refuse: Refuse, is_read: Callable[[int], bool]) -> Callable[[], None]:
    """C code that is given a file asks for one. What is only written so is lost, as it was to the recording, which has
    the size that a later look found."""

    def refusing(name: str, real: Callable[..., int]) -> StandIn:
        def function(fd: int, *args: Any, **kwargs: Any) -> int:
            if is_read(fd):
                raise refuse(ReadsPastTheRecord(f"the program makes another descriptor of a recorded file: os.{name}"))
            return real(fd, *args, **kwargs)

        return StandIn(real, function)

    return rebind({getattr(os, name): refusing(name, getattr(os, name)) for name in ("dup", "dup2")})
