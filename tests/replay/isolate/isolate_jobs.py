"""Job functions for the worker: each does one thing that a replay of a hostile or unlucky dump may do."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from dumps.errors import CorruptDump
from replay.errors import UsageError
from replay.isolate.worker import Channel

Job = dict[str, Any]
Emit = Callable[[dict[str, Any]], None]


def echo(job: Job, emit: Emit) -> dict[str, Any]:
    emit({"event": "progress", "stage": "load", "done": 1, "total": 2})
    emit({"event": "step-started"})
    return {"verdict": "reproduced", "job": job}


def noisy(job: Job, emit: Emit) -> dict[str, Any]:
    """Prints on every way to stdout, and reads stdin, as libraries do."""
    sys.stdout.write("print to stdout\n")
    sys.stdout.flush()
    os.write(1, b"\x00\x00\x00\x05junk!")
    ctypes.CDLL(None).puts(b"from C")
    ctypes.CDLL(None).fflush(None)
    return {"stdin": sys.stdin.read()}


def corrupt(job: Job, emit: Emit) -> dict[str, Any]:
    raise CorruptDump("seal 3 does not match \x1b[31m", offset=4711)


def usage(job: Job, emit: Emit) -> dict[str, Any]:
    raise UsageError("no setting kv.num_block", remedy="did you mean kv.num_blocks?")


def bug(job: Job, emit: Emit) -> dict[str, Any]:
    raise ValueError("a case nobody thought of")


def leave(job: Job, emit: Emit) -> dict[str, Any]:
    raise SystemExit(3)


def not_finite(job: Job, emit: Emit) -> dict[str, Any]:
    return {"perplexity": float("nan")}


def hang_in_load(job: Job, emit: Emit) -> dict[str, Any]:
    emit({"event": "progress", "stage": "load", "done": 3, "total": 10})
    while True:
        pass


def hang_in_step(job: Job, emit: Emit) -> dict[str, Any]:
    emit({"event": "step-started"})
    emit({"event": "progress", "stage": "step", "done": 12, "total": 64})
    while True:
        pass


def hang_deaf(job: Job, emit: Emit) -> dict[str, Any]:
    """Hangs and ignores every signal that can be ignored."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    emit({"event": "step-started"})
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    threading.Event().wait()
    raise AssertionError("not reached")


def report_pid_and_hang(job: Job, emit: Emit) -> dict[str, Any]:
    emit({"event": "progress", "stage": "pid", "done": os.getpid(), "total": None})
    emit({"event": "step-started"})
    threading.Event().wait()
    raise AssertionError("not reached")


def start_again_and_again(job: Job, emit: Emit) -> dict[str, Any]:
    """Says for many seconds that the first step starts, so that its clock would not run out."""
    for _ in range(1_000_000):
        emit({"event": "step-started"})
    return {"verdict": "reproduced"}


def hold_the_interpreter(job: Job, emit: Emit) -> dict[str, Any]:
    """Hangs in native code that keeps the interpreter's lock: no other thread of the worker runs."""
    emit({"event": "progress", "stage": "pid", "done": os.getpid(), "total": None})
    ctypes.PyDLL(None).sleep(3600)
    raise AssertionError("not reached")


def segfault(job: Job, emit: Emit) -> dict[str, Any]:
    emit({"event": "progress", "stage": "rebuild", "done": 7, "total": 9})
    faulthandler._sigsegv()  # type: ignore[attr-defined]
    raise AssertionError("not reached")


def abort(job: Job, emit: Emit) -> dict[str, Any]:
    os.write(2, b"terminate called after throwing an instance of 'c10::Error'\n")
    os.abort()


def quit_silently(job: Job, emit: Emit) -> dict[str, Any]:
    os._exit(9)


def allocate(job: Job, emit: Emit) -> dict[str, Any]:
    """Takes memory and touches it, without end."""
    held = []
    while True:
        held.append(b"x" * (8 << 20))


def garbage(job: Job, emit: Emit) -> dict[str, Any]:
    """Finds the protocol's descriptor and writes something else to it, as corrupted native code may."""
    for fd in range(3, 20):
        try:
            os.write(fd, b"\xff\xff\xff\xff")
        except OSError:
            continue
    threading.Event().wait()
    raise AssertionError("not reached")


def strange_event(job: Job, emit: Emit) -> dict[str, Any]:
    emit({"event": "open", "url": "https://example.com"})
    threading.Event().wait()
    raise AssertionError("not reached")


def chatty(job: Job, emit: Emit) -> dict[str, Any]:
    """More stderr than a pipe or the tail holds, and events from two threads at once."""

    def count(stage: str) -> None:
        for i in range(200):
            emit({"event": "progress", "stage": stage, "done": i, "total": 200})

    for i in range(20_000):
        os.write(2, b"line %d of a library that logs too much\n" % i)
    threads = [threading.Thread(target=count, args=(stage,)) for stage in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"verdict": "reproduced"}


def facts(job: Job, emit: Emit) -> dict[str, Any]:
    return {
        "environ": dict(os.environ),
        "argv": sys.argv,
        "path": sys.path,
        "cwd": os.getcwd(),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "torch": "torch" in sys.modules,
        "session": os.getsid(0) == os.getpid(),
        "hash": hash("a fixed string"),
    }


def attempts(job: Job, emit: Emit) -> dict[str, Any]:
    """Tries one after the other and tells the class of error of each; ``job["port"]`` is a listening port."""
    address = ("127.0.0.1", job["port"])
    tries: dict[str, Callable[[], object]] = {
        "connect": lambda: socket.create_connection(address),
        "resolve": lambda: socket.getaddrinfo("localhost", 80),
        "bind": lambda: socket.socket().bind(("127.0.0.1", 0)),
        "udp": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", address),
        "unix": lambda: socket.socket(socket.AF_UNIX).connect("/var/run/docker.sock"),
        "popen": lambda: subprocess.run(["true"], check=True),
        "system": lambda: os.system("true"),
        "fork": os.fork,
        "exec": lambda: os.execv("/bin/true", ["true"]),
        "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
        "database": lambda: sqlite3.Connection("state.db"),
        "database by URI": lambda: sqlite3.Connection("file:state.db?mode=ro", uri=True),
    }
    seen = {}
    for name, attempt in tries.items():
        try:
            attempt()
            seen[name] = "allowed"
        except Exception as error:
            seen[name] = type(error).__name__
    return {"seen": seen}


def native_attempts(job: Job, emit: Emit) -> dict[str, Any]:
    """The same from C, where no audit hook looks: errno of each call, 0 for allowed."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> int:
        ctypes.set_errno(0)
        return ctypes.get_errno() if getattr(libc, name)(*arguments) < 0 else 0

    port = job["port"]
    address = (2).to_bytes(2, "little") + port.to_bytes(2, "big") + bytes([127, 0, 0, 1]) + bytes(8)
    tcp = libc.socket(2, 1, 0)
    udp = libc.socket(2, 2, 0)
    seen = {
        "connect": call("connect", tcp, address, 16),
        "bind": call("bind", tcp, (2).to_bytes(2, "little") + bytes(14), 16),
        "sendto": call("sendto", udp, b"x", 1, 0, address, 16),
        "netlink": call("socket", 16, 3, 0),
        "packet": call("socket", 17, 3, 0),
        "execve": call("execve", b"/bin/true", None, None),
    }
    child = libc.fork()
    if child == 0:
        os._exit(0)
    seen["fork"] = ctypes.get_errno() if child < 0 else 0
    return {"seen": seen}


def allowed(job: Job, emit: Emit) -> dict[str, Any]:
    """What a replay needs and the guard must leave alone."""
    left, right = socket.socketpair()
    left.send(b"x")
    received = right.recv(1).decode()
    results: list[int] = []
    thread = threading.Thread(target=results.append, args=(1,))
    thread.start()
    thread.join()
    with open(job["dump"], "rb") as file:
        content = file.read().decode()
    for name in (":memory:", "", "file::memory:?cache=shared", "file:x?mode=memory"):
        sqlite3.Connection(name, uri=name.startswith("file:")).close()
    return {"socketpair": received, "thread": results, "file": content}


def driver_attempts(job: Job, emit: Emit) -> dict[str, Any]:
    """What CUDA's driver does when it starts, and what it must not get beside it: errno of each call, 0 for allowed."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> int:
        ctypes.set_errno(0)
        return ctypes.get_errno() if getattr(libc, name)(*arguments) < 0 else 0

    name = b"\0cuda-uvmfd-test-%d" % os.getpid()
    address = (1).to_bytes(2, "little") + name
    unix = libc.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK, 0)
    client = libc.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0)
    return {
        "driver": {
            "bind": call("bind", unix, address, len(address)),
            "listen": call("listen", unix, 16),
            "memfd": call("memfd_create", b"cuda", 0),
        },
        "other": {
            "accept": call("accept", unix, None, None),
            "connect": call("connect", client, address, len(address)),
            "internet": call("socket", socket.AF_INET, socket.SOCK_STREAM, 0),
            "internet 6": call("socket", socket.AF_INET6, socket.SOCK_STREAM, 0),
            "netlink": call("socket", 16, 3, 0),
            "execve": call("execve", b"/bin/true", None, None),
        },
    }


def asks(job: Job, channel: Channel) -> dict[str, Any]:
    """Asks as many questions as it is told to, with its steps begun."""
    channel({"event": "step-started"})
    return {"answers": [channel.ask({"number": number}) for number in range(job["questions"])]}
