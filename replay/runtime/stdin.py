"""What a program reads from its standard input: no recording has it, so it is refused, by an error that is noted.

Left to itself a replay would find the input empty, or read what whoever started it types. Where the recorded program
had nothing to read (/dev/null) the replay has that too, and one that stood at a terminal is told so.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from dumps.record import standard_input
from dumps.record.seams.rebind import StandIn, rebind
from replay.runtime.errors import RuntimeReplayError

Refuse = Callable[[RuntimeReplayError], RuntimeReplayError]
_Refused = Callable[[str], RuntimeReplayError]

_NAMES = ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0", b"/dev/stdin")
_DEBUGGERS = frozenset({"pdb", "bdb", "code", "IPython", "ipdb", "pudb"})
"""Whoever stands in one of them, in a world entered by hand, types there himself."""


class StandardInput(RuntimeReplayError):
    """The program reads its standard input, which is not recorded."""

    exit_code = 20
    remedy = (
        "Give it by an argument or a file, which are recorded; or keep the reading behind a "
        '@tool(replay="answer"), whose results are recorded.'
    )


def install(refuse: Refuse, recorded: str, real: dict[str, Any]) -> Callable[[], None]:
    """Refuse it from here on; returns the way back. ``refuse`` notes each error, ``recorded`` is what it was: a kind of
    `dumps.record.standard_input`, "" where that is not known.

    ``real`` are the functions that are asked about what is no file of the program, see `FileFunctions.real`: another
    stand-in around those would hide who opens a file.
    """
    if recorded == standard_input.NULL:
        return lambda: None
    terminal = recorded == standard_input.TERMINAL

    def refused(how: str) -> RuntimeReplayError:
        return refuse(StandardInput(f"the program reads its standard input, which is not recorded: {how}"))

    kept = {name: real[name] for name in ("read", "io.open")}
    real["read"] = _reading(refused, "read", real["read"])
    real["io.open"] = _opening(refused, real["io.open"])
    undo = rebind(
        {
            os.readv: StandIn(os.readv, _reading(refused, "readv", os.readv)),
            os.isatty: StandIn(os.isatty, _looking(os.isatty, terminal=terminal)),
            input: StandIn(input, _asking(refused, input)),
        }
    )
    before = sys.stdin, sys.__stdin__
    ours = io.TextIOWrapper(io.BufferedReader(_Raw(refused, before[0], terminal=terminal)), encoding="utf-8")
    sys.stdin, sys.__stdin__ = ours, ours  # type: ignore[misc]

    def uninstall() -> None:
        undo()
        real.update(kept)
        if sys.stdin is ours:
            sys.stdin = before[0]
        if sys.__stdin__ is ours:
            sys.__stdin__ = before[1]  # type: ignore[misc]

    return uninstall


def _reading(refused: _Refused, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def read(fd: int, *args: Any) -> Any:
        if _is_input(fd):
            raise refused(f"os.{name}(0, ...)")
        return real(fd, *args)

    return read


def _opening(refused: _Refused, real: Callable[..., Any]) -> Callable[..., Any]:
    def open_file(file: Any, *args: Any) -> Any:
        if _is_input(file) or file in _NAMES:
            raise refused(f"open({file!r})")
        return real(file, *args)

    return open_file


def _asking(refused: _Refused, real: Callable[..., Any]) -> Callable[..., Any]:
    def ask(*args: Any) -> Any:
        if _in_a_debugger(sys._getframe(1)):
            return real(*args)
        raise refused("input()")

    return ask


def _looking(real: Callable[[int], bool], *, terminal: bool) -> Callable[[int], bool]:
    return lambda fd: terminal if _is_input(fd) else real(fd)


def _is_input(fd: Any) -> bool:
    return isinstance(fd, int) and fd == 0


class _Raw(io.RawIOBase):
    """Stands under ``sys.stdin``."""

    name = "<stdin>"
    mode = "rb"

    def __init__(self, refused: Callable[[str], RuntimeReplayError], real: Any, *, terminal: bool) -> None:
        super().__init__()
        self._refused, self._real, self._terminal = refused, real, terminal

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0

    def isatty(self) -> bool:
        return self._terminal

    def readinto(self, buffer: Any) -> int:
        if self._real is None or not _in_a_debugger(sys._getframe(1)):
            raise self._refused("sys.stdin")
        line = self._real.readline(len(buffer) // 4).encode()
        buffer[: len(line)] = line
        return len(line)


def _in_a_debugger(frame: FrameType | None) -> bool:
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _DEBUGGERS:
            return True
        frame = frame.f_back
    return False
