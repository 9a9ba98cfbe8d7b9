"""Job functions that try to get out of a worker, one attempt after the other, and tell what each came to.

``job["port"]`` is a listening port of this machine, ``job["outside"]`` a folder that is none of the job's, with a file
``secret`` in it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Job = dict[str, Any]
Emit = Callable[[dict[str, Any]], None]

HARMLESS = signal.SIGWINCH  # ignored by whom it reaches: a test that fails must not end the tests
ALLOWED = "allowed"


def in_python(job: Job, emit: Emit) -> dict[str, Any]:
    """Class of the error of each attempt, or "allowed"."""
    outside, port = Path(job["outside"]), job["port"]
    link = Path(tempfile.gettempdir()) / "link"
    tries: dict[str, Callable[[], object]] = {
        "asyncio": lambda: asyncio.run(_open_connection(port)),
        "fork and connect": lambda: _fork_and_connect(port),
        "subprocess": lambda: subprocess.run([sys.executable, "-c", f"open('{outside}/made', 'w')"], check=True),
        "system": lambda: os.system(f"touch {outside}/made"),
        "read": lambda: (outside / "secret").read_text(),
        "read settings": lambda: Path("/etc/shadow").read_text(),
        "read through a link": lambda: (_link(link, outside) / "secret").read_text(),
        "read above": lambda: Path(f"{job['dump']}/../outside/secret").read_text(),
        "environment of the parent": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
        "words of the parent": lambda: Path(f"/proc/{os.getppid()}/cmdline").read_bytes(),
        "processes": lambda: os.listdir(f"/proc/{os.getppid()}/fd"),
        "list": lambda: list(outside.iterdir()),
        "write": lambda: (outside / "made").write_text("x"),
        "append": lambda: os.open(outside / "secret", os.O_WRONLY | os.O_APPEND),
        "remove": lambda: (outside / "secret").unlink(),
        "rename": lambda: (outside / "secret").rename(outside / "made"),
        "mkdir": lambda: (outside / "made").mkdir(),
        "chmod": lambda: (outside / "secret").chmod(0o777),
        "write to the dump": lambda: Path(job["dump"]).write_text("x"),
        "signal": lambda: os.kill(os.getppid(), HARMLESS),
        "signal to a group": lambda: os.killpg(os.getpgid(os.getppid()), HARMLESS),
    }
    seen = {}
    for name, attempt in tries.items():
        try:
            attempt()
            seen[name] = ALLOWED
        except Exception as error:
            seen[name] = type(error).__name__
    return {"seen": seen}


def _link(link: Path, target: Path) -> Path:
    link.symlink_to(target)
    return link


async def _open_connection(port: int) -> None:
    await asyncio.open_connection("127.0.0.1", port)


def _fork_and_connect(port: int) -> None:
    if os.fork() == 0:
        socket.create_connection(("127.0.0.1", port))
        os._exit(0)


def in_native_code(job: Job, emit: Emit) -> dict[str, Any]:
    """The same from C, where no audit hook looks: name of the error of each call, or "allowed". ``job["only"]``
    names some of them."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(function: str, *arguments: object) -> str:
        ctypes.set_errno(0)
        failed = getattr(libc, function)(*arguments) < 0
        return os.strerror(ctypes.get_errno()) if failed else ALLOWED

    def syscall(number: int, *arguments: object) -> str:
        return call("syscall", ctypes.c_long(number), *arguments)

    outside, parent = os.fsencode(job["outside"]), os.getppid()
    address = (2).to_bytes(2, "little") + job["port"].to_bytes(2, "big") + bytes([127, 0, 0, 1]) + bytes(8)
    arm = os.uname().machine == "aarch64"
    own = os.fsencode(tempfile.gettempdir())
    info = ctypes.create_string_buffer(bytes(8) + b"\xff" * 4, 128)  # si_code: SI_QUEUE is -1
    limits = ctypes.create_string_buffer(16)
    left, _right = socket.socketpair()
    tries: dict[str, Callable[[], str]] = {
        "connect": lambda: call("connect", libc.socket(2, 1, 0), address, 16),
        "sendto": lambda: call("sendto", libc.socket(2, 2, 0), b"x", 1, 0, address, 16),
        "execve": lambda: call("execve", b"/bin/true", None, None),
        "ptrace": lambda: call("ptrace", 16, parent, None, None),
        "io_uring": lambda: syscall(425, 4, ctypes.create_string_buffer(256)),
        "kill": lambda: call("kill", parent, int(HARMLESS)),
        "kill all": lambda: call("kill", -1, 0),
        "tgkill": lambda: syscall(131 if arm else 234, parent, parent, int(HARMLESS)),
        "sigqueue": lambda: syscall(138 if arm else 129, parent, int(HARMLESS), info),
        "pidfd": lambda: syscall(424, 0, int(HARMLESS), None, 0),
        "signal by file": lambda: call("fcntl", left.fileno(), 8, parent),
        "limits": lambda: syscall(261 if arm else 302, parent, 7, limits, None),
        "read": lambda: call("open", outside + b"/secret", os.O_RDONLY),
        "write": lambda: call("open", outside + b"/made", os.O_WRONLY | os.O_CREAT, 0o600),
        "remove": lambda: call("unlink", outside + b"/secret"),
        "truncate": lambda: call("truncate", outside + b"/secret", 0),
        "chmod": lambda: call("chmod", outside + b"/secret", 0o777),
        "memory of the parent": lambda: call("open", b"/proc/%d/mem" % parent, os.O_RDONLY),
        "environment of the parent": lambda: call("open", b"/proc/%d/environ" % parent, os.O_RDONLY),
        "words of the parent": lambda: call("open", b"/proc/%d/cmdline" % parent, os.O_RDONLY),
        "unshare": lambda: call("unshare", 0x20000000),
        "mount": lambda: call("mount", b"none", own, b"tmpfs", 0, None),
        # Right by themselves:
        "own signal": lambda: call("kill", os.getpid(), 0),
        "own state": lambda: call("open", b"/proc/self/status", os.O_RDONLY),
        "own thread": lambda: call("open", b"/proc/thread-self/stat", os.O_RDONLY),
        "processor": lambda: call("open", b"/proc/cpuinfo", os.O_RDONLY),
        "own file": lambda: call("open", own + b"/own", os.O_WRONLY | os.O_CREAT, 0o600),
    }
    seen = {name: tries[name]() for name in job.get("only", tries)}
    if "only" in job:
        return {"seen": seen}
    # The last: a child of it, if there were one, would run what follows too.
    libc.system(b"touch " + outside + b"/made")
    child = libc.fork()
    if child == 0:
        os._exit(0)
    seen["fork"] = ALLOWED if child > 0 else os.strerror(ctypes.get_errno())
    return {"seen": seen}


def fork_bomb(job: Job, emit: Emit) -> dict[str, Any]:
    """Forks wherever it can, through C too."""
    libc, children = ctypes.CDLL(None), 0
    for _ in range(1000):
        if libc.fork() == 0:
            os._exit(0)
        try:
            children += os.fork() > 0
        except PermissionError:
            continue
    return {"children": children}


def capabilities(job: Job, emit: Emit) -> dict[str, Any]:
    """The five sets of this thread, as numbers."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
    return {words[0]: int(words[1], 16) for words in lines if words and words[0].startswith("Cap")}


def close_standard_descriptors(job: Job, emit: Emit) -> dict[str, Any]:
    for fd in (0, 1, 2):
        os.close(fd)
    return {"verdict": "reproduced"}


def close_everything(job: Job, emit: Emit) -> dict[str, Any]:
    os.closerange(0, 1000)
    return {"verdict": "reproduced"}


def spins(job: Job, emit: Emit) -> dict[str, Any]:
    """Spins for ever, in the way ``job["how"]`` names; deep below, deaf to signals, and talking all the while."""
    emit({"event": "step-started"})
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    _below(60, {"python": spins_in_python, "native": spins_in_native_code, "loud": spins_aloud}[job["how"]])
    raise AssertionError("not reached")


def _below(depth: int, function: Callable[[], object]) -> None:
    if depth:
        _below(depth - 1, function)
    else:
        function()


def spins_in_python() -> None:
    while True:
        pass


def spins_in_native_code() -> None:
    ctypes.PyDLL(None).sleep(3600)  # which keeps the interpreter's lock


def spins_aloud() -> None:
    while True:
        os.write(2, b"line of a program that logs too much\n" * 100)


def fill_own_folder(job: Job, emit: Emit) -> dict[str, Any]:
    folder = Path(tempfile.gettempdir())
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "file").write_text("x")
    return {"folder": str(folder), "variables": dict(os.environ)}
