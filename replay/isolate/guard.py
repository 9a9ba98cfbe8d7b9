"""Keeps a replay from the network, from other processes and from other people's files, and remembers what it tried.

The audit hook sees what Python code does and names it in the error. Native code, which asks no Python, is stopped by
three layers of the system where it has them (Linux): the system call filter (syscalls.py), an empty network
(namespaces.py), and the kernel's rule on files (landlock.py). None can be taken off again in this process, which gives
up its capabilities, too (capabilities.py). Loopback counts as network: a replay must not talk to a server that happens
to run on this machine.

What is missing is said, and what follows from it. Each layer can be switched off by an environment variable, for a
system or a driver that does not get along with it; what the hook refuses stays refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from replay.errors import Refused
from replay.isolate.access import Access, of_another_process
from replay.isolate.capabilities import CapabilitiesKept, give_up
from replay.isolate.driver import ALLOWED
from replay.isolate.landlock import SIGNALS_ABI, LandlockUnavailable, restrict
from replay.isolate.namespaces import NamespaceUnavailable, leave_network
from replay.isolate.syscalls import FilterUnavailable, install_filter
from replay.runtime.databases import is_in_memory

MAX_REMEMBERED = 50
FILTER_SWITCH = "PPLX_SYSCALL_FILTER"
NETWORK_SWITCH = "PPLX_NETWORK_NAMESPACE"
FILES_SWITCH = "PPLX_LANDLOCK"

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
_SIGNALS = frozenset({"os.kill", "os.killpg"})
_OPEN = "open"
_DATABASE = "sqlite3.connect"
"""SQLite opens its files in C, which asks no hook for each. No recording saw what lay in them, so whatever a program
finds there, in its own folder too, is not what it found then."""
# Which arguments are paths that change, and which one is a folder's descriptor that they start from.
_CHANGES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "os.mkdir": ((0,), (2,)),
    "os.remove": ((0,), (1,)),
    "os.rmdir": ((0,), (1,)),
    "os.rename": ((0, 1), (2, 3)),
    "os.link": ((0, 1), (2, 3)),
    "os.symlink": ((1,), (2,)),
    "os.truncate": ((0,), ()),
    "os.chmod": ((0,), (2,)),
    "os.chown": ((0,), (3,)),
    "os.utime": ((0,), (3,)),
    "os.setxattr": ((0,), ()),
    "os.removexattr": ((0,), ()),
}
_LISTS = frozenset({"os.listdir", "os.scandir"})
_READS = frozenset({_OPEN, *_LISTS})
_FILES = frozenset({*_READS, *_CHANGES})
_REFUSED_ALWAYS = _NETWORK | _PROCESSES
_WATCHED = _REFUSED_ALWAYS | _SIGNALS | _FILES | {_DATABASE}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# What native code can still do, by the layers of which one would stop it.
_GAPS = (
    ({"seccomp", "netns"}, "native code can reach the network"),
    ({"seccomp"}, "native code can start processes"),
    ({"seccomp", "signals"}, "native code can send signals to other processes of this user"),
    ({"landlock"}, "native code can read and write the files of this user"),
    # A namespace of users, which comes with that of the network, keeps it from that; so does Landlock.
    ({"landlock", "netns"}, "native code can read the environment of other processes of this user"),
    ({"capabilities"}, "native code can do what an administrator may"),
)


@dataclass(slots=True)
class Guard:
    """What is in force, and what was refused so far.

    ``missing`` says for each layer why it is not; ``driver`` that the filter has room for a GPU's driver, ``landlock``
    is the ABI of Landlock in force (0: not).
    """

    driver: bool = False
    access: Access | None = None
    landlock: int = 0
    missing: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    listener: Callable[[str], None] | None = None
    """Hears of each refusal, in the thread that is refused. It must not do anything that could be refused."""

    @property
    def grade(self) -> str:
        """The layers in force, as in "audit-hook+seccomp+netns+landlock"."""
        filtered = "seccomp-gpu" if self.driver else "seccomp"
        layers = {"seccomp": filtered, "netns": "netns", "landlock": "landlock"}
        return "+".join(["audit-hook", *(name for layer, name in layers.items() if layer not in self.missing)])

    @property
    def gaps(self) -> list[str]:
        """What native code could still do for want of the layers that are missing."""
        lacking = set(self.missing)
        if self.landlock < SIGNALS_ABI:
            lacking.add("signals")
        return [what for layers, what in _GAPS if layers <= lacking]

    def facts(self) -> dict[str, Any]:
        """For the report: ``grade``, ``refused`` (at most MAX_REMEMBERED, in order), why a layer is ``missing`` and
        the ``gaps`` that leaves, Landlock's ABI, and what was ``allowed`` for a GPU."""
        facts: dict[str, Any] = {"grade": self.grade, "refused": list(self.refused)}
        if self.missing:
            facts["missing"] = dict(self.missing)
        if gaps := self.gaps:
            facts["gaps"] = gaps
        if self.landlock:
            facts["landlock_abi"] = self.landlock
        if self.driver and "seccomp" not in self.missing:
            facts["allowed"] = ALLOWED
        return facts

    def forget(self) -> None:
        """For the next job of this process: what the last one tried is not its doing."""
        self.refused.clear()
        self.listener = None

    def refusal(self, event: str, arguments: tuple[Any, ...]) -> bool:
        """Whether an audit event is one to refuse."""
        if event in _REFUSED_ALWAYS:
            return True
        if event in _SIGNALS:
            # To its own process, by id: then it cannot be meant for another one.
            return event != "os.kill" or arguments[0] != os.getpid()
        if event == _DATABASE:
            return not is_in_memory(arguments[0], uri=True)  # whether it is meant as an address is not told
        if self.landlock == 0 and event in _READS and _leads_to_another_process(arguments[0]):
            return True
        if self.access is None:
            return False
        if event == _OPEN:
            return _opens(self.access, *arguments, reads="landlock" not in self.missing)
        if event in _LISTS:
            reads = "landlock" not in self.missing and isinstance(arguments[0], str | bytes)
            return reads and not self.access.may_read(os.path.abspath(os.fsdecode(arguments[0])))
        paths, folders = _CHANGES[event]
        if any(at < len(arguments) and arguments[at] not in (-1, None) for at in folders):
            return False  # relative to a descriptor: the system knows where that leads
        return any(
            isinstance(arguments[at], str | bytes)
            and not self.access.may_write(os.path.abspath(os.fsdecode(arguments[at])))
            for at in paths
        )


def install(*, driver: bool = False, access: Access | None = None) -> Guard:
    """Put all layers in force for the rest of this process's life. Call it before any other thread is started.

    ``driver``: with room for a GPU's driver, see `replay.isolate.driver`. ``access``: the files that may be touched;
    without it there is no rule on files.
    """
    guard = Guard(driver=driver, access=access)
    layers: dict[str, tuple[str, Callable[[], object]]] = {
        # In this order: the filter refuses what the others are made with.
        "netns": (NETWORK_SWITCH, leave_network),
        "landlock": (FILES_SWITCH, lambda: _restrict(guard)),
        "capabilities": ("", lambda: give_up(keep_reading=guard.landlock > 0)),
        "seccomp": (FILTER_SWITCH, lambda: install_filter(driver=driver)),
    }
    for layer, (switch, put_in_force) in layers.items():
        try:
            if switch and os.environ.get(switch) == "off":
                guard.missing[layer] = f"switched off by {switch}"
            else:
                put_in_force()
        except (CapabilitiesKept, FilterUnavailable, LandlockUnavailable, NamespaceUnavailable) as error:
            guard.missing[layer] = str(error)
    if os.environ.get(FILES_SWITCH) == "off":
        guard.access = None

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        # Called for every audit event of the process: the common case must stay one set lookup.
        if event not in _WATCHED or not guard.refusal(event, arguments):
            return
        attempt = f"{event}({_describe(event, arguments)})"
        if len(guard.refused) < MAX_REMEMBERED:
            guard.refused.append(attempt)
        if guard.listener is not None:
            guard.listener(attempt)
        raise Refused(f"refused during a replay: {attempt}")

    sys.addaudithook(hook)
    return guard


def _restrict(guard: Guard) -> None:
    if guard.access is None:
        raise LandlockUnavailable("this process was given no rule on files")
    guard.landlock = restrict(guard.access)


def _opens(access: Access, path: object, mode: object, flags: object, *, reads: bool) -> bool:
    """Whether an ``open`` leads out of ``access``. Where the system does not stop reads, they are not refused here
    either: which files a library needs is known for Linux alone."""
    if not isinstance(path, str | bytes) or not isinstance(flags, int):
        return False
    name = os.fsdecode(path)
    if not name.startswith("/"):
        if mode is None:
            return False  # by os.open, perhaps relative to a descriptor: the system knows where that leads
        name = os.path.abspath(name)
    if flags & _WRITES:
        return not access.may_write(name)
    return reads and not access.may_read(name)


def _leads_to_another_process(path: object) -> bool:
    if not isinstance(path, str | bytes):
        return False
    return of_another_process(os.path.abspath(os.fsdecode(path)))


def _describe(event: str, arguments: tuple[Any, ...]) -> str:
    # The first argument of most socket events is the socket object, whose repr tells a person nothing.
    told = arguments[1:] if event in {"socket.bind", "socket.connect", "socket.sendmsg", "socket.sendto"} else arguments
    return ", ".join(repr(argument)[:100] for argument in told[:2])
