"""What a replay of a program looks for, what it is asked of its world, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from dumps.schema import state_pb2 as pb
from replay.divergence import Divergence
from replay.engine.failure import Failure, FailureKind
from replay.runtime.env import Refusal
from replay.signature import Signature
from replay.verdict import Decision

C = TypeVar("C", pb.Exchange, pb.ToolCall)

AT_ONCE_NS = 100_000_000
"""So soon after an answer no computing has taken too long: a busy machine may need as much to raise and to record."""


class Clock(Protocol):
    @property
    def started_ns(self) -> int: ...

    def monotonic_ns(self) -> int: ...


class World(Protocol):
    """What is asked of the world that a program ran in: an `Env`, or what one request of a server saw of it."""

    @property
    def clock(self) -> Clock: ...

    @property
    def world_step(self) -> int: ...

    @property
    def first_refusal(self) -> Refusal | None: ...

    @property
    def refusals(self) -> Sequence[Refusal]: ...

    def asked_by(self) -> Mapping[str, str]: ...

    def left_over(self) -> list[pb.Exchange]: ...


@dataclass(frozen=True, slots=True)
class Conclusion:
    decision: Decision
    failure: Failure | None = None
    divergence: Divergence | None = None
    findings: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """What a replay looks for. ``state`` is the record, ``signature`` the failure; ``modified`` says that tools were
    given results or the world was forked, ``foreign`` that the signature is not the dump's own. ``request`` is the
    inbound one whose failure it is, in a server."""

    state: pb.RuntimeState
    signature: Signature | None
    modified: bool = False
    foreign: bool = False
    tools_given: bool = False
    request: pb.Exchange | None = None

    @property
    def step(self) -> int:
        """The world step of the failure, 0 where it is not known."""
        return (self.signature.location.step or 0) if self.signature is not None else 0

    @property
    def deadline_ns(self) -> int | None:
        """Monotonic time at which a recorded deadline was over; None where the failure is not one."""
        if self.foreign or self.signature is None or self.signature.identity.kind != FailureKind.TIMEOUT:
            return None
        return self.state.failures[-1].time_ns

    @property
    def failed_on_the_way(self) -> bool:
        """Whether the recorded program went on after its failure: it ended a thread or a task, not the program."""
        on_the_way = self.state.HasField("program") and not self.state.program.HasField("ended_ns")
        kind = self.signature.identity.kind if self.signature is not None else ""
        return on_the_way and kind == FailureKind.EXCEPTION and self.request is None and not self.foreign

    @property
    def was_slow(self) -> bool:
        """Whether the failure is a timeout, the recording's or the program's own, and nothing outside was late then: it
        computed, or slept, or waited for itself."""
        if self.foreign or self.signature is None or self.was_waiting:
            return False
        timed_out = self.deadline_ns is not None or "Timeout" in self.signature.identity.exception_type
        return timed_out and self.state.failures[-1].time_ns - self.last_heard_ns > AT_ONCE_NS

    @property
    def was_waiting(self) -> bool:
        """Whether an answer was still to come when the record ended, of a peer or of a tool."""
        asked = any(one.direction == "out" and not one.HasField("ended_ns") for one in self._own(self.state.exchanges))
        return asked or any(one.status in ("pending", "partial") for one in self._own(self.state.tool_calls))

    @property
    def last_heard_ns(self) -> int:
        """When the recorded program had asked its world for something last, or had its answer; else when it began."""
        began = self.state.program.started_ns if self.request is None else self.request.started_ns
        exchanges = [one for one in self._own(self.state.exchanges) if one.direction == "out"]
        calls, files = self._own(self.state.tool_calls), self.state.syscalls if self.request is None else ()
        heard = [began, *(max(one.started_ns, one.sent_ns, one.ended_ns) for one in exchanges)]
        heard += [max(one.started_ns, one.finished_ns) for one in calls]
        return max(heard + [one.time_ns + one.duration_ns for one in files])

    def _own(self, calls: Iterable[C]) -> list[C]:
        """Those of the request whose failure it is, in a server."""
        within = self.request.id if self.request is not None else ""
        return [one for one in calls if not within or one.within == within]
