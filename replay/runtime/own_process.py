"""What a program finds out about its own process: its command line, its numbers, and where temporary files go.

    process = OwnProcess.of(dump.state)
    undo = process.install()
    with process.loading():
        import agent                       # sees the recorded world's process, and still makes real temporary files
    ...
    undo()

A dump that does not say one of these leaves it as it is here. Numbers are played to the program and its libraries; to
those that go on to ask the system about the number (`_ASK_THE_SYSTEM`), and to this project, the process has its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dumps.record.seams.rebind import OURS, StandIn, rebind
from dumps.schema import state_pb2 as pb

_FOLDER_VARIABLE = "TMPDIR"
_ASK_THE_SYSTEM = frozenset({*OURS, "psutil", "multiprocessing"})
_OF_A_NUMBER = (
    "kill", "getpgid", "getsid", "pidfd_open", "sched_getaffinity", "sched_setaffinity", "sched_getparam",
    "sched_getscheduler",
)  # fmt: skip
"""Functions of `os` that take the number of a process first."""

_installed: list[OwnProcess] = []
"""At most one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnProcess:
    """``argv`` is empty, ``temporary_folder`` too, and a number 0, where nothing is known. ``folder_variable`` is what
    stood in TMPDIR, None where it was not set."""

    argv: Sequence[str] = ()
    pid: int = 0
    parent_pid: int = 0
    temporary_folder: str = ""
    folder_variable: str | None = None

    @classmethod
    def of(cls, state: pb.RuntimeState) -> OwnProcess:
        program = state.program
        given = {variable.key: variable.value for variable in program.environment}
        return cls(
            argv=tuple(program.argv) if any(program.argv) else (),
            pid=state.manifest.pid if state.HasField("program") else 0,
            parent_pid=program.parent_pid,
            temporary_folder=program.temporary_folder if os.path.isabs(program.temporary_folder) else "",
            folder_variable=given.get(_FOLDER_VARIABLE),
        )

    def install(self) -> Callable[[], None]:
        """Show it to the program from here on; returns the way back. Nothing is done where one is in place already."""
        if _installed:
            return _nothing
        _installed.append(self)
        undo = [self._show_command_line(), self._show_folder(), self._show_numbers()]

        def uninstall() -> None:
            _installed.remove(self)
            while undo:
                undo.pop()()

        return uninstall

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """While a module is imported no file is played yet. A temporary file that is made meanwhile lies where this
        process may write, whatever the program thinks of its folder."""
        real, folder = getattr(tempfile, "_sanitize_params", None), _real_folder
        if not self.temporary_folder or real is None or not folder:
            yield
            return

        def sanitized(prefix: Any, suffix: Any, dir: Any) -> Any:
            if dir is None:
                in_bytes = any(isinstance(one, bytes) for one in (prefix, suffix))
                dir = os.fsencode(folder[0]) if in_bytes else folder[0]
            return real(prefix, suffix, dir)

        tempfile._sanitize_params = sanitized  # type: ignore[attr-defined]
        try:
            yield
        finally:
            tempfile._sanitize_params = real  # type: ignore[attr-defined]

    def _show_command_line(self) -> Callable[[], None]:
        before = sys.argv
        if not self.argv:
            return _nothing
        sys.argv = list(self.argv)

        def undo() -> None:
            sys.argv = before

        return undo

    def _show_folder(self) -> Callable[[], None]:
        if not self.temporary_folder:
            return _nothing
        _real_folder[:] = [tempfile.gettempdir()]
        folder, variable = tempfile.tempdir, os.environ.get(_FOLDER_VARIABLE)
        tempfile.tempdir = self.temporary_folder
        _set_variable(self.folder_variable)

        def undo() -> None:
            tempfile.tempdir = folder
            _set_variable(variable)
            _real_folder.clear()

        return undo

    def _show_numbers(self) -> Callable[[], None]:
        if not self.pid:
            return _nothing
        own = os.getpid()
        functions = {os.getpid: _number(os.getpid, self.pid)}
        if self.parent_pid:
            functions[os.getppid] = _number(os.getppid, self.parent_pid)
        for name in _OF_A_NUMBER:
            if (real := getattr(os, name, None)) is not None:
                functions[real] = _of_itself(real, self.pid, own)
        return rebind({real: StandIn(real, function) for real, function in functions.items()}, keep=_ASK_THE_SYSTEM)


_real_folder: list[str] = []
"""Of this process, while the program is shown another."""


def real_path(path: Any) -> Any:
    """``path``, or where it leads below /proc, by the number that the program was told, the path of this process."""
    pid = _installed[0].pid if _installed else 0
    if not pid or not isinstance(path, str | bytes):
        return path
    below = f"/proc/{pid}"
    text = os.fsdecode(path)
    if text != below and not text.startswith(f"{below}/"):
        return path
    text = f"/proc/self{text[len(below) :]}"
    return os.fsencode(text) if isinstance(path, bytes) else text


def _number(real: Callable[[], int], shown: int) -> Callable[..., int]:
    def function() -> int:
        caller = sys._getframe(1).f_back  # beneath the stand-in
        name = "" if caller is None else str(caller.f_globals.get("__name__"))
        return real() if name.partition(".")[0] in _ASK_THE_SYSTEM else shown

    return function


def _of_itself(real: Callable[..., Any], shown: int, own: int) -> Callable[..., Any]:
    def function(pid: Any, /, *args: Any, **kwargs: Any) -> Any:
        return real(own if pid == shown else pid, *args, **kwargs)

    return function


def _set_variable(value: str | None) -> None:
    if value is None:
        os.environ.pop(_FOLDER_VARIABLE, None)
    else:
        os.environ[_FOLDER_VARIABLE] = value


def _nothing() -> None:
    """There is no way back to go."""
