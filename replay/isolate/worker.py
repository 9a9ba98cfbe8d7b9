"""The child process that opens and replays one untrusted dump: `python -m replay.isolate.worker`.

One job frame comes in on stdin (or several, for a worker that is kept: `replay.isolate.warm`), event frames go out on
what was stdout. The job function is named by the supervisor on the command line, never by the job. This module stays
free of torch: a job imports what it needs.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from dumps.errors import DumpError
from replay.errors import ReplayError
from replay.isolate import access, guard, limits, protocol, stacks

Emit = Callable[[dict[str, Any]], None]
JobFunction = Callable[[dict[str, Any], "Channel"], Mapping[str, Any]]

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


class Channel:
    """What a job speaks to its supervisor through: called, it emits an event; `ask` also waits for an answer."""

    def __init__(self, emit: Emit, frames: queue.SimpleQueue[dict[str, Any]], guarded: guard.Guard) -> None:
        self._emit = emit
        self._frames = frames
        self._guarded = guarded
        self._one_at_a_time = threading.Lock()

    def __call__(self, event: dict[str, Any]) -> None:
        self._emit(event)

    def on_refusal(self, listener: Callable[[str], None]) -> None:
        """``listener`` hears of all that this process is refused from here on, until the job has ended."""
        self._guarded.listener = listener

    def end(self, report: Mapping[str, Any]) -> None:
        """Say how the job ended, from within it: right before its process is gone."""
        self._emit({"event": "report", "report": dict(report), "guard": self._guarded.facts()})

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The supervisor's answer to ``question``. Blocks; the budget of the job stands still meanwhile.

        Raises ProtocolError when what comes back is no answer.
        """
        with self._one_at_a_time:
            self._emit({"event": "ask", "question": dict(question)})
            answer = self._frames.get().get("answer")
        if not isinstance(answer, dict):
            raise protocol.ProtocolError("the supervisor sent something that is no answer")
        return answer


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


def read_job(fd: int, decoder: protocol.FrameDecoder) -> dict[str, Any]:
    """The first frame on ``fd``. Raises ProtocolError when the stream ends before it."""
    while data := os.read(fd, READ_BYTES):
        for message in decoder.feed(data):
            return message
    decoder.close()
    raise protocol.ProtocolError("the supervisor closed the stream before it sent a job")


def receive(fd: int, decoder: protocol.FrameDecoder) -> queue.SimpleQueue[dict[str, Any]]:
    """A queue of the frames that come after the job, filled by a thread.

    The thread ends this process when the supervisor's end of ``fd`` closes, its way of going that no signal tells of.
    """
    frames: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        while data := os.read(fd, READ_BYTES):
            for frame in decoder.feed(data):
                frames.put(frame)
        os._exit(1)

    threading.Thread(target=read, name="supervisor-watch", daemon=True).start()
    return frames


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
    if isinstance(evidence := getattr(error, "evidence", None), str):
        event["evidence"] = evidence  # the traceback of a user's own code
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


def run(
    function: str,
    job: dict[str, Any],
    writer: EventWriter,
    guarded: guard.Guard,
    frames: queue.SimpleQueue[dict[str, Any]],
) -> None:
    """Run the job and write its last frame: a report, or an error."""
    try:
        report = load_function(function)(job, Channel(with_guard(writer.emit, guarded), frames, guarded))
        writer.emit({"event": "report", "report": dict(report), "guard": guarded.facts()})
    except BaseException as error:
        # SystemExit and KeyboardInterrupt too: whatever ends the job, the supervisor is told in one frame.
        traceback.print_exc()
        writer.emit({**error_event(error), "guard": guarded.facts()})


def main() -> None:
    arguments = _arguments()
    limits.die_with_parent(arguments.parent)
    limits.apply_limits()
    reads, writes = take_descriptors()
    if arguments.stacks is not None:
        stacks.tell_on_signal(arguments.stacks)
    decoder = protocol.FrameDecoder()
    # Before the guard, which has to know what files the job names. It comes from the supervisor; the dump is not open.
    job = read_job(reads, decoder)
    allowed = access.access_of(job, folder=arguments.folder, driver=arguments.gpu, readable=arguments.readable)
    guarded = guard.install(driver=arguments.gpu, access=allowed)
    frames = receive(reads, decoder)
    writer = EventWriter(writes)
    run(arguments.job, job, writer, guarded, frames)
    for _ in range(arguments.jobs - 1):
        del job
        gc.collect()  # what the last job left would count against the memory of the next
        job = frames.get()
        guarded.forget()
        run(arguments.job, job, writer, guarded, frames)
    with contextlib.suppress(OSError, ValueError):  # closed by the job
        sys.stderr.flush()
    # Skip the interpreter's teardown: native libraries hang or crash in it, and the result is out already.
    os._exit(0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m replay.isolate.worker")
    parser.add_argument("--job", required=True, help="module:function that takes (job, emit) and returns a report")
    parser.add_argument("--parent", required=True, type=int, help="pid of the supervisor")
    parser.add_argument("--folder", help="folder for temporary files, the only one that can be written to")
    parser.add_argument("--stacks", type=int, help="descriptor that the stacks of all threads go to on a signal")
    parser.add_argument("--jobs", type=int, default=1, help="how many jobs to run, one after the other")
    parser.add_argument("--readable", action="append", default=[], help="folder that may be read; can be repeated")
    parser.add_argument("--gpu", action="store_true", help="leave room for a GPU's driver in the system call filter")
    return parser.parse_args()


if __name__ == "__main__":
    main()
