"""Keeps a replay from reaching the network or starting processes, and remembers what it tried.

Two layers. The audit hook sees what Python code does and names it in the error. The system call filter (syscalls.py,
Linux only) stops what native code does without asking Python. Neither can be taken off again in this process, and
loopback counts as network: a replay must not talk to a server that happens to run on this machine.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any

from replay.errors import ReplayError
from replay.isolate.driver import ALLOWED
from replay.isolate.syscalls import FilterUnavailable, install_filter

MAX_REMEMBERED = 50
FILTER_SWITCH = "PPLX_SYSCALL_FILTER"  # "off" for a device driver that needs a call the filter refuses

_NETWORK = frozenset(
    {
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyaddr",
        "socket.gethostbyname",
        "socket.getnameinfo",
        "socket.sendmsg",
        "socket.sendto",
    }
)
_PROCESSES = frozenset(
    {
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.spawn",
        "os.startfile",
        "os.system",
        "pty.spawn",
        "subprocess.Popen",
    }
)


class Refused(ReplayError, PermissionError):
    """Replayed code tried to reach the network or to start a process.

    It is a PermissionError too, so that a library which can do without (a CPU probe, a cache server) does without.
    """

    remedy = "a replay runs on the dump and local weights alone; record what it needs, or report the library"


@dataclass(slots=True)
class Guard:
    """What is in force, and what was refused so far. ``filter_missing`` says why there is no system call filter;
    ``driver`` that it has room for a GPU's driver."""

    driver: bool = False
    filter_missing: str | None = None
    refused: list[str] = field(default_factory=list)

    @property
    def grade(self) -> str:
        if self.filter_missing:
            return "audit-hook"
        return "audit-hook+seccomp-gpu" if self.driver else "audit-hook+seccomp"

    def facts(self) -> dict[str, Any]:
        """For the report: ``grade``, ``refused`` (at most MAX_REMEMBERED, in order), why a layer is missing, and what
        was ``allowed`` for a GPU."""
        facts: dict[str, Any] = {"grade": self.grade, "refused": list(self.refused)}
        if self.filter_missing:
            facts["filter_missing"] = self.filter_missing
        elif self.driver:
            facts["allowed"] = ALLOWED
        return facts


def install(*, driver: bool = False) -> Guard:
    """Put both layers in force for the rest of this process's life. Call it before any other thread is started.

    ``driver``: with room for a GPU's driver, see `replay.isolate.driver`.
    """
    guard = Guard(driver=driver)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        # Called for every audit event of the process: the common case must stay one set lookup.
        if event not in _NETWORK and event not in _PROCESSES:
            return
        attempt = f"{event}({_describe(event, arguments)})"
        if len(guard.refused) < MAX_REMEMBERED:
            guard.refused.append(attempt)
        raise Refused(f"refused during a replay: {attempt}")

    try:
        if os.environ.get(FILTER_SWITCH) == "off":
            raise FilterUnavailable(f"switched off by {FILTER_SWITCH}")
        install_filter(driver=driver)
    except FilterUnavailable as error:
        guard.filter_missing = str(error)
    sys.addaudithook(hook)
    return guard


def _describe(event: str, arguments: tuple[Any, ...]) -> str:
    # The first argument of most socket events is the socket object, whose repr tells a person nothing.
    told = arguments[1:] if event in {"socket.bind", "socket.connect", "socket.sendmsg", "socket.sendto"} else arguments
    return ", ".join(repr(argument)[:100] for argument in told[:2])
