"""One life of the engine: a scheduler, an engine and a ring that begin together and end together."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dumps.record.recorder import FlightRecorder
from dumps.schema import state_pb2 as pb
from replay.engine.block_checks import BlockChecks
from replay.engine.engine import Engine, EngineHooks
from replay.engine.failure import Failure
from replay.engine.kv_store import KVStore
from replay.engine.live import LiveScheduler
from replay.engine.quirks import Quirk, code_hooks, defects_of
from replay.engine.request import FinishCause, Request
from replay.engine.schedule import EngineConfig, Executor
from replay.engine.stop_strings import StopStrings
from replay.serving.block_history import put_history
from replay.serving.contents import KvWatch, RecordKv
from replay.serving.dumping import Dumper, PastFailure
from replay.serving.hooks import RecorderHook
from replay.serving.jobs import Job

log = logging.getLogger("pplx.server")

OpenRecorder = Callable[[Path], FlightRecorder]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What outlives a session: the model with its cache, and how sessions are set up.

    ``damage`` are hooks that spoil the cache once; ``quirks`` those that are in force, of which a session takes what
    acts on its scheduler.
    """

    config: EngineConfig
    executor: Executor
    kv: KVStore
    eos_token_ids: tuple[int, ...]
    stop_strings: StopStrings
    open_recorder: OpenRecorder
    dumper: Dumper
    record_kv: RecordKv
    keep_text: bool
    damage: tuple[EngineHooks, ...] = ()
    quirks: tuple[Quirk, ...] = ()
    checks: bool = False


@dataclass(slots=True, kw_only=True)
class Session:
    """Owned by the engine's thread. ``ring`` stays a readable file until `close`."""

    engine: Engine
    scheduler: LiveScheduler
    ring: Path
    bytes_per_block: int
    _stop_strings: StopStrings
    _dumper: Dumper
    _watch: KvWatch
    _hook: RecorderHook | None = field(default=None)
    _checks: BlockChecks | None = field(default=None)

    def add(self, job: Job) -> None:
        if self._hook is not None:
            self._hook.arrived(job)
        self.engine.add(job.request)

    def abort_again(self, request: Request, cause: FinishCause) -> bool:
        """Pass on an abort of a request that has ended, where the quirk for that is in force. Returns whether."""
        if not self.scheduler.defects.abort_twice or self._hook is None or not self._hook.knows(request):
            return False
        self.engine.abort(request, cause)
        return True

    def forget(self, request: Request) -> None:
        """Drop what is kept for a request that has ended."""
        self._stop_strings.forget(request)

    def failed(self, failure: Failure) -> None:
        """Record a failure that no step's outcome holds."""
        if self._hook is not None:
            self._hook.failed(failure)

    def untold(self) -> Sequence[Failure]:
        """Failed checks of a step that raised, which no outcome holds either."""
        return () if self._checks is None else self._checks.untold

    def behind(self, error: Exception) -> Failure | None:
        """The failed check that an exception of a step follows from, if checks are on and know one."""
        return None if self._checks is None else self._checks.behind(error)

    def dump(
        self, reason: str, *, exception: BaseException | None = None, past: PastFailure | None = None
    ) -> str | None:
        """Write a dump of this moment, which may come after a ``past`` failure. Returns its id."""
        if self._hook is None or self._hook.broken:
            log.error("no dump: the flight recorder is off, reason: %s", reason)
            return None

        def describe(state: pb.RuntimeState) -> None:
            if self._checks is not None:
                put_history(self._checks.history, state)
            if past is not None:
                past.put(state)

        return self._dumper.write(
            self.ring, reason, contents=self._watch.collect, exception=exception, describe=describe
        )

    def dump_from_outside(self, reason: str) -> str | None:
        """As `dump`, for another thread while the engine's hangs in a step. Holds no KV contents."""
        failure = pb.Failure(kind="timeout", invariant="engine-step", message="the engine did not answer")
        return self._dumper.write(self.ring, reason, failure=failure)

    def close(self, *, keep_ring: bool = False) -> None:
        """End on purpose. The ring goes: what is worth keeping of it is in dumps, and it may hold people's text.

        With ``keep_ring`` it stays, for the next start to recover: the last resort where no dump could be written.
        """
        if self._hook is None:
            return
        self._hook.close(clean=not keep_ring)
        if not keep_ring:
            self.ring.unlink(missing_ok=True)


class Sessions:
    """Opens one session after another on the same model, each with a ring of its own."""

    def __init__(self, parts: Parts, folder: Path) -> None:
        self._parts = parts
        self._folder = folder
        self._count = 0

    def open(self) -> Session:
        """A fresh session.

        Raises:
            OSError: no ring could be created for the first session. Later ones do without: serving goes on.
        """
        parts = self._parts
        self._count += 1
        ring = self._folder / f"flight-{os.getpid()}-{self._count}.ring"
        scheduler = LiveScheduler(
            parts.config,
            eos_token_ids=parts.eos_token_ids,
            stop_check=parts.stop_strings,
            defects=defects_of(parts.quirks),
        )
        hook: RecorderHook | None = None
        try:
            hook = RecorderHook(parts.open_recorder(ring), scheduler, keep_text=parts.keep_text)
        except OSError:
            if self._count == 1:
                raise
            log.exception("no flight recorder: %s cannot be created", ring)
        watch = KvWatch(parts.kv, scheduler.running, parts.record_kv)
        checks = BlockChecks(scheduler, parts.kv) if parts.checks else None
        engine = Engine(
            scheduler=scheduler,
            executor=parts.executor,
            bytes_per_block=parts.kv.bytes_per_block,
            hooks=(
                watch,
                *code_hooks(parts.quirks, scheduler),
                *(() if checks is None else (checks,)),
                *(() if hook is None else (hook,)),
                *parts.damage,
            ),
            watch=watch,
        )
        return Session(
            engine=engine,
            scheduler=scheduler,
            ring=ring,
            bytes_per_block=parts.kv.bytes_per_block,
            _stop_strings=parts.stop_strings,
            _dumper=parts.dumper,
            _watch=watch,
            _hook=hook,
            _checks=checks,
        )
