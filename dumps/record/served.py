"""What recordings of server applications share: when they begin and end, and what a request's failure is.

A recording of a server goes on for days. When its log is half full, what belongs to requests that have ended is let go;
what is in flight stays whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Protocol, Unpack

from dumps.record.inbound import InboundTap
from dumps.record.message_text import module_name
from dumps.record.program import Recording, RecordingOptions, recording
from dumps.record.program_state import Trouble
from dumps.record.seams import context
from dumps.record.seams.log import inbound
from dumps.record.watchdog import Watchdog

log = logging.getLogger("pplx.record")

FULL_ENOUGH = 0.5
"""Share of the log's room from which on what has ended is let go."""


class Reporter(Protocol):
    """Who is told of a request's failure."""

    @property
    def watchdog(self) -> Watchdog: ...

    def report(self, trouble: Trouble, /) -> object: ...


class Requests(Protocol):
    """Who follows an application's requests: its recording, or its replay, so that both see the same failures."""

    @property
    def follows(self) -> bool: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def stop_with_the_last(self) -> None: ...

    def failed_to_start(self, error: BaseException) -> None: ...

    def handle(self, *, decoded: bool = False) -> Handling | None: ...


class Served:
    """The recording of one server application. ``objects`` are what its module may call it. Nothing here raises."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        kind: str,
        objects: Sequence[Any],
        timeout: float | None,
        **options: Unpack[RecordingOptions],
    ) -> None:
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout={timeout!r}: seconds, more than 0")

        def make() -> Recording:
            return recording(folder, **options)

        make()  # raises for a level that there is not, while somebody looks
        self._make = make
        self.kind, self.timeout = kind, timeout
        self._objects = objects
        self._recording: Recording | None = None
        self._refused = False
        self._live: dict[str, int] = {}  # inbound exchanges in flight, and when they began
        self._forget_at = FULL_ENOUGH
        self._ends_with_the_last = False

    @property
    def recording(self) -> Recording | None:
        """The recording that is going on."""
        return self._recording if self._recording is not None and self._recording.active else None

    @property
    def follows(self) -> bool:
        return self.recording is not None

    def start(self) -> None:
        """Begin to record, if that is not so yet. One that is refused is logged, and not tried again."""
        self._ends_with_the_last = False
        if self.recording is not None or self._refused:
            return
        try:
            made = self._make()
            made.facts.kind, made.facts.entry = self.kind, _entry(self._objects)
            made.begin()
            self._recording = made
        except Exception as problem:
            self._refused = True
            log.error("the server goes on without a recording: %s: %s", type(problem).__name__, problem)

    def stop(self) -> None:
        """End the recording; another `start` begins a new one."""
        if self._recording is not None:
            with contextlib.suppress(Exception):
                self._recording.end()
        self._recording, self._refused, self._ends_with_the_last = None, False, False
        self._live.clear()

    def stop_with_the_last(self) -> None:
        """As `stop`, once no request is in flight any more: of a server that goes at once, what becomes of them is a
        failure."""
        self._ends_with_the_last = bool(self._live)
        if not self._live:
            self.stop()

    def failed_to_start(self, error: BaseException) -> None:
        """A dump of an exception that ended the application before it served anything."""
        if self._recording is not None and isinstance(error, Exception):
            self._recording.failed(error)

    def handle(self, *, decoded: bool = False) -> Handling | None:
        """The handling of a request that has just come, None where it is not recorded."""
        self.start()
        current = self.recording
        if current is None:
            return None
        try:
            if current.log.fullness() >= self._forget_at:
                before_ns = min(self._live.values(), default=sys.maxsize)
                current.log.forget(live=self._live, before_ns=before_ns)
                self._forget_at = max(FULL_ENOUGH, (1 + current.log.fullness()) / 2)
            tap = InboundTap(current.log, server=self.kind, decoded=decoded)
            self._live[tap.exchange.id] = tap.exchange.started_ns
            return Handling(current, tap, timeout=self.timeout, done=lambda: self._done(tap.exchange.id))
        except Exception:
            log.exception("a request is not recorded")
            return None

    def _done(self, exchange: str) -> None:
        self._live.pop(exchange, None)
        if self._ends_with_the_last:
            self.stop_with_the_last()


class Handling:
    """One request while the application handles it: a context manager for the task that does.

    An exception that leaves the block makes a dump, and goes on.
    """

    def __init__(
        self, current: Reporter, tap: InboundTap, *, timeout: float | None, done: Callable[[], object]
    ) -> None:
        self.tap = tap
        self._recording, self._timeout, self._done = current, timeout, done
        self._task: asyncio.Task[Any] | None = None
        self._inside = ExitStack()
        self._gone = self._raised = False

    def __enter__(self) -> Handling:
        with contextlib.suppress(Exception):
            self._task = asyncio.current_task()
            exchange = self.tap.exchange
            token = inbound.set(exchange.id)
            self._inside.callback(_reset, token)
            self._inside.enter_context(context.frame("request", {"method": exchange.method, "url": exchange.url}))
            if self._timeout is not None:
                trouble = self._trouble(
                    "timeout", "request", f"the request took longer than {self._timeout:g} s", elsewhere=True
                )
                watch = self._recording.watchdog.watch(self._timeout, lambda: self._recording.report(trouble))
                self._inside.callback(watch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._inside.__exit__(kind, error, trace)
            if error is not None:
                self._failed(error)
        except Exception:
            log.exception("a failure of a request is not recorded")

    def client_gone(self) -> None:
        """The client went away before it had the response."""
        if self._gone:
            return
        self._gone = True
        message = "the client went away before the response was complete"
        self.tap.ended("closed", message)
        if not self._raised:  # else there is a dump of that, and a frame of the handler's in it
            self._recording.report(self._trouble("exception", "client-gone", message))

    def ended(self, error: str = "", message: str = "") -> None:
        """The response is complete, or will never be."""
        self.tap.ended(error, message)
        self._done()

    def _failed(self, error: BaseException) -> None:
        self.tap.raised(error)
        self._raised = True
        if self._gone or isinstance(error, SystemExit | GeneratorExit):
            return
        ended = isinstance(error, KeyboardInterrupt)
        self._recording.report(
            Trouble(
                reason="signal" if ended else "exception",
                error=error,
                ended=ended,
                task=self._task,
                exchange=self.tap.exchange.id,
            )
        )

    def _trouble(self, reason: str, invariant: str, message: str, *, elsewhere: bool = False) -> Trouble:
        return Trouble(
            reason=reason,
            invariant=invariant,
            message=message,
            task=self._task,
            exchange=self.tap.exchange.id,
            elsewhere=elsewhere,
        )


def _reset(token: Any) -> None:
    with contextlib.suppress(ValueError):  # the application changed contexts on the way
        inbound.reset(token)


def _entry(objects: Sequence[Any]) -> str:
    """Where a module has one of ``objects``, the first if it can be, as "module:name"; empty where none has."""
    for one in objects:
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", {})  # what some put into sys.modules is no module
            if any(value is one for value in list(names.values())):
                name = next(name for name, value in list(names.items()) if value is one)
                return f"{module_name(module.__name__)}:{name}"
    return ""
