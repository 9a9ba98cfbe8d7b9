"""The child process that opens and replays one untrusted dump: `python -m replay.isolate.worker`.

One job frame comes in on stdin, event frames go out on what was stdout. The job function is named by the supervisor on
the command line, never by the job. This module stays free of torch: a job imports what it needs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from dumps.errors import DumpError
from replay.errors import ReplayError
from replay.isolate import guard, limits, protocol

Emit = Callable[[dict[str, Any]], None]
JobFunction = Callable[[dict[str, Any], Emit], Mapping[str, Any]]

READ_BYTES = 1 << 16
EXIT_BAD_DUMP = 4


class EventWriter:
    """Writes event frames to a descriptor. Threads of a job may emit at the same time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def emit(self, event: Mapping[str, Any]) -> None:
        frame = memoryview(protocol.encode(event))
        with self._lock:
            while frame:
                frame = frame[os.write(self._fd, frame) :]


def take_descriptors() -> tuple[int, int]:
    """Move the protocol away from 0 and 1 and return (read, write).

    Libraries print, and some read stdin. After this, prints go to stderr and stdin is empty. The copies are not
    inherited by a process that a job might manage to start.
    """
    reads, writes = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return reads, writes


def read_job(fd: int) -> dict[str, Any]:
    """The first frame on ``fd``. Raises ProtocolError when the stream ends before it."""
    decoder = protocol.FrameDecoder()
    while data := os.read(fd, READ_BYTES):
        for message in decoder.feed(data):
            return message
    decoder.close()
    raise protocol.ProtocolError("the supervisor closed the stream before it sent a job")


def exit_when_closed(fd: int) -> None:
    """End this process when the supervisor's end of ``fd`` closes: its way of going that no signal tells us of."""

    def watch() -> None:
        while os.read(fd, READ_BYTES):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()


def error_event(error: BaseException) -> dict[str, Any]:
    """An error frame: the class that a client can act on, where a damaged dump is damaged, and the exit code."""
    event: dict[str, Any] = {
        "event": "error",
        "class": type(error).__name__,
        "message": str(error),
        "remedy": getattr(error, "remedy", ""),
        "exit_code": exit_code(error),
    }
    if isinstance(error, DumpError):
        event["offset"] = error.offset
    if not isinstance(error, DumpError | ReplayError):
        event["message"] = f"{type(error).__name__}: {error}"
        event["class"] = "InternalError"
        event["remedy"] = "report this with the evidence; the dump met a case that was not thought of"
        event["evidence"] = "".join(traceback.format_exception(error))[-8000:]
    return event


def exit_code(error: BaseException) -> int:
    if isinstance(error, DumpError):
        return EXIT_BAD_DUMP
    return error.exit_code if isinstance(error, ReplayError) else ReplayError.exit_code


def load_function(name: str) -> JobFunction:
    module, _, attribute = name.partition(":")
    function: JobFunction = getattr(importlib.import_module(module), attribute)
    return function


def with_guard(emit: Emit, guarded: guard.Guard) -> Emit:
    """Items of a job are reports of their own, so each says what was in force."""

    def add(event: dict[str, Any]) -> None:
        emit({**event, "guard": guarded.facts()} if event.get("event") == "item" else event)

    return add


def run(job_name: str, job: dict[str, Any], writer: EventWriter, guarded: guard.Guard) -> None:
    """Run the job and write its last frame: a report, or an error."""
    try:
        report = load_function(job_name)(job, with_guard(writer.emit, guarded))
        writer.emit({"event": "report", "report": dict(report), "guard": guarded.facts()})
    except BaseException as error:
        # SystemExit and KeyboardInterrupt too: whatever ends the job, the supervisor is told in one frame.
        traceback.print_exc()
        writer.emit({**error_event(error), "guard": guarded.facts()})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m replay.isolate.worker")
    parser.add_argument("--job", required=True, help="module:function that takes (job, emit) and returns a report")
    parser.add_argument("--parent", required=True, type=int, help="pid of the supervisor")
    parser.add_argument("--gpu", action="store_true", help="leave room for a GPU's driver in the system call filter")
    arguments = parser.parse_args()

    limits.die_with_parent(arguments.parent)
    limits.apply_limits()
    reads, writes = take_descriptors()
    guarded = guard.install(driver=arguments.gpu)
    job = read_job(reads)
    exit_when_closed(reads)
    run(arguments.job, job, EventWriter(writes), guarded)
    sys.stderr.flush()
    # Skip the interpreter's teardown: native libraries hang or crash in it, and the result is out already.
    os._exit(0)


if __name__ == "__main__":
    main()
