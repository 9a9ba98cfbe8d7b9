"""Plays a recorded program's tool calls.

    tools = Tools(dump.state.tool_calls, clock=clock, results={"call_7": '{"hits": []}'})
    undo = tools.install()

A call is matched to a recorded one: by the model's id where the program names it (`answering`), else by name, first
one with equal arguments. Then, in this order:

* a result given for its id answers it, after the recorded delay where there was one;
* a tool marked ``replay="answer"`` gives its recorded outcome: the result, or what it raised, after the recorded delay;
  a call that was pending stays pending to its recorded deadline and ends in `TimeoutError`, one without a deadline
  never ends;
* else the tool runs again. What it reads and sends is played from the dump.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import difflib
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dumps.record.seams import current
from dumps.record.seams.json_text import is_whole, to_json
from dumps.record.seams.log import inbound
from dumps.record.seams.tools import Tool, take_call_id
from dumps.schema import state_pb2 as pb
from dumps.text import printable
from replay.runtime.deadlines import WasSetAfter, set_after
from replay.runtime.errors import RuntimeReplayError, WaitsForEver

MAX_SHOWN = 200  # characters of arguments or a result in a finding
MAX_LISTED = 12  # calls in an error
_GIVEN_UP = ("TimeoutError", "CancelledError")


class Clock(Protocol):
    """The part of the virtual clock that tools need."""

    def sleep(self, seconds: float) -> None: ...
    def catch_up(self, monotonic_ns: int, was_set_after: WasSetAfter) -> None: ...
    def monotonic_ns(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueCall:
    """A call that ended in a timeout in the replay. ``deadline_s`` is the one that its tool names, None where it names
    none; times are the program's monotonic ones, in ns."""

    call: pb.ToolCall
    deadline_s: float | None
    started_ns: int
    ended_ns: int
    error: TimeoutError


class UnknownToolCall(RuntimeReplayError):
    """A result was given for a tool call that the dump does not hold. Usually a typo, or the tool's name for its id."""

    exit_code = 2


class OutcomeNotRecorded(RuntimeReplayError):
    """A tool marked ``replay="answer"`` was called, and the dump does not hold all of what came of that call: it was
    made below record level "full", it was too large, or JSON cannot hold it."""

    exit_code = 20
    remedy = 'Give a result with --set tool.<id>.result=JSON, or let the tool run: @tool without replay="answer".'


class Tools:
    """The tool calls of one replay. ``begun`` counts those that the replayed program made, ``recorded`` the dump's.

    May be called from any thread, but a recorded delay can only pass in the thread of the replay.
    """

    def __init__(
        self,
        recorded: Iterable[pb.ToolCall],
        *,
        clock: Clock | None = None,
        results: Mapping[str, str] | None = None,
    ) -> None:
        """``results`` are JSON texts by call id. Without a ``clock`` delays are not waited for.

        Raises `UnknownToolCall`, and `RuntimeReplayError` for a result that is no JSON.
        """
        self.calls = {call.id: call for call in recorded}
        self._begun: list[str] = []  # the inbound request that each call was made for
        self._clock = clock
        self._open = list(self.calls.values())
        self._results = {call_id: self._parsed(call_id, text) for call_id, text in (results or {}).items()}
        self._findings: list[str] = []
        self._running: list[pb.ToolCall] = []
        self._overdue: list[OverdueCall] = []
        self._lock = threading.RLock()

    @property
    def begun(self) -> int:
        return len(self._begun)

    def begun_within(self, within: str) -> int:
        """Those of one inbound request, given by its id; all for ""."""
        return self._begun.count(within) if within else len(self._begun)

    @property
    def recorded(self) -> int:
        return len(self.calls)

    def left_over(self, within: str = "") -> list[pb.ToolCall]:
        """Recorded calls that have not been made, all or those of one inbound request."""
        return [call for call in self._open if _ran(call) and (not within or call.within == within)]

    def running(self) -> list[pb.ToolCall]:
        """Recorded calls that the replayed program has begun, and that have not come back."""
        with self._lock:
            return list(self._running)

    def overdue(self) -> list[OverdueCall]:
        """Calls of the replayed program that a timeout ended, in their order."""
        with self._lock:
            return list(self._overdue)

    def pending(self) -> list[pb.ToolCall]:
        """Calls that had not ended when the dump was made; "partial" ones have arguments that were still arriving."""
        return [call for call in self.calls.values() if call.status in ("pending", "partial")]

    def install(self) -> Callable[[], None]:
        """Run the process's tools from here on. Returns the function that ends it."""
        return current.activate(tools=self)

    def findings(self) -> list[str]:
        """How the calls differed from the recorded ones. Final once the program has ended."""
        with self._lock:
            left = [f"{_shown(call)} was recorded and not called in the replay" for call in self.left_over()]
            return [*self._findings, *left]

    # What a marked function calls

    def call(self, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with self._begin(tool, args, kwargs) as record:
            if record is not None and self._answers(tool, record):
                delay = self._delay_ns(record)
                if delay is None:
                    raise WaitsForEver(f"{_shown(record)} never ended while it was recorded, and has no deadline")
                if self._clock is not None:
                    self._clock.sleep(delay / 1e9)
                return self._outcome(record)
            return self._compared(record, tool.function(*args, **kwargs))

    async def call_async(self, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with self._begin(tool, args, kwargs) as record:
            if record is not None and self._answers(tool, record):
                async with asyncio.timeout(tool.deadline):
                    delay = self._delay_ns(record)
                    if delay is None:
                        await asyncio.get_running_loop().create_future()  # for ever: the loop proves the stall
                    elif self._clock is not None:
                        await asyncio.sleep(delay / 1e9)
                    return self._outcome(record)
            return self._compared(record, await tool.run_async(args, kwargs))

    def partial(self, call_id: str, name: str, text: str, *, done: bool) -> None:
        """Nothing: what had arrived is in the dump, and what arrives now is the program's own."""

    @contextlib.contextmanager
    def _begin(self, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[pb.ToolCall | None]:
        """The recorded call that this one is, which runs while the block does."""
        record = self._recorded_call(tool, args, kwargs)
        if record is None:
            yield None
            return
        started_ns = self._now_ns()
        with self._lock:
            self._running.append(record)
        try:
            yield record
        except TimeoutError as error:
            overdue = OverdueCall(
                call=record, deadline_s=tool.deadline, started_ns=started_ns, ended_ns=self._now_ns(), error=error
            )
            with self._lock:
                self._overdue.append(overdue)
            raise
        finally:
            with self._lock:
                self._running.remove(record)

    def _recorded_call(self, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> pb.ToolCall | None:
        call_id = take_call_id()
        arguments = to_json(tool.arguments(args, kwargs))
        with self._lock:
            self._begun.append(inbound.get())
            record = self._match(call_id, tool.name, arguments)
            if record is None:
                shown = printable(arguments, MAX_SHOWN)
                self._findings.append(f"tool {tool.name!r} was called and not recorded so often, arguments {shown}")
                return None
            self._open.remove(record)
            if self._clock is not None:
                self._clock.catch_up(record.started_ns, set_after(_waited_in_vain_ns(record)))
            if record.arguments_json and _ran(record) and record.arguments_json != arguments:
                self._findings.append(_difference(record, "arguments", record.arguments_json, arguments))
            return record

    def next_asked_ns(self, after_ns: int) -> int | None:
        """When the first of what is not called yet was called in the recording, after a time."""
        return min((one.started_ns for one in self._open if one.started_ns > after_ns), default=None)

    def _match(self, call_id: str, name: str, arguments: str) -> pb.ToolCall | None:
        named = next((one for one in self._open if call_id and one.id == call_id), None)
        if named is not None:
            return named
        same = [one for one in self._open if one.name == name and one.status != "partial"]
        if within := inbound.get():
            same = [one for one in same if one.within == within] or same
        return next((one for one in same if one.arguments_json == arguments), same[0] if same else None)

    def _now_ns(self) -> int:
        return self._clock.monotonic_ns() if self._clock is not None else 0

    def _answers(self, tool: Tool, record: pb.ToolCall) -> bool:
        return record.id in self._results or tool.replay == "answer"

    def _delay_ns(self, record: pb.ToolCall) -> int | None:
        """Nanoseconds from the call to its end, None where it never ended."""
        if record.id in self._results and record.status != "finished":
            return 0  # one that waited in vain for its deadline would wait for it again
        if record.HasField("finished_ns"):
            return max(record.finished_ns - record.started_ns, 0)
        if record.status in ("finished", "failed"):
            return 0
        return max(record.deadline_ns - record.started_ns, 0) if record.HasField("deadline_ns") else None

    def _outcome(self, record: pb.ToolCall) -> Any:
        if record.id in self._results:
            return self._results[record.id]
        if record.status in ("pending", "partial"):
            raise TimeoutError
        if record.status == "failed":
            raise recorded_exception(record.error_type, record.error_message)
        try:
            value = json.loads(record.result_json)
            whole = is_whole(value)
        except (ValueError, RecursionError):
            value, whole = None, False
        if not whole:
            raise OutcomeNotRecorded(f"The result of {_shown(record)} is not in the dump, or not all of it.")
        return value

    def _compared(self, record: pb.ToolCall | None, result: Any) -> Any:
        if record is None:
            return result
        with self._lock:
            if record.status == "failed":
                self._findings.append(f"{_shown(record)} raised {record.error_type} when recorded, and returned now")
            elif record.result_json and (text := to_json(result)) != record.result_json:
                self._findings.append(_difference(record, "result", record.result_json, text))
        return result

    def _parsed(self, call_id: str, text: str) -> Any:
        if call_id not in self.calls:
            raise UnknownToolCall(
                f"The dump holds no tool call {printable(call_id)!r}.",
                remedy=f"Recorded: {listed(self.calls.values(), call_id)}.",
            )
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UnknownToolCall(
                f"The result for tool call {call_id!r} is no JSON: {error}", remedy="Quote text: '\"like this\"'."
            ) from None


def listed(calls: Iterable[pb.ToolCall], wanted: str) -> str:
    """Recorded calls by id and tool, in their order: all, or of many those that ``wanted`` may have meant."""
    there = list(calls)
    shown = there
    if len(there) > MAX_LISTED:
        near = difflib.get_close_matches(wanted, [call.id for call in there], MAX_LISTED, 0.4)
        shown = [call for call in there if call.name == wanted] or [call for call in there if call.id in near] or there
    names = [f"{printable(call.id, 60)} ({printable(call.name, 60)})" for call in shown[:MAX_LISTED]]
    left = len(there) - len(names)
    return ", ".join(names) + (f" and {left} more" if left else "") if names else "none"


def recorded_exception(name: str, message: str) -> BaseException:
    """An exception of the recorded type, where the program has loaded it; else an `OutcomeNotRecorded` that names it.

    Nothing is imported: a dump must not choose what runs.
    """
    module, _, qualified = name.rpartition(".")
    kind: Any = vars(builtins).get(name) if not module else getattr(sys.modules.get(module), qualified, None)
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        return OutcomeNotRecorded(f"The recorded call raised {name}, which this program has not loaded: {message}")
    try:
        return kind(message) if message else kind()
    except Exception:  # it wants other arguments
        made = kind.__new__(kind)
        made.args = (message,)
        return made


def _waited_in_vain_ns(call: pb.ToolCall) -> int | None:
    """When the recorded program gave up a call, as at a deadline; None where it ended by itself, or was waited for to
    the end of the record."""
    if call.status == "finished" or (call.status == "failed" and not call.error_type.endswith(_GIVEN_UP)):
        return None
    ended_ns = call.finished_ns if call.HasField("finished_ns") else call.deadline_ns
    return ended_ns or None


def _ran(call: pb.ToolCall) -> bool:
    return call.status != "partial"


def _shown(call: pb.ToolCall) -> str:
    return f"tool call {printable(call.id, 80)} ({printable(call.name, 80)})"


def _difference(call: pb.ToolCall, what: str, recorded: str, replayed: str) -> str:
    return (
        f"{_shown(call)}: {what} differ: recorded (dump) {printable(recorded, MAX_SHOWN)}, "
        f"replayed (your code) {printable(replayed, MAX_SHOWN)}"
    )
