"""Records a program around a model: what it asked the world for and what came back, until it fails.

    from dumps.record.program import recording

    with recording("dumps/", level="full") as rec:
        rec.call(main, question="...")      # or any code at all

An exception that leaves the block, Ctrl-C, a deadline (``timeout=``) or SIGUSR2 writes a dump and the active context
stack, ``context-snapshot-YYYYMMDD-HHMMSS.json``, into the folder; so does an exception that ends a thread or a task
that nobody awaits. Exceptions go on as they were. A block that is left by `sys.exit` has failed where its status is
not 0: whoever runs the program sees that it did.

The recording lives in the memory of its process. Where that is killed (SIGKILL, out of memory) nothing of it is left,
and the folder is as it was. What must survive that needs the flight recorder, `dumps.record.recorder`.

In a replay the same code runs again; there a recording is nothing at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import inspect
import logging
import os
import shlex
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict

from dumps.record import triggers
from dumps.record.message_text import module_name
from dumps.record.program_state import Moment, ProgramFacts, Trouble, state_of, threads_now
from dumps.record.recorder import RecordLevel
from dumps.record.seams import (
    aiohttp_client,
    clock,
    context,
    current,
    entropy,
    files,
    http_client_socket,
    httpcore_backend,
    tools,
    unplayable,
)
from dumps.record.seams.json_text import to_json
from dumps.record.seams.log import LogLimits, WorldLog
from dumps.record.seams.real_time import monotonic_ns
from dumps.record.seams.rebind import StandIn
from dumps.record.snapshot import write_snapshot
from dumps.record.watchdog import Watchdog
from dumps.schema import state_pb2 as pb
from dumps.schema.writer import write_dump

log = logging.getLogger("pplx.record")

MAX_DUMPS = 10
"""Of one recording, and as many again on demand."""

MAX_ALIKE = 3
"""Of failures with one type and frame: the last of MAX_DUMPS is not for the tenth client that hung up."""

ALIKE_S = 60.0
"""Seconds from one of them to the next."""

MAX_WAIT_S = 10.0
"""Seconds that a dump waits for one that another thread is making."""

_urandom = StandIn(os.urandom, os.urandom)  # not the program's: what it draws is noted

_lock = threading.Lock()
_recording: Recording | None = None


class RecordingOptions(TypedDict, total=False):
    """What every recording can be told. Meanings and defaults as in `recording`."""

    level: str
    limits: LogLimits | None
    include_files: Sequence[str]
    exclude_files: Sequence[str]


def recording(
    folder: str | os.PathLike[str],
    *,
    level: str = "shape",
    timeout: float | None = None,
    limits: LogLimits | None = None,
    include_files: Sequence[str] = (),
    exclude_files: Sequence[str] = (),
) -> Recording:
    """A context manager (plain and async) that records the block.

    ``level`` is "shape" (or "tokens", which is the same here), which keeps sizes and times and no text, or "full",
    without which a program cannot be replayed; secrets are removed in either. ``timeout`` (seconds) writes a dump when
    the block takes longer, once, and lets it go on. ``include_files`` and ``exclude_files`` are patterns as in
    `dumps.record.seams.data_files`.

    Ctrl-C (SIGINT) ends the block with a dump; SIGTERM ends the process without one, unless the program turns it into
    an exception.

    Raises ValueError for another level, and for a timeout that is not positive.
    """
    levels = [one.value for one in RecordLevel]
    if level not in levels:
        near = difflib.get_close_matches(str(level), levels, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"level={level!r}: one of {', '.join(map(repr, levels))}{hint}")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout={timeout!r}: seconds, more than 0")
    return Recording(
        Path(folder),
        level=RecordLevel.FULL if RecordLevel(level) is RecordLevel.FULL else RecordLevel.SHAPE,
        timeout=timeout,
        limits=limits or LogLimits(),
        include_files=include_files,
        exclude_files=exclude_files,
    )


class Recording:
    """One recording. ``dumps`` are the files it has written, oldest first. See `recording`."""

    def __init__(
        self,
        folder: Path,
        *,
        level: RecordLevel,
        timeout: float | None,
        limits: LogLimits,
        include_files: Sequence[str],
        exclude_files: Sequence[str],
    ) -> None:
        self.folder = folder
        self.level = level
        self.timeout = timeout
        self.dumps: list[Path] = []
        self.snapshots: list[Path] = []
        self.facts = ProgramFacts()
        self.log = WorldLog(level=level, limits=limits)
        self.watchdog = Watchdog()
        self._include, self._exclude = include_files, exclude_files
        self._undo: list[Callable[[], None]] = []
        self._pid = 0  # of the process that is recorded, while it is
        self._begun = False
        self._writing = threading.Lock()
        self._alike: dict[tuple[str, str, str], tuple[int, float]] = {}  # how many dumps of one failure, the last when
        self._made: Counter[bool] = Counter()  # dumps by whether they were demanded
        self._interrupted: Moment | None = None  # the last SIGINT

    def call(self, function: Callable[..., Any], /, *positional: Any, **arguments: Any) -> Any:
        """Call ``function``, and run it to its end where it is a coroutine function; note it as the program's entry.

        A replay calls what its user names with the arguments that were noted here, by name, so they must be JSON.
        Raises TypeError for one that has no name, or that ``function`` does not take.
        """
        if positional:
            arguments = _named(function, positional, arguments)
        self.note_entry(function, arguments)
        result = function(**arguments)
        return asyncio.run(result) if inspect.iscoroutine(result) else result

    def note_entry(self, function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        """Say how the program was entered, for code that calls it itself."""
        with contextlib.suppress(Exception):  # a callable object has no name of its own
            self.facts.entry = f"{module_name(function.__module__)}:{function.__qualname__}"
        if self.level is RecordLevel.FULL:
            self.facts.arguments_json = to_json(dict(arguments))

    def __enter__(self) -> Recording:
        if not current.replaying():
            self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.active:
            return
        try:
            ended = _ends(error)
            self.facts.finished, self.facts.ended_ns = not ended, monotonic_ns()
            if error is not None and not _ends_well(error):
                self.report(Trouble(reason="signal" if ended else "exception", error=error, ended=ended))
        finally:
            self.end()

    async def __aenter__(self) -> Recording:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    @property
    def active(self) -> bool:
        """Whether this process is recorded right now, not replayed, and no fork of the one that was."""
        return self._pid == os.getpid()

    def begin(self) -> None:
        """What entering the block does. Raises RuntimeError where the process is recorded already."""
        global _recording
        with _lock:
            if self._begun:
                raise RuntimeError("this recording was used before; make a new one with recording(...)")
            if _recording is not None and _recording.active:
                raise RuntimeError(f"this process is being recorded into {_recording.folder}; end that recording first")
            _recording = self
            self._begun, self._pid = True, os.getpid()
        try:
            self._install()
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """What leaving the block does, whatever happened in it: the process is as it was."""
        global _recording
        self.watchdog.stop()
        # A dump that another thread makes right now is finished first: beside a busy program that takes a while.
        if self._writing.acquire(timeout=MAX_WAIT_S):
            self._writing.release()
        while self._undo:
            try:
                self._undo.pop()()
            except Exception:  # the program goes on, with one seam too many
                log.exception("a part of the recording could not be taken out")
        self._pid = 0
        with _lock:
            if _recording is self:
                _recording = None

    def dump(self) -> Path | None:
        """Write what was recorded so far, and the context stack, because somebody wants to see it.

        May be called from any thread. Returns the file, None where none was written: nothing is raised, what goes wrong
        is logged.
        """
        return self.report(Trouble(reason="demand"))

    def failed(self, error: BaseException) -> Path | None:
        """As `dump`, of an exception, for code that catches it."""
        return self.report(Trouble(reason="exception", error=error))

    def report(self, trouble: Trouble, *, wait_s: float = MAX_WAIT_S) -> Path | None:
        """As `dump`, because of ``trouble``. ``wait_s`` is how long to wait for a dump that another thread makes."""
        if not self.active:
            return None
        if not self._writing.acquire(timeout=wait_s):
            log.warning("no dump was written: one is being made right now, reason: %s", trouble.reason)
            return None
        try:
            failure = trouble.failure()
            return self._write(trouble, failure) if self._is_wanted(trouble, failure) else None
        except Exception as problem:  # a full disk, a folder that is gone, our own bug
            log.error("no dump was written: %s: %s, reason: %s", type(problem).__name__, problem, trouble.reason)
            log.debug("no dump was written", exc_info=problem)
            return None
        finally:
            self._writing.release()

    def _is_wanted(self, trouble: Trouble, failure: pb.Failure | None) -> bool:
        """Whether this one says anything new."""
        demanded = trouble.reason == "demand"
        if self._made[demanded] >= MAX_DUMPS:
            log.warning("no dump was written: there are %d of this recording, reason: %s", MAX_DUMPS, trouble.reason)
            return False
        if failure is not None:
            identity = (failure.exception_type, failure.invariant, failure.frame)
            count, last = self._alike.get(identity, (0, 0.0))
            now = monotonic_ns() / 1e9
            if count and (count >= MAX_ALIKE or now - last < ALIKE_S):
                what = failure.exception_type or failure.invariant
                log.warning("no dump was written: there is one of this failure, %s in %s", what, failure.frame)
                return False
            self._alike[identity] = (count + 1, now)
        self._made[demanded] += 1
        return True

    def _write(self, trouble: Trouble, failure: pb.Failure | None) -> Path:
        self.log.happened()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        stack, error = context.stack(), trouble.error
        frames: Sequence[pb.ContextFrame] = []
        if stack is not None:
            frames = stack.at(error) if error is not None else stack.frames(within=trouble.exchange)
        moment = self._interrupted if trouble.ended else None
        threads = None
        if moment is not None:
            threads, frames = moment.threads, moment.frames or frames
        state = state_of(self.log, self.facts, trouble, failure, frames=frames, threads=threads)
        state.manifest.id = _urandom(8).hex()
        path = self.folder / f"{state.manifest.id}.pplx"
        write_dump(path, state)
        self.dumps.append(path)
        try:
            self.snapshots.append(write_snapshot(self.folder, state))
        except OSError as problem:
            log.error("the context snapshot of %s was not written: %s", path, problem)
        log.warning("dump written: %s, reason: %s", path, trouble.reason)
        if command := _replay_command(path, state):
            log.warning("replay it: %s", command)
        return path

    def _note_interrupt(self) -> None:
        """Where everything stands at Ctrl-C: by the time it leaves the block, `asyncio.run` has cancelled the tasks."""
        if not self.active:
            return
        try:
            stack = context.stack()
            self._interrupted = Moment(threads=threads_now(), frames=stack.frames() if stack is not None else [])
        except Exception as problem:  # the interrupt itself goes on
            log.debug("where the program stood at Ctrl-C is not known", exc_info=problem)

    def _install(self) -> None:
        self.facts.begin()
        self.log.owner = threading.get_ident()
        self.folder = self.folder.absolute()  # the program may change its working folder
        install = self._undo.append
        install(clock.install(self.log))
        install(entropy.install(self.log))
        install(tools.install(self.log))
        install(context.install(self.log))
        install(unplayable.install(self.log))
        # What it writes there itself, and nothing else: the folder may be the program's own.
        exclude = (*self._exclude, f"{self.folder}/*.pplx", f"{self.folder}/context-snapshot-*.json")
        install(files.install(self.log, include=self._include, exclude=exclude))
        for seam in (aiohttp_client, httpcore_backend, http_client_socket):
            install(seam.install(self.log))
        # A signal or the collection of a lost task may come while this thread holds the log, which the dump that
        # another thread is making may wait for: these two do not wait for that dump.
        install(triggers.on_signal(lambda: self.report(Trouble(reason="demand"), wait_s=0)))
        install(triggers.on_interrupt(self._note_interrupt))
        install(triggers.on_thread_exception(self.failed))
        install(triggers.on_lost_task(lambda error: self.report(Trouble(reason="exception", error=error), wait_s=0)))
        if self.timeout is not None:
            trouble = Trouble(
                reason="timeout",
                invariant="program",
                message=f"the program took longer than {self.timeout:g} s",
                elsewhere=True,
            )
            install(self.watchdog.watch(self.timeout, lambda: self.report(trouble)))


def active() -> Recording | None:
    """The recording of this process."""
    return _recording if _recording is not None and _recording.active else None


def _replay_command(path: Path, state: pb.RuntimeState) -> str:
    """Empty where the entry is not known, or cannot be imported, and below the level that a replay needs."""
    entry = state.program.entry
    if not entry or "<" in entry or state.manifest.record_level != RecordLevel.FULL:
        return ""
    return f"pplx-replay run {shlex.quote(str(path))} --target {shlex.quote(f'app={entry}')}"


def _named(function: Callable[..., Any], positional: Sequence[Any], by_name: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name: ``positional`` under the names of their parameters, then ``by_name``."""
    signature = inspect.signature(function)
    bound = signature.bind_partial(*positional).arguments
    for name in bound:
        if signature.parameters[name].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise TypeError(f"rec.call: {name!r} cannot be given by name, and a replay names every argument")
    signature.bind(*positional, **by_name)  # one that is given twice, or is missing
    return bound | by_name


def _ends_well(error: BaseException) -> bool:
    """Whether the program left by itself, and told whoever runs it that nothing failed."""
    return isinstance(error, GeneratorExit) or (isinstance(error, SystemExit) and error.code in (None, 0))


def _ends(error: BaseException | None) -> bool:
    """Whether somebody ended the program: Ctrl-C, a task that was cancelled."""
    return isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
