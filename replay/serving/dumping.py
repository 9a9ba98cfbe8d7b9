"""Writes a live server's dumps: its own ring read back, with stacks, exception and KV contents added.

Nothing here may end the server. A dump that cannot be written is logged and counted, and that is all.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dumps.ledger import record
from dumps.record.image import read_ring
from dumps.record.stacks import capture_exception, capture_threads
from dumps.record.state import state_from_ring
from dumps.schema import state_pb2 as pb
from dumps.schema.writer import SectionData, write_dump
from dumps.tensors import from_le32
from replay.serving.contents import KvContents, RecordKv
from replay.serving.metrics import Metrics

log = logging.getLogger("pplx.server")

WINDOW_S = 60.0
MOST_CHARACTERS = 300  # of an exception, in a note


@dataclass(frozen=True, slots=True)
class PastFailure:
    """What ended the life of the engine before this one. It stands in another ring than what came since."""

    words: str
    dump_id: str | None
    exceptions: tuple[pb.ExceptionInfo, ...]

    @classmethod
    def of(cls, error: Exception, dump_id: str | None) -> PastFailure:
        """``dump_id`` is of the dump that shows it; None where none could be written."""
        return cls(f"{type(error).__name__}: {error}"[:MOST_CHARACTERS], dump_id, tuple(capture_exception(error)))

    @property
    def note(self) -> str:
        where = f"is in dump {self.dump_id}" if self.dump_id else "is in no dump, as none could be written"
        return f"the engine failed ({self.words}) and began anew; that failure {where}, and here is what came since"

    def put(self, state: pb.RuntimeState) -> None:
        """Say in a dump without a failure of its own why it holds so little, and keep the exception's stack."""
        if not state.failures:
            record(state, "failures", pb.ABSENT, self.note)
            state.exceptions.extend(self.exceptions)
            record(state, "exceptions", pb.OBSERVED, "of the failure after which the engine began anew")


class Dumper:
    """Writes at most ``per_minute`` dumps in any 60 seconds, since a failure that repeats says nothing new."""

    def __init__(
        self,
        folder: Path,
        *,
        metrics: Metrics,
        per_minute: int = 10,
        text_of: Callable[[list[int]], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``text_of`` decodes the answers' token ids at record level full; without it dumps hold no text of answers."""
        self.folder = folder
        self._metrics = metrics
        self._per_minute = per_minute
        self._text_of = text_of
        self._clock = clock
        self._recent: deque[float] = deque()

    def write(
        self,
        ring: Path,
        reason: str,
        *,
        contents: Callable[[], KvContents] | None = None,
        exception: BaseException | None = None,
        failure: pb.Failure | None = None,
        describe: Callable[[pb.RuntimeState], None] | None = None,
    ) -> str | None:
        """Write a dump of what ``ring`` holds now. Returns its id, or None when there is none.

        ``contents`` is called only if the dump is going to be written. ``failure`` is one that is not in the ring, and
        ``describe`` adds what the ring does not hold.
        """
        if not self._allowed():
            log.warning("dump skipped: more than %d in a minute, reason: %s", self._per_minute, reason)
            self._metrics.add("pplx_dumps_dropped_total", why="rate-limit")
            return None
        started = time.perf_counter()
        try:
            dump_id, path = self._write(ring, reason, contents, exception, failure, describe)
        except Exception as error:  # a full disk, a folder that has gone, a ring that is damaged, our own bug
            log.error("dump not written: %s: %s, reason: %s", type(error).__name__, error, reason)
            log.debug("dump not written", exc_info=error)
            self._metrics.add("pplx_dumps_dropped_total", why="error")
            return None
        size, spent = path.stat().st_size, time.perf_counter() - started
        log.warning("dump written: %s (%d bytes, %.0f ms), reason: %s", path, size, spent * 1e3, reason)
        self._metrics.add("pplx_dumps_written_total", reason=reason)
        return dump_id

    def _write(
        self,
        ring: Path,
        reason: str,
        contents: Callable[[], KvContents] | None,
        exception: BaseException | None,
        failure: pb.Failure | None,
        describe: Callable[[pb.RuntimeState], None] | None,
    ) -> tuple[str, Path]:
        state = state_from_ring(read_ring(ring), reason=reason)
        state.manifest.id = secrets.token_hex(8)
        _add_stacks(state, exception)
        if self._text_of is not None:
            for request in state.requests:
                request.output_text = self._text_of(from_le32(request.output_token_ids))
        if failure is not None:
            state.failures.append(failure)
        if describe is not None:
            describe(state)
        sections = contents().put(state) if contents is not None else []
        path = self.folder / f"{state.manifest.id}.pplx"
        try:
            _write_whole(path, state, sections)
        except OSError as error:
            if not sections:
                raise
            log.warning("the dump has no room for KV contents: %s", error)
            _leave_contents_out(state)
            _write_whole(path, state, [])
        return state.manifest.id, path

    def _allowed(self) -> bool:
        now = self._clock()
        while self._recent and self._recent[0] <= now - WINDOW_S:
            self._recent.popleft()
        if len(self._recent) >= self._per_minute:
            return False
        self._recent.append(now)
        return True


def _write_whole(path: Path, state: pb.RuntimeState, sections: list[SectionData]) -> None:
    """Write a dump, or nothing: half a one would take what room is left on a full disk, again for each failure."""
    try:
        write_dump(path, state, sections)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _leave_contents_out(state: pb.RuntimeState) -> None:
    state.kv.contents_selection = RecordKv.NONE.value
    state.kv.contents_blocks = b""
    record(state, "kv.contents_blocks", pb.ABSENT, "there was no room on the disk for them")


def _add_stacks(state: pb.RuntimeState, exception: BaseException | None) -> None:
    """Stacks of this process as it is now, which the ring does not hold, and their grades."""
    state.threads.extend(capture_threads(without=(__name__, "replay.serving.session")))
    record(state, "threads", pb.OBSERVED)
    if exception is None:
        record(state, "exceptions", pb.OBSERVED, "nothing was raised")
    else:
        state.exceptions.extend(capture_exception(exception))
        record(state, "exceptions", pb.OBSERVED)
