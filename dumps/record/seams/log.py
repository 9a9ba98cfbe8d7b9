"""What a recorded program did with the world outside, kept in memory until a dump is made of it.

Seams (the other modules of this package) stand where the program meets the world and tell the log what passes. They
work with the messages of the dump's own schema, which they may go on filling while a request is in flight: a dump made
in that moment then shows it as far as it came.

The log is bounded. What does not fit is left out and counted, never raised: recording must not end what it records.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from dumps.record.message_text import utf8
from dumps.record.recorder import RecordLevel
from dumps.record.seams.real_time import monotonic_ns
from dumps.record.stacks import call_site
from dumps.schema import state_pb2 as pb

MIB = 1024 * 1024

T = TypeVar("T", pb.Syscall, pb.EntropyDraw)

inbound: ContextVar[str] = ContextVar("pplx_inbound", default="")
"""Id of the inbound exchange that the running task handles, or was started for."""


answered: ContextVar[bool] = ContextVar("pplx_answered", default=False)
"""Whether a tool runs here that a replay does not run: it gives the recorded answer."""

_log = logging.getLogger("pplx.record")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """How much one recording keeps. Bytes are of payload: bodies, data that was read, entropy."""

    exchanges: int = 10_000
    tool_calls: int = 10_000
    syscalls: int = 20_000
    entropy: int = 20_000
    bytes: int = 64 * MIB


@dataclass(slots=True, kw_only=True)
class WorldLog:
    """The recorded world. Methods may be called from any thread.

    ``lost`` counts what did not fit, by kind, ``forgotten`` what was let go, and ``unplayable`` says what no replay
    follows, in words; a dump has these in its ledger. ``owner`` is the thread that a replay runs alone. ``watchers``
    are called when something happens, before it is noted: the clock seam so sees what changed since the last time.
    """

    level: RecordLevel
    limits: LogLimits = field(default_factory=LogLimits)
    exchanges: list[pb.Exchange] = field(default_factory=list)
    tool_calls: list[pb.ToolCall] = field(default_factory=list)
    syscalls: list[pb.Syscall] = field(default_factory=list)
    entropy: list[pb.EntropyDraw] = field(default_factory=list)
    clock_changes: list[pb.ClockChange] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    forgotten: Counter[str] = field(default_factory=Counter)
    unplayable: dict[str, str] = field(default_factory=dict)
    owner: int = field(default_factory=threading.get_ident)
    lock: threading.RLock = field(default_factory=threading.RLock)
    watchers: list[Callable[[], None]] = field(default_factory=list)
    _bytes: int = 0
    _numbers: Counter[str] = field(default_factory=Counter)
    _occurrences: Counter[tuple[str, Hashable]] = field(default_factory=Counter)

    def happened(self) -> None:
        """Tell the watchers. Every method that notes something does; so does whoever makes a dump, before it reads."""
        for watcher in self.watchers:
            watcher()

    def cannot_follow(self, kind: str, what: str, remedy: str) -> None:
        """The program does ``what``, which no replay can follow. Said once for each ``kind``, in the program's log too.

        Below level "full" nothing is said: there is no replay.
        """
        if self.level is not RecordLevel.FULL or kind in self.unplayable or answered.get():
            return
        with self.lock:
            if kind in self.unplayable:
                return
            site = next(iter(call_site(limit=1)), None)
            where = f" (at {site.filename}:{site.line} in {site.function})" if site is not None else ""
            self.unplayable[kind] = f"{what}{where}"
        _log.warning("no replay will follow this program: %s%s; %s", what, where, remedy)

    def add_exchange(self, direction: str = "out") -> pb.Exchange | None:
        """A new exchange with id, start, direction, task and inbound exchange filled in; None when there is no room."""
        self.happened()
        if direction == "out" and threading.get_ident() != self.owner and asyncio._get_running_loop() is None:
            self._blocks_in_a_thread()
        with self.lock:
            if len(self.exchanges) >= self.limits.exchanges:
                self.lost["exchanges"] += 1
                return None
            exchange = pb.Exchange(
                id=self._name("x"),
                direction=direction,
                framing="wire" if direction == "out" else "body",
                started_ns=monotonic_ns(),
                task=task_name(),
                within=inbound.get() if direction == "out" else "",
            )
            self.exchanges.append(exchange)
            return exchange

    def _blocks_in_a_thread(self) -> None:
        if threading.current_thread() is threading.main_thread():
            return  # a recording that was begun elsewhere
        what = f"it asks by a blocking HTTP client in the thread {threading.current_thread().name!r}"
        remedy = "use the client in the main thread, or its async form in a task"
        self.cannot_follow("blocking client", what, remedy)

    def drop_exchange(self, exchange: pb.Exchange) -> None:
        """Take back one that came to nothing: a connection on which no request was made."""
        with self.lock:
            self.exchanges[:] = [kept for kept in self.exchanges if kept is not exchange]

    def next_occurrence(self, task: str, key: Hashable) -> int:
        """How many requests of this task had the match key ``key`` before."""
        with self.lock:
            self._occurrences[task, key] += 1
            return self._occurrences[task, key] - 1

    def add_tool_call(self, name: str, *, call_id: str = "") -> pb.ToolCall | None:
        self.happened()
        with self.lock:
            if len(self.tool_calls) >= self.limits.tool_calls:
                self.lost["tool_calls"] += 1
                return None
            call = pb.ToolCall(
                id=call_id or self._name("tool-"),
                name=name,
                status="pending",
                started_ns=monotonic_ns(),
                task=task_name(),
                within=inbound.get(),
            )
            self.tool_calls.append(call)
            return call

    def add_syscall(self, call: pb.Syscall) -> None:
        self._add("syscalls", self.syscalls, call, most=self.limits.syscalls)

    def add_entropy(self, draw: pb.EntropyDraw) -> None:
        self._add("entropy", self.entropy, draw, most=self.limits.entropy)

    def _add(self, kind: str, kept: list[T], one: T, *, most: int) -> None:
        self.happened()
        with self.lock:
            if len(kept) >= most or not self.has_room(len(one.data)):
                self.lost[kind] += 1
                return
            kept.append(one)

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes of payload fit; if so, they count from here on."""
        with self.lock:
            if self._bytes + size > self.limits.bytes:
                return False
            self._bytes += size
            return True

    def fullness(self) -> float:
        """The share of its room that is taken, in what has the least of it left."""
        limits = self.limits
        counts = (
            (len(self.exchanges), limits.exchanges),
            (len(self.tool_calls), limits.tool_calls),
            (len(self.syscalls), limits.syscalls),
            (len(self.entropy), limits.entropy),
            (self._bytes, limits.bytes),
        )
        return max(count / limit if limit else 1.0 for count, limit in counts)

    def forget(self, *, live: Collection[str], before_ns: int) -> None:
        """Make room in the log of a program that serves for days: let go what has nothing to do with what goes on.

        Kept are calls that have not ended, those of the inbound exchanges ``live``, and of files and entropy what
        happened after ``before_ns`` (monotonic), with the random states of the start.
        """
        with self.lock:
            before = (len(self.exchanges), len(self.tool_calls), len(self.syscalls), len(self.entropy))
            self.exchanges[:] = [
                one for one in self.exchanges if not one.HasField("ended_ns") or one.within in live or one.id in live
            ]
            self.tool_calls[:] = [
                one for one in self.tool_calls if not one.HasField("finished_ns") or one.within in live
            ]
            self.syscalls[:] = [one for one in self.syscalls if one.time_ns >= before_ns]
            self.entropy[:] = [one for one in self.entropy if one.time_ns >= before_ns or one.source.endswith(".state")]
            after = (len(self.exchanges), len(self.tool_calls), len(self.syscalls), len(self.entropy))
            for kind, was, now in zip(("exchanges", "tool_calls", "syscalls", "entropy"), before, after, strict=True):
                self.forgotten[kind] += was - now
            self.forgotten = +self.forgotten
            tasks = {one.task for one in self.exchanges}
            self._occurrences = Counter({key: n for key, n in self._occurrences.items() if key[0] in tasks})
            self._bytes = (
                sum(len(one.request_body) + sum(len(chunk.data) for chunk in one.chunks) for one in self.exchanges)
                + sum(len(one.arguments_json) + len(one.result_json) for one in self.tool_calls)
                + sum(len(one.data) for one in self.syscalls)
                + sum(len(one.data) for one in self.entropy)
            )

    def _name(self, prefix: str) -> str:
        self._numbers[prefix] += 1
        return f"{prefix}{self._numbers[prefix]}"


def task_name() -> str:
    """The name of the running asyncio task, else of the thread, as a message field can hold it."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return utf8(task.get_name() if task is not None else threading.current_thread().name)
