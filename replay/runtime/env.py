"""The recorded world of one program, put in place around whatever runs inside the block.

    env = load_env("dumps/4f2a9c.pplx")
    with env:
        main()                                  # its clock, network, files, entropy and tools are the recorded ones
    print(*env.findings(), sep="\\n")

Each part also works alone: ``env.clock``, ``env.alarms``, ``env.process``, ``env.entropy``, ``env.network``,
``env.files``, ``env.syscalls``, ``env.fds``, ``env.tools``, ``env.context``, ``env.stacks``, ``env.kv``.
What is faked is faked at the Python boundary, for the clients that `replay.runtime.network` names; keeping everything
else from happening is the guard's work (`replay.isolate.guard`), which is in force where `pplx-replay run` runs a
program, and not here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from dumps.program_dumps import without_its_world
from dumps.record.program_state import MAX_VARIABLES
from dumps.record.seams import current
from dumps.record.seams.log import inbound, task_name
from dumps.schema import state_pb2 as pb
from dumps.schema.reader import open_dump
from replay.runtime import databases, loop, native_files, other_processes, stdin, variables
from replay.runtime.alarms import Alarms
from replay.runtime.alike import told_once
from replay.runtime.clock import VirtualClock
from replay.runtime.context import RecordedContext
from replay.runtime.entropy import Entropy
from replay.runtime.errors import (
    AnswerNotRecorded,
    RuntimeReplayError,
    UnrecordedFile,
    UnrecordedRequest,
    WaitsForEver,
    in_one_line,
)
from replay.runtime.fds import DescriptorMap
from replay.runtime.files import Files
from replay.runtime.kv import KvView
from replay.runtime.network import aiohttp_peer, http_client_peer, httpcore_peer
from replay.runtime.network.model import ModelAnswers
from replay.runtime.network.network import Fork, Network
from replay.runtime.own_process import OwnProcess
from replay.runtime.stacks import Stacks
from replay.runtime.standpoint import Standpoint
from replay.runtime.syscalls import Handler, Syscalls, UnrecordedSyscall
from replay.runtime.tools import Tools

_PEERS = (aiohttp_peer, httpcore_peer, http_client_peer)
_UNRECORDED = (UnrecordedRequest, AnswerNotRecorded, UnrecordedFile, UnrecordedSyscall)
_STALLS = (loop.Stalled, WaitsForEver)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How the replay's world differed from the recorded one."""

    code: str
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error that the mocked runtime raised into the program, which may have swallowed it.

    ``step`` is the world step at that moment, ``left_over`` how much of the record (requests, tool calls,
    files that were read) had not been asked for yet,
    ``monotonic_ns`` the time on the program's clock. ``task`` is who got it; in a server ``within`` is the id of the
    inbound request in whose handling, and both counts are those of that request. ``standpoint`` is where the program
    stood, known of the first refusal (in a server of each request's first) and where the record came to its end.
    ``after_the_record``: a server was told to shut down by then.
    """

    error: RuntimeReplayError
    step: int
    left_over: int
    monotonic_ns: int
    task: str
    within: str = ""
    standpoint: Standpoint = field(default_factory=Standpoint)
    after_the_record: bool = False

    @property
    def kind(self) -> Literal["unrecorded", "stalled", "unsupported"]:
        """Asked for what was not recorded; waits for what never comes; or does what no replay can follow."""
        if isinstance(self.error, _UNRECORDED):
            return "unrecorded"
        return "stalled" if isinstance(self.error, _STALLS) else "unsupported"

    @property
    def sentence(self) -> str:
        """What it was, in one line."""
        return in_one_line(self.error)


class NoWorldRecorded(RuntimeReplayError):
    """The dump does not hold a program's world: it is that of an engine, or the recording left out what was said."""

    exit_code = 20


class _Refusals(list[Any]):
    """Where the parts of the world note each error that they raise, with the moment added to it."""

    def __init__(self, seen_now: Callable[[RuntimeReplayError], Refusal]) -> None:
        super().__init__()
        self._seen_now = seen_now
        self.refusals: list[Refusal] = []

    def append(self, error: Any) -> None:
        super().append(error)
        self.refusals.append(self._seen_now(error))


class Env:
    """One recorded world. Use it once, as a context manager; ``async with`` is for code that is in a virtual loop."""

    def __init__(
        self,
        state: pb.RuntimeState,
        *,
        model: ModelAnswers | None = None,
        fork: Fork | None = None,
        tool_results: Mapping[str, str] | None = None,
    ) -> None:
        self.process = OwnProcess.of(state)
        self._variables = {one.key: one.value for one in state.program.environment} if _has_variables(state) else None
        self.clock = VirtualClock.of(state.program, state.clock_changes)
        self.alarms = Alarms(self.clock)
        self.entropy = Entropy(draws=state.entropy, key=state.manifest.id)
        self.syscalls = Syscalls(state.syscalls)
        self.fds = DescriptorMap(state.descriptors)
        self._stdin = next((one.kind for one in state.descriptors if one.fd == 0), "")
        self.files = Files(
            state.syscalls,
            clock=self.clock,
            syscalls=self.syscalls,
            descriptors=self.fds,
            new_files=fork is not None,
        )
        self.network = Network(state.exchanges, clock=self.clock, model=model, fork=fork)
        self.tools = Tools(state.tool_calls, clock=self.clock, results=tool_results or {})
        self.context = RecordedContext(state.context_stack)
        self.stacks = Stacks.of(state)
        self.kv = KvView(state)
        self._refusals = _Refusals(self._refusal)
        self.clock.refusals = self._refusals
        self.clock.next_asked = self._next_asked_ns
        self.clock.missed_ns = next((one.time_ns for one in state.failures if "Timeout" in one.exception_type), None)
        self.network.refusals = self._refusals
        self.files.model.unrecorded = self._refusals
        self.syscalls.refusals = self._refusals
        self._undo: list[Callable[[], None]] = []
        self._used = False
        self._over = False

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """While the program is imported: it sees the recorded environment variables and process, and nothing else of
        the world is in place yet."""
        with contextlib.ExitStack() as stack:
            stack.callback(current.begin_replay())  # recordings that a module begins are inert
            stack.callback(self._show_variables())
            stack.callback(self.process.install())
            stack.enter_context(self.process.loading())
            yield

    def _show_variables(self) -> Callable[[], None]:
        if self._variables is None:
            return lambda: None
        return variables.put_in_place(self._variables, whole=len(self._variables) < MAX_VARIABLES)

    def mock_syscall(self, name: str, handler: Handler) -> Callable[[], None]:
        """See `Syscalls.mock_syscall`."""
        return self.syscalls.mock_syscall(name, handler)

    def __enter__(self) -> Env:
        """Raises RuntimeReplayError where a world is in place already, and for one that was used before; RuntimeError
        where the process is being recorded."""
        if current.replaying():
            raise RuntimeReplayError(
                "a recorded world is in place already", remedy="Leave its `with` block before you enter another."
            )
        if self._used:
            raise RuntimeReplayError(
                "this world was used before, and what it answered then it does not answer again",
                remedy="Make a new one: load_env(dump).",
            )
        self._used = True
        install = self._undo.append
        try:
            install(current.begin_replay())
            install(current.activate(tools=self.tools, context=self.context))
            install(self._show_variables())
            install(self.process.install())
            for peer in _PEERS:
                install(peer.install(self.network))
            install(self.files.install())
            install(native_files.install(self.clock.refuse, self.files.has, self.files.reads))
            install(databases.install(self.clock.refuse))
            install(other_processes.install(self.clock.refuse))
            install(stdin.install(self.clock.refuse, self._stdin, self.files.real))
            install(self.entropy.install())
            install(self.clock.install())
            install(self.alarms.install())
            install(loop.install(self.clock))
            self.clock.work.begin()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    async def __aenter__(self) -> Env:
        """As `__enter__`. Raises RuntimeReplayError in a loop on another clock, such as a real one: no deadline could
        be replayed there."""
        running = asyncio.get_running_loop()
        if not isinstance(running, loop.VirtualLoop) or running.clock is not self.clock:
            raise RuntimeReplayError(
                "this event loop does not run on the clock of this world",
                remedy="Put `with env:` around asyncio.run(...), which then makes a virtual loop; or run the coroutine "
                "with replay.runtime.loop.run(env.clock, ...).",
            )
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def world_step(self) -> int:
        """How many outbound requests and tool calls the program has begun."""
        return self.calls_begun()

    def calls_begun(self, within: str = "") -> int:
        """The world step; ``within`` counts the calls of one inbound request of a server, given by its id."""
        return self.network.begun_within(within) + self.tools.begun_within(within)

    def left_over(self, within: str = "") -> list[pb.Exchange]:
        """Recorded exchanges that have not been asked for, all or those of one inbound request."""
        return [one for one in self.network.left_over() if not within or one.within == within]

    def _next_asked_ns(self, after_ns: int) -> int | None:
        """When the recorded program first asked its world for something after a time, where the program of the replay
        does not wait for anything now."""
        if self.network.is_awaited:
            return None
        times = (self.network.next_asked_ns(after_ns), self.tools.next_asked_ns(after_ns))
        return min((time_ns for time_ns in times if time_ns is not None), default=None)

    def asked_by(self) -> dict[str, str]:
        """Who asked for each recorded exchange in the replay, by its id: the name of a task or a thread."""
        return self.network.asked_by()

    @property
    def asked_nothing(self) -> bool:
        """Whether requests, tool calls or file calls were recorded, and the program has made none of any kind,
        nor connected to anything."""
        files = self.files.model.script
        recorded = self.network.recorded or self.tools.recorded or files.names()
        return bool(recorded) and not (self.world_step or self.network.connected or files.asked)

    @property
    def refusals(self) -> list[Refusal]:
        """What the program asked for and did not get, in order, even where it swallowed the error."""
        return self._refusals.refusals

    @property
    def first_refusal(self) -> Refusal | None:
        """The first of them. What the program did after it is our doing, too."""
        return next(iter(self.refusals), None)

    @property
    def elapsed_s(self) -> float:
        """Virtual seconds since the program began."""
        return (self.clock.monotonic_ns() - self.clock.started_ns) / 1e9

    def counts(self) -> dict[str, Any]:
        """What was recorded, asked for and left over, for a report."""
        unrecorded = [one for one in self.refusals if one.kind == "unrecorded" and not one.after_the_record]
        return {
            "exchanges": {
                "recorded": self.network.recorded,
                "asked": self.network.asked,
                "left_over": len(self.network.left_over()),
            },
            "tool_calls": {"recorded": self.tools.recorded, "begun": self.tools.begun},
            "unrecorded": len(unrecorded),
            "unrecorded_requests": sum(isinstance(refusal.error, UnrecordedRequest) for refusal in unrecorded),
        }

    def end_of_the_record(self) -> None:
        """A server is about to be told to shut down, which it was not when the dump was made."""
        self._over = True

    def findings(self) -> list[Finding]:
        """What differed, first what was asked and not recorded. Final once the program has ended."""
        late = [one for one in self.refusals if one.after_the_record]
        untold = {str(one.error) for one in late} - {str(one.error) for one in self.refusals if one not in late}
        told = [one for one in self.network.findings() if one.message not in untold]
        found = [Finding(code=one.kind, message=one.message) for one in told]
        noted = {one.message for one in found}
        found += [
            Finding(code=refusal.kind, message=str(refusal.error), facts={"step": refusal.step})
            for refusal in self.refusals
            if str(refusal.error) not in noted and not refusal.after_the_record
        ]
        found += [
            Finding(code="after-the-record", message=f"asked during shutdown, after the record: {one.sentence}")
            for one in late
        ]
        found += [Finding(code="tools", message=message) for message in self.tools.findings()]
        found += [Finding(code="entropy", message=message) for message in self.entropy.findings]
        if self.entropy.synthesised:
            drawn = ", ".join(f"{count} of {source}" for source, count in sorted(self.entropy.synthesised.items()))
            found.append(Finding(code="entropy-synthesised", message=f"draws made up for this replay: {drawn}"))
        return told_once(found)

    def _refusal(self, error: RuntimeReplayError) -> Refusal:
        within = inbound.get()
        first = isinstance(error, _UNRECORDED) and all(one.within != within for one in self.refusals)
        return Refusal(
            error=error,
            step=self.calls_begun(within),
            left_over=self._left_over(error, within),
            monotonic_ns=self.clock.monotonic_ns(),
            task=task_name(),
            within=within,
            standpoint=self._standpoint(within) if first else Standpoint(),
            after_the_record=self._over,
        )

    def _standpoint(self, within: str) -> Standpoint:
        exchanges = [one for one in self.network.under_way() if not within or one.within == within]
        tool_calls = [one for one in self.tools.running() if not within or one.within == within]
        return Standpoint.here(exchanges, tool_calls)

    def _left_over(self, error: RuntimeReplayError, within: str) -> int:
        """Files count only where a file is asked for: which ones a changed program reads tells little of its requests,
        and the files of one request of a server are not known."""
        files = self.files.model.script.unread() if isinstance(error, UnrecordedFile) and not within else []
        return len(self.left_over(within)) + len(self.tools.left_over(within)) + len(files)

    def _end(self) -> None:
        """Take everything out again, in reverse order; one part that fails to leave does not keep the others in."""
        with contextlib.ExitStack() as stack:
            while self._undo:
                stack.callback(self._undo.pop(0))


def _has_variables(state: pb.RuntimeState) -> bool:
    """Whether the dump says what the program's environment was: not every one does, and below level full no value."""
    return bool(state.program.environment) and state.manifest.record_level == "full"


def load_env(
    dump: pb.RuntimeState | str | Path,
    *,
    model: ModelAnswers | None = None,
    fork: Fork | None = None,
    tool_results: Mapping[str, str] | None = None,
) -> Env:
    """The world that ``dump`` recorded: a file, or the state of one that is open.

    ``model`` answers requests to a model by replayed inference; without it the recorded answers are played. ``fork``
    may answer what was not recorded. ``tool_results`` are JSON texts that tool calls give instead, by id.

    Raises `DumpError`; `NoWorldRecorded` for a dump without a program, and below record level "full";
    `RuntimeReplayError` for a tool call that is not there.
    """
    if isinstance(dump, pb.RuntimeState):
        state = dump
    else:
        with open_dump(Path(dump)) as opened:
            state = pb.RuntimeState()
            state.CopyFrom(opened.state)
    _check_recorded(state)
    return Env(state, model=model, fork=fork, tool_results=tool_results)


def _check_recorded(state: pb.RuntimeState) -> None:
    if not state.HasField("program"):
        raise NoWorldRecorded(
            "the dump holds no recorded program: it is that of an engine",
            remedy="Record the program with dumps.record.program.recording; pplx-replay run replays an engine's dump.",
        )
    if (level := state.manifest.record_level) != "full":
        raise NoWorldRecorded(
            without_its_world(state, level),
            remedy='Record it with recording(..., level="full"), or use the dump that a redacted one was made of.',
        )
