"""A recorded server, replayed: its inbound requests come again, at their recorded times, with no socket and no server.

What stands around the application is the recorder's own wrapper (`dumps.record.asgi`, `dumps.record.aiohttp_app`) with
a `Witness` in the place of the recording: what a failure is, in which frame and after which calls, both see alike.

Asked again is every inbound request of the dump, the failing one among them; all of them began before it failed. What
the record of a long-lived server had let go by then is missing, and the report says so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dumps.record import triggers
from dumps.record.inbound import InboundTap
from dumps.record.program_state import LET_GO, Trouble
from dumps.record.recorder import RecordLevel
from dumps.record.seams.log import WorldLog, inbound
from dumps.record.served import Handling
from dumps.record.watchdog import Watchdog
from dumps.schema import state_pb2 as pb
from dumps.text import printable
from replay.engine.failure import Failure, FailureKind
from replay.errors import UsageError
from replay.report import finding
from replay.runtime.env import Env, Refusal
from replay.runtime.errors import in_one_line
from replay.runtime.loop import Stalled
from replay.targets.app.arrival import Arrival, is_cancelled, is_upgrade
from replay.targets.app.conclude import conclude
from replay.targets.app.outcome import Outcome, outcome_of, stopper
from replay.targets.app.sought import Conclusion, Sought
from replay.targets.app.waits import until
from replay.verdict import Reason, Verdict

KINDS = ("asgi", "aiohttp")
SHUTDOWN_S = 10.0  # of the program's clock
_LATE_NS = 1000  # a timer set in seconds may come early by a rounding


class Server(Protocol):
    """An application that is served without a network."""

    async def start(self) -> None:
        """Let it start up. Raises what it fails with."""

    async def stop(self) -> None:
        """Let it shut down."""

    async def ask(self, exchange: pb.Exchange, arrival: Arrival) -> None:
        """Hand it one request, piece by piece, and return when it is done with it."""


@dataclass(frozen=True, slots=True)
class _StoppedClock:
    started_ns: int
    now_ns: int

    def monotonic_ns(self) -> int:
        return self.now_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What one request had seen of the world when it was over: others go on, and are of no account to it."""

    clock: _StoppedClock
    world_step: int
    first_refusal: Refusal | None
    left: tuple[pb.Exchange, ...]
    refusals: tuple[Refusal, ...] = ()
    askers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, env: Env, within: str) -> Moment:
        own = tuple(one for one in env.refusals if not within or one.within in ("", within))
        return cls(
            clock=_StoppedClock(env.clock.started_ns, env.clock.monotonic_ns()),
            world_step=env.calls_begun(within),
            first_refusal=next(iter(own), None),
            left=tuple(env.left_over(within)),
            refusals=own,
            askers=env.asked_by(),
        )

    def left_over(self) -> list[pb.Exchange]:
        return list(self.left)

    def asked_by(self) -> Mapping[str, str]:
        return self.askers


class Witness:
    """Stands where a recording would (`dumps.record.served.Requests`), and keeps what the request ``failing`` fails
    with; "" is what fails outside of any. ``seen`` has it in the order in which it came, ``failed`` what other requests
    failed with."""

    def __init__(self, env: Env, requests: Sequence[pb.Exchange], kind: str, failing: str) -> None:
        self.watchdog = Watchdog()  # nothing is watched: a recorded deadline is over on the virtual clock
        self.follows = True
        self.seen: list[tuple[Outcome, Moment]] = []
        self.failed: dict[str, str] = {}
        self.taps: dict[str, InboundTap] = {}
        self.over = {request.id: asyncio.Event() for request in requests}
        self._env, self._kind, self._failing = env, kind, failing
        self._recorded = {request.id: request for request in requests}
        self._log = WorldLog(level=RecordLevel.FULL)
        self._closed = False

    def start(self) -> None:
        """The replay began before."""

    def stop(self) -> None:
        """The replay ends later."""

    def stop_with_the_last(self) -> None:
        """The same."""

    def failed_to_start(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self.report(Trouble(reason="exception", error=error))

    def handle(self, *, decoded: bool = False) -> Handling | None:
        """The handling of the request that the running task was made for. The task gets its recorded name."""
        recorded = self._recorded.get(inbound.get())
        if recorded is None:
            return None
        task = asyncio.current_task()
        if task is not None and recorded.task:
            task.set_name(recorded.task)
        tap = InboundTap(self._log, server=self._kind, decoded=decoded)
        tap.exchange.id = recorded.id
        self.taps[recorded.id] = tap
        return Handling(self, tap, timeout=None, done=self.over[recorded.id].set)

    def report(self, trouble: Trouble, /) -> None:
        """What a recording would have made a dump of."""
        recorded = None if self._closed or self._stands_still else trouble.failure()
        if recorded is None:
            return
        if trouble.exchange != self._failing:
            self.failed[trouble.exchange] = _in_one_line(recorded, trouble.error)
            return
        error = trouble.error
        if error is not None and stopper(error) is not None:
            outcome = outcome_of(error)
        else:
            outcome = Outcome(ended="raised", error=error, failure=_failure(recorded))
        self.seen.append((outcome, Moment.of(self._env, self._failing)))

    @property
    def _stands_still(self) -> bool:
        """The loop has ended, and cancels what waited in vain: that is no failure of a request."""
        return any(isinstance(one.error, Stalled) for one in self._env.refusals)

    def close(self) -> None:
        """What comes from here on is our doing: the replay ends."""
        self._closed = True


class ServedReplay:
    """``found`` is what the user named: an application, or a function that makes one.

    Raises `UsageError` where it is neither.
    """

    def __init__(self, state: pb.RuntimeState, found: Any) -> None:
        self._state = state
        self._failure = state.failures[-1] if state.failures else None
        named = self._failure.exchange if self._failure is not None else ""
        inbound_ones = [one for one in state.exchanges if one.direction == "in"]
        self.failing = next((one for one in inbound_ones if named and one.id == named), None)
        self._skipped = [one for one in inbound_ones if is_upgrade(one) or not one.method]
        self.requests = [one for one in inbound_ones if one not in self._skipped]
        self._arrivals = {
            one.id: Arrival.of(one, self._failure if one is self.failing else None) for one in self.requests
        }
        self._make = _maker(state.program.kind, found, cancels=self._cancels)
        self._forgotten = any(LET_GO in entry.note for entry in state.ledger)
        self._ended: tuple[Outcome, Moment] | None = None
        self.elapsed_s = 0.0
        """Virtual seconds until the failure, or the end of the record: not those in which the server shuts down."""
        self._witness: Witness | None = None

    @property
    def _cancels(self) -> bool:
        return self.failing is not None and is_cancelled(self._failure)

    @property
    def _within(self) -> str:
        return self.failing.id if self.failing is not None else ""

    def run(self, env: Env) -> Outcome:
        """Serve the recorded requests in ``env``, which is in place. Everything that the application does is a result;
        where the failing request showed several failures, the one that was recorded goes before the first."""
        undo = []
        try:
            self._witness = Witness(env, self.requests, self._state.program.kind, self._within)
            undo.append(triggers.on_lost_task(lambda e: self._report(Trouble(reason="exception", error=e))))
            asyncio.run(self._serve(env, self._witness))
        except UsageError:  # what was named makes no application
            raise
        except BaseException as error:  # SystemExit and KeyboardInterrupt are ways in which programs end, too
            self.end(env, outcome_of(error))
        finally:
            for each in undo:
                each()
        assert self._ended is not None
        if self._witness is not None and self._witness.seen:
            seen = self._witness.seen
            self._ended = next((one for one in seen if self._is_as_recorded(one[0].failure)), seen[0])
        return self._ended[0]

    def conclude(self, sought: Sought, env: Env, outcome: Outcome) -> Conclusion:
        """The verdict on the failing request, with what is to be said of the others."""
        assert self._ended is not None
        sought = replace(sought, request=self.failing)
        moment = self._ended[1]
        found = conclude(sought, moment, outcome)
        others = (one for one in env.refusals if one.within != self._within and not one.after_the_record)
        strayed = next((one for one in others if one.left_over), None)
        if found.decision.verdict is not Verdict.REPRODUCED and moment.first_refusal is None and strayed is not None:
            # Another request left the record, and may have changed what this one saw.
            found = conclude(sought, replace(moment, first_refusal=strayed), outcome)
        if found.decision.verdict is not Verdict.REPRODUCED and (why := self._untold()):
            decision = replace(found.decision, verdict=Verdict.INCONCLUSIVE, reason=Reason.RECORD_ENDS)
            found = replace(found, decision=decision, findings=[finding("record-ends", why), *found.findings])
        return replace(found, findings=[*found.findings, *self._findings()])

    def counts(self) -> dict[str, Any]:
        """What became of the inbound requests, for a report."""
        taps = self._witness.taps.values() if self._witness is not None else ()
        ended = sum(tap.exchange.HasField("ended_ns") for tap in taps)
        return {"requests": {"recorded": len(self.requests) + len(self._skipped), "asked": len(taps), "ended": ended}}

    async def _serve(self, env: Env, witness: Witness) -> None:
        server = await self._make(witness, env)
        await server.start()
        asking = asyncio.create_task(self._ask_all(env, server))
        waits: list[asyncio.Task[Any]] = [asking]
        if self.failing in self.requests:
            waits.append(asyncio.create_task(witness.over[self._within].wait()))
        if self._failure is not None and self._failure.kind == FailureKind.TIMEOUT:
            waits.append(asyncio.create_task(until(self._failure.time_ns + _LATE_NS)))
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            asking.result()
        self.end(env, Outcome(ended="returned"))
        witness.close()
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        env.end_of_the_record()
        with contextlib.suppress(TimeoutError):  # one that lives on for ever would do so on a clock that costs nothing
            async with asyncio.timeout(SHUTDOWN_S):
                await server.stop()

    async def _ask_all(self, env: Env, server: Server) -> None:
        if self._forgotten and self.requests:
            # Hours or days, of which nothing is left that could be played.
            env.clock.advance_to(self.requests[0].started_ns)
        async with asyncio.TaskGroup() as group:
            for exchange in sorted(self.requests, key=lambda one: one.started_ns):
                await until(exchange.started_ns)
                group.create_task(self._ask(server, exchange), name=exchange.task or None)
        if self.failing is None and self._failure is not None:
            await until(self._failure.time_ns)

    async def _ask(self, server: Server, exchange: pb.Exchange) -> None:
        inbound.set(exchange.id)  # for this task and those that it makes
        await server.ask(exchange, self._arrivals[exchange.id])

    def end(self, env: Env, outcome: Outcome) -> None:
        """Note how it all ended, where nothing has yet."""
        if self._ended is None:
            self.elapsed_s = env.elapsed_s
            self._ended = outcome, Moment.of(env, self._within)

    def _report(self, trouble: Trouble) -> None:
        if self._witness is not None:
            self._witness.report(trouble)

    def _is_as_recorded(self, failure: Failure | None) -> bool:
        recorded = self._failure
        if failure is None or recorded is None:
            return False
        ours = (failure.kind.value, failure.invariant, failure.exception_type)
        return ours == (recorded.kind, recorded.invariant, recorded.exception_type)

    def _untold(self) -> str:
        """Why the failing request cannot be asked again as it was; empty where it can."""
        if self.failing is None:
            return ""
        if self.failing in self._skipped:
            return f"{_named(self.failing)} became a web socket, whose messages are not recorded"
        missing = self._arrivals[self.failing.id].missing
        return f"{missing} bytes of the body of {_named(self.failing)} are not in the dump" if missing else ""

    def _findings(self) -> list[dict[str, Any]]:
        found = []
        if self._forgotten:
            message = (
                "the record had let go of requests that had ended, and of what they asked for: they were not asked "
                "again, and what the application kept of them is not there"
            )
            found.append(finding("requests-forgotten", message))
        found += [
            finding("request-skipped", f"{_named(one)} was not asked again: no request of HTTP, or none that is known")
            for one in self._skipped
        ]
        if self.failing in self.requests and self._arrivals[self._within].inferred:
            message = f"that the client of {_named(self.failing)} went away, and when, is inferred from the failure"
            found.append(finding("client-gone-inferred", message))
        return found + [finding("answer-differs", message) for message in self._differing_answers()]

    def _differing_answers(self) -> list[str]:
        found = []
        for exchange in self.requests:
            tap = self._witness.taps.get(exchange.id) if self._witness is not None else None
            if tap is None or self._witness is None:
                continue
            status = tap.exchange.status
            told = status or tap.exchange.HasField("ended_ns")
            if exchange.status and told and status != exchange.status:
                found.append(f"{_named(exchange)} was answered with {status or 'nothing'}; recorded: {exchange.status}")
            failed = self._witness.failed.get(exchange.id)
            if failed and exchange.HasField("ended_ns") and not exchange.error_message:
                found.append(f"{_named(exchange)} failed, which it did not when recorded: {printable(failed, 200)}")
        return found


def _maker(kind: str, found: Any, *, cancels: bool) -> Any:
    """What makes the server of an application, given the witness; raises `UsageError` if ``found`` is none."""
    if kind == "asgi":
        from replay.targets.app.served_asgi import asgi_server

        return asgi_server(found, cancels=cancels)
    from replay.targets.app.served_aiohttp import aiohttp_server  # not needed, and slow to import, for any other

    return aiohttp_server(found, cancels=cancels)


def _in_one_line(recorded: pb.Failure, error: BaseException | None) -> str:
    refused = stopper(error)
    if refused is not None:  # told in full where the refusal is told
        return f"the replay refused it {in_one_line(refused)}"
    return f"{recorded.exception_type or recorded.invariant}: {' '.join(recorded.message.split())}"


def _named(exchange: pb.Exchange) -> str:
    return f"{exchange.id} {exchange.method} {printable(exchange.url, 200)}"


def _failure(recorded: pb.Failure) -> Failure:
    return Failure(
        kind=FailureKind(recorded.kind),
        invariant=recorded.invariant,
        exception_type=recorded.exception_type,
        message=recorded.message,
        frame=recorded.frame,
    )
