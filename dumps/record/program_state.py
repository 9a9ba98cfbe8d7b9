"""A dump of a recorded program, from its log and the facts about it."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import platform
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dumps.ledger import record
from dumps.record import standard_input
from dumps.record.command_line import MAX_BYTES, without_secrets
from dumps.record.loops import loop_left_by, running_loop
from dumps.record.message_text import utf8
from dumps.record.recorder import RecordLevel
from dumps.record.seams.log import WorldLog
from dumps.record.seams.real_time import monotonic_ns
from dumps.record.secrets import is_secret_name, scrub_text
from dumps.record.stacks import capture_exception, capture_threads, first_in_app, task_frames
from dumps.schema import state_pb2 as pb
from dumps.validate.program import calls_begun

_PACKAGES = ("aiohttp", "httpx", "httpcore", "httpx2", "httpcore2", "openai", "urllib3", "requests", "anyio", "numpy")
_NOT_THE_PROGRAMS = ("PYTHON", "XDG_", "SSH_", "LC_", "VIRTUAL_ENV", "PPLX_")
_SHELLS = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "TERM", "LANG", "HOSTNAME", "SHLVL", "_"}
)
_MAKERS = tuple(f"dumps.record.{name}" for name in ("program", "triggers", "served", "asgi", "aiohttp_app"))
_LOOP = frozenset({"asyncio.events", "asyncio.base_events", "asyncio.runners"})
_FIELDS = {
    "tool_call_bytes": "tool_calls",
    "clock looks": "clock_changes",
    "clock changes": "clock_changes",
    "numpy.random.state": "entropy",
    "recorder_errors": "syscalls",
}
"""Where what a seam counts as lost is missing; it is exchanges where nothing else is said."""
REPLACED = "<removed>"
LET_GO = "of requests that had ended were let go to make room"
"""In a ledger note: of a server's record, what came before is missing."""
MAX_VARIABLES = 200
MAX_VARIABLE = 1024


@dataclass(slots=True)
class ProgramFacts:
    """What is known of the program itself. Times are monotonic ns; ``argv`` and ``temporary_folder`` are as it found
    them when it was begun."""

    entry: str = ""
    kind: str = "block"
    arguments_json: str = ""
    started_ns: int = 0
    wall_minus_monotonic_ns: int = 0
    finished: bool = False
    ended_ns: int | None = None
    argv: Sequence[str] = ()
    temporary_folder: str = ""
    standard_input: str = ""

    def begin(self) -> None:
        self.started_ns = monotonic_ns()
        self.wall_minus_monotonic_ns = time.time_ns() - self.started_ns
        self.argv = without_secrets(getattr(sys, "argv", ()))
        self.temporary_folder = _temporary_folder()
        self.standard_input = standard_input.kind()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why a dump is made.

    ``reason`` is the manifest's. It is a failure of the program where ``invariant`` names what was violated, or where
    ``error`` is one and not ``ended``: somebody ended the program. ``task`` is the one in which it showed, ``exchange``
    the id of the inbound exchange, where they are known. ``elsewhere`` says that the calling thread only watches.
    """

    reason: str
    error: BaseException | None = None
    ended: bool = False
    invariant: str = ""
    message: str = ""
    task: asyncio.Task[Any] | None = None
    exchange: str = ""
    elsewhere: bool = False

    def failure(self) -> pb.Failure | None:
        """Its identity: what failed and in which frame, without the step. None where it is no failure."""
        if self.error is not None:
            if self.ended:
                return None
            raised = capture_exception(self.error)[-1]
            failure = pb.Failure(
                kind="exception",
                exception_type=raised.type,
                message=scrub_text(raised.message),
                frame=first_in_app(raised.frames),
            )
        elif self.invariant:
            kind = "timeout" if self.reason == "timeout" else "exception"
            failure = pb.Failure(kind=kind, invariant=self.invariant, message=self.message, frame=self._where())
        else:
            return None
        failure.exchange = self.exchange
        return failure

    def _where(self) -> str:
        """The in-app frame that the program is in: that of the task, else of the main task, else of its thread. What
        runs the thread's loop is none: it stands there whatever the tasks do."""
        frames = next(iter(_threads(None, elsewhere=self.elsewhere)), pb.Thread()).frames
        thread = first_in_app(itertools.takewhile(lambda frame: frame.module not in _LOOP, frames))
        loop = running_loop()
        tasks = [self.task] if self.task is not None else _tasks(loop) if loop is not None else []
        for task in tasks:
            # The stack of a task that runs right now is that of its thread.
            if not getattr(task.get_coro(), "cr_running", False) and (frame := first_in_app(task_frames(task))):
                return frame
        return thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where the program stood before the dump is made: its threads and tasks, and the context stack, outermost
    first."""

    threads: Sequence[pb.Thread]
    frames: Sequence[pb.ContextFrame]


def threads_now() -> list[pb.Thread]:
    """The threads and tasks of a `Moment`, for the thread that it is in."""
    return _threads(running_loop(), elsewhere=False)


def state_of(
    log: WorldLog,
    facts: ProgramFacts,
    trouble: Trouble,
    failure: pb.Failure | None,
    *,
    frames: Sequence[pb.ContextFrame],
    threads: Sequence[pb.Thread] | None = None,
) -> pb.RuntimeState:
    """Everything a dump of this moment holds but its id. ``frames`` is the context stack, outermost first; ``failure``
    is that of ``trouble``, and gets its time and step. ``threads`` are those of an earlier moment, if not of now."""
    now, monotonic = time.time_ns(), monotonic_ns()
    state = pb.RuntimeState()
    _fill_manifest(state.manifest, log, trouble.reason, now, monotonic)
    _fill_program(state.program, facts, log.level)
    if facts.standard_input:
        state.descriptors.add(fd=0, kind=facts.standard_input, target="stdin")
    with log.lock:
        state.exchanges.extend(log.exchanges)
        state.tool_calls.extend(log.tool_calls)
        state.syscalls.extend(log.syscalls)
        state.entropy.extend(log.entropy)
        state.clock_changes.extend(log.clock_changes)
        lost, forgotten = dict(log.lost), dict(log.forgotten)
    state.context_stack.extend(frames)
    if threads is None:
        loop = running_loop() or (loop_left_by(trouble.error) if trouble.ended else None)
        threads = _threads(loop, elsewhere=trouble.elsewhere)
    state.threads.extend(threads)
    if trouble.error is not None:
        state.exceptions.extend(capture_exception(trouble.error))
        for exception in state.exceptions:
            exception.message = scrub_text(exception.message)
    if failure is not None:
        failure.time_ns, failure.step = monotonic, calls_begun(state, failure.exchange)
        state.failures.append(failure)
    _fill_ledger(state, log, lost, forgotten)
    return state


def _fill_manifest(manifest: pb.Manifest, log: WorldLog, reason: str, now: int, monotonic: int) -> None:
    manifest.reason = reason
    manifest.created_ns = now
    manifest.wall_minus_monotonic_ns = now - monotonic
    manifest.tool_version = _version("pplx-replay")
    manifest.record_level = log.level.value
    manifest.pid = os.getpid()
    manifest.hostname_hash = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:16]
    versions = {"python": platform.python_version()}
    versions |= {name: found for name in _PACKAGES if (found := _version(name)) != "unknown"}
    for name in sorted(versions):
        manifest.versions.add(key=name, value=versions[name])


def _fill_program(program: pb.Program, facts: ProgramFacts, level: RecordLevel) -> None:
    program.entry, program.kind, program.arguments_json = utf8(facts.entry), facts.kind, facts.arguments_json
    program.started_ns, program.wall_minus_monotonic_ns = facts.started_ns, facts.wall_minus_monotonic_ns
    program.hash_seed = os.environ.get("PYTHONHASHSEED", "random") if sys.flags.hash_randomization else "0"
    program.python_version = platform.python_version()
    program.finished = facts.finished
    program.parent_pid = os.getppid()
    if facts.ended_ns is not None:
        program.ended_ns = facts.ended_ns
    if level is RecordLevel.FULL:
        program.argv.extend(facts.argv)
        program.temporary_folder = facts.temporary_folder or _temporary_folder()
    for name, value in sorted(_variables().items())[:MAX_VARIABLES]:
        program.environment.add(key=name, value=value if level is RecordLevel.FULL else "")


def _temporary_folder() -> str:
    """What the program's tempfile has found. To ask for it here would settle it before the program may have set it."""
    folder = tempfile.tempdir
    if folder is None:
        return ""
    found = os.fsdecode(folder)
    return utf8(found) if os.path.isabs(found) else ""


def _variables() -> dict[str, str]:
    """The environment that is the program's own affair, without secrets: their names stay, so that it finds them."""
    kept = {}
    for name, value in os.environ.items():
        if name in _SHELLS or name.startswith(_NOT_THE_PROGRAMS) or not name.isprintable():
            continue
        kept[utf8(name)] = REPLACED if is_secret_name(name) else utf8(scrub_text(value[:MAX_VARIABLE]))
    return kept


def _threads(loop: asyncio.AbstractEventLoop | None, *, elsewhere: bool) -> list[pb.Thread]:
    """The program's threads, then the tasks of ``loop``. The recording's own are left out: they begin in its code.

    The first thread is the one in which the failure showed: the calling one, or the main one for a calling thread that
    only watches.
    """
    threads = capture_threads(loop=loop, without=(__name__, *_MAKERS))
    if elsewhere:
        del threads[0]
    threads = [one for one in threads if one.kind != "thread" or not _is_ours(one.frames)]
    if elsewhere:
        main = threading.main_thread().ident
        threads.sort(key=lambda one: (one.kind != "thread", one.thread_id != main))
        for one in threads[:1]:
            one.current = one.kind == "thread"
    return threads


def _is_ours(frames: Sequence[pb.Frame]) -> bool:
    return bool(frames) and frames[-1].module.startswith("dumps.record.")


def _tasks(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    """The tasks of a loop, the program's main one first: it is the first that was made, and numbered so."""

    def order(task: asyncio.Task[Any]) -> tuple[int, str]:
        number = task.get_name().removeprefix("Task-")
        return (int(number) if number.isdigit() else sys.maxsize, task.get_name())

    return sorted(asyncio.all_tasks(loop), key=order)


def _fill_ledger(state: pb.RuntimeState, log: WorldLog, lost: dict[str, int], forgotten: dict[str, int]) -> None:
    if log.level is not RecordLevel.FULL:
        note = 'recorded without text; recording(..., level="full") keeps what a replay of the program needs'
        for path in ("exchanges[].chunks[].data", "exchanges[].request_body", "syscalls[].data", "entropy[].data"):
            record(state, path, pb.ABSENT, note)
        record(state, "program.arguments_json", pb.ABSENT, note)
    elif not state.program.argv:
        record(state, "program.argv", pb.ABSENT, f"the command line is empty, or longer than {MAX_BYTES} bytes")
    if log.unplayable:
        record(state, "program", pb.OBSERVED, f"no replay follows it: {'; '.join(log.unplayable.values())}")
    notes: dict[str, list[str]] = {}
    for kind, count in sorted(lost.items()):
        path = kind if kind in state.DESCRIPTOR.fields_by_name else _FIELDS.get(kind, "exchanges")
        notes.setdefault(path, []).append(f"{count} {kind.replace('_', ' ')} did not fit or could not be read")
    for kind, count in sorted(forgotten.items()):
        notes.setdefault(kind, []).append(f"{count} {LET_GO}")
    for path in sorted(notes):
        record(state, path, pb.ABSENT, "; ".join(notes[path]))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
