"""What a program shares with other processes: semaphores and shared memory of multiprocessing, pipes with a name.

A replay has no other process, and the guard keeps this one from the files that they are made of. Left to themselves
they would fail with the system's error, which is not the program's. So they are refused, by an error that is noted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from dumps.record.seams.late import when_imported
from dumps.record.seams.rebind import StandIn, rebind
from replay.runtime.errors import RuntimeReplayError

Refuse = Callable[[RuntimeReplayError], RuntimeReplayError]

_DO_WITHOUT = frozenset({"tqdm.std", "joblib._multiprocessing_helpers"})
"""Modules that make a semaphore in case it is needed, and go on without it."""
_DEPTH = 12
"""Frames between such a module and the semaphore, at most."""


class SharedWithProcesses(RuntimeReplayError, PermissionError):
    """The program makes what is there to be shared with another process. Usually multiprocessing, or a pool of it.

    It is a PermissionError too, so that a library which can do without does without.
    """

    exit_code = 20
    remedy = 'Replay an entry that works in one process; or keep the processes behind a @tool(replay="answer").'


def install(refuse: Refuse) -> Callable[[], None]:
    """Refuse them from here on; returns the way back. ``refuse`` notes each error."""

    def error(what: str) -> SharedWithProcesses:
        made = SharedWithProcesses(f"the program makes {what}")
        if not _can_do_without(sys._getframe(2)):
            refuse(made)
        return made

    pipes = {
        getattr(os, name): _refusing(getattr(os, name), f"a file that processes share: os.{name}(...)", error)
        for name in ("mkfifo", "mknod")
    }
    undo = [rebind(pipes)]
    forget = [
        when_imported("_multiprocessing", lambda module: undo.append(_refuse_semaphores(module, error))),
        when_imported("_posixshmem", lambda module: undo.append(_refuse_memory(module, error))),
    ]

    def uninstall() -> None:
        for each in forget:
            each()
        while undo:
            undo.pop()()

    return uninstall


def _refuse_semaphores(module: ModuleType, error: Callable[[str], Exception]) -> Callable[[], None]:
    real = module.SemLock

    class SemLock(real):  # type: ignore[misc,valid-type]
        """With the constants of the real one."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            raise error("a semaphore for several processes: multiprocessing.Lock() or what has one")

        @classmethod
        def _rebuild(cls, *args: Any) -> Any:
            raise error("a semaphore of another process its own")

    return rebind({real: SemLock})


def _refuse_memory(module: ModuleType, error: Callable[[str], Exception]) -> Callable[[], None]:
    real = module.shm_open
    return rebind({real: _refusing(real, "memory that processes share: SharedMemory(...)", error)})


def _refusing(real: Callable[..., Any], what: str, error: Callable[[str], Exception]) -> StandIn:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise error(what)

    return StandIn(real, refused)


def _can_do_without(frame: FrameType | None) -> bool:
    for _ in range(_DEPTH):
        if frame is None:
            break
        if frame.f_globals.get("__name__") in _DO_WITHOUT:
            return True
        frame = frame.f_back
    return False
